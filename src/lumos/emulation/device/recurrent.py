"""Recurrent networks, of which torch asks cuDNN in one call.

By cuDNN's standard algorithm (CUDNN_RNN_ALGO_STANDARD, which torch takes on accelerators after Volta: `get_algo` in
ATen/native/cudnn/RNN.cpp) a layer multiplies the inputs of all moments at once,

    [sequences of all moments, inputs] x [inputs, gates x hidden]

and then goes from moment to moment: a product of the state, [sequences, hidden] x [hidden, gates x hidden], and one kernel that computes
the gates element by element (Appleyard, Kocisky, Blunsom: Optimizing Performance of Recurrent Neural Networks on GPUs, 2016). The
backward pass does both in reverse, and multiplies for the gradients of the weights at its end. Layers and directions run one after the
other here, where cuDNN overlaps them on streams of its own. Not compared with a recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Gemm, Traffic
from lumos.emulation.device.launch import Launch, width
from lumos.emulation.device.products import arithmetic
from lumos.emulation.record import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Argument, Operator
    from lumos.vocabulary import DType

#: Where the arguments after the states begin, by operator.
_KIND_AT = {"_cudnn_rnn": 6, "_cudnn_rnn_backward": 10}
#: Gates of a network of each kind, as cuDNN numbers them (cudnnRNNMode_t): two plain ones, LSTM, GRU.
_GATES = (1, 1, 4, 3)


class _Network(NamedTuple):
    """moments: sequences at each moment. state: elements of what a layer gives to the next moment. inputs: of each layer."""

    moments: Sequence[int]
    inputs: Sequence[int]
    directions: int
    gates: int
    hidden: int
    state: int
    dtype: DType
    bytes: int

    def forward(self) -> Iterator[Launch]:
        for inputs in self.inputs:
            for _ in range(self.directions):
                yield self._product(sum(self.moments), self.gates * self.hidden, inputs)
                for sequences in self.moments:
                    yield self._product(sequences, self.gates * self.hidden, self.state)
                    yield self._gated(sequences, "forward")
                    if self.state != self.hidden:
                        yield self._product(sequences, self.state, self.hidden)

    def backward(self) -> Iterator[Launch]:
        total, columns = sum(self.moments), self.gates * self.hidden
        for inputs in reversed(self.inputs):
            for _ in range(self.directions):
                for sequences in reversed(self.moments):
                    if self.state != self.hidden:
                        yield self._product(sequences, self.hidden, self.state)
                    yield self._gated(sequences, "backward")
                    yield self._product(sequences, self.state, columns)
                yield self._product(total, inputs, columns)
                yield self._product(columns, inputs, total)
                yield self._product(columns, self.state, total)

    def _product(self, rows: int, columns: int, inner: int) -> Launch:
        return Launch(f"gemm_{self.dtype}", Gemm(rows, columns, inner, self.dtype, 1, max(2, self.dtype.bytes), cast=False))

    def _gated(self, sequences: int, direction: str) -> Launch:
        """Both products are read and the gates are kept, with the state and the cell before and after."""
        return Launch(f"rnn_elementwise_{direction}", Traffic(sequences * self.hidden * (3 * self.gates + 4) * self.bytes))


def recurrent_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What the operator of this base name ("_cudnn_rnn") launches; None where it is another, or its arguments are not all there."""
    place = _KIND_AT.get(name)
    if place is None or len(operator.inputs) < place + 9:
        return None
    given, numbers = operator.inputs[0], [each for each in operator.inputs[place : place + 4] if isinstance(each, int)]
    if not isinstance(given, Tensor) or len(numbers) < 4:
        return None
    dtype = arithmetic(given.dtype, accelerator, operator.tf32 is not False)
    if dtype is None:
        return None
    kind, hidden, projected, layers = numbers
    directions = 2 if operator.inputs[place + 7] else 1
    state = projected or hidden
    inputs = [given.shape[-1], *[directions * state] * (layers - 1)]
    moments = _moments(given, operator.inputs[place + 8], bool(operator.inputs[place + 4]))
    network = _Network(moments, inputs, directions, _GATES[kind], hidden, state, dtype, width(given.dtype))
    return list(network.forward() if name == "_cudnn_rnn" else network.backward())


def _moments(given: Tensor, packed: Argument, batch_first: bool) -> list[int]:
    """The sequences at each moment: as a packed input says, else all of them at all."""
    if isinstance(packed, list) and packed:
        return [each for each in packed if isinstance(each, int)]
    batch, length = given.shape[:2] if batch_first else given.shape[1::-1]
    return [batch] * length
