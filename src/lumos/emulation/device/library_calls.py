"""Operators that a library computes in one call: attention, and recurrent networks.

torch chooses the kernel of attention before it calls, so the name of the operator says which one runs. Flash kernels of torch are
FlashAttention 2; the memory-efficient ones are as fast as FlashAttention 1. Sequences of different lengths, one after the other, count as
equally long.

Of a recurrent network, by cuDNN's standard algorithm (CUDNN_RNN_ALGO_STANDARD, which torch takes on accelerators after Volta: `get_algo` in
ATen/native/cudnn/RNN.cpp), a layer multiplies the inputs of all moments at once,

    [sequences of all moments, inputs] x [inputs, gates x hidden]

and then goes from moment to moment: a product of the state, [sequences, hidden] x [hidden, gates x hidden], and one kernel that computes
the gates element by element (Appleyard, Kocisky, Blunsom: Optimizing Performance of Recurrent Neural Networks on GPUs, 2016). The
backward pass does both in reverse, and multiplies for the gradients of the weights at its end. Layers and directions run one after the
other here, where cuDNN overlaps them on streams of its own. Not compared with a recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.work import Attention, Gemm, Traffic
from lumos.cost.attention_model import HEAD_SIZES
from lumos.emulation.device.launch import Launch, shaped_operator, tensors_of, width
from lumos.emulation.device.products import arithmetic
from lumos.emulation.record import Tensor
from lumos.operators.shaped import attention_of
from lumos.operators.table import argument_places
from lumos.vocabulary import AttentionKernel, Direction

if TYPE_CHECKING:

    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Argument, Operator

#: By a word of the name: the kernel that runs.
_KERNELS = {"efficient": AttentionKernel.FA1, "cudnn": AttentionKernel.CUDNN}


def fused_attention(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What an attention operator of this base name launches; None where it is none or its shapes are not of one."""
    ends = next((each for each in operator.inputs if isinstance(each, Tensor) and each.dtype == "int32" and len(each.shape) == 1), None)
    shapes = shaped_operator(operator).shapes
    sizes = attention_of(operator.name, shapes if ends is None else tuple((1, *each) if len(each) == 3 else each for each in shapes))
    given = next(iter(tensors_of(operator.inputs)), None)
    dtype = arithmetic(given.dtype, accelerator, operator.tf32) if given is not None else None
    if sizes is None or dtype is None:
        return None
    batch, heads, kv_heads, queries, keys, width, value_width = sizes
    if ends is not None:  # where each sequence of those that lie one after the other ends
        batch, queries, keys = (each := max(1, ends.shape[0] - 1)), -(-queries // each), -(-keys // each)
    direction = Direction.BACKWARD if "backward" in name else Direction.FORWARD
    kernel = next((kernel for word, kernel in _KERNELS.items() if word in name), AttentionKernel.FA2)
    work = Attention(
        batch, queries, keys, heads, min(kv_heads, heads), width, value_width, _causal(name, operator), direction, kernel, dtype=dtype
    )
    label = f"{kernel}_{direction}_kernel"
    if max(width, value_width) <= HEAD_SIZES[-1]:
        return [Launch(f"flash_{label}", work)]
    parts = [Gemm(queries, keys, width, dtype, batch * heads), Gemm(queries, value_width, keys, dtype, batch * heads)]
    return [Launch(f"gemm_{dtype} [{label}]", part) for part in parts * (1 if direction is Direction.FORWARD else 2)]


def _causal(name: str, operator: Operator) -> bool:
    """Whether the mask is causal: as an operator's argument says, which some have as the number of a kind of mask, 0 for none."""
    settings = argument_places(name)
    place = settings.get("is_causal", settings.get("custom_mask_type", len(operator.inputs)))
    return place < len(operator.inputs) and bool(operator.inputs[place])


#: Where the arguments after the states begin, by operator.
_KIND_AT = {"_cudnn_rnn": 6, "_cudnn_rnn_backward": 10}
#: Gates of a network of each kind, as cuDNN numbers them (cudnnRNNMode_t): two plain ones, LSTM, GRU.
_GATES = (1, 1, 4, 3)


def recurrent_kernels(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What the operator of this base name ("_cudnn_rnn") launches; None where it is another, or its arguments are not all there."""
    place = _KIND_AT.get(name)
    if place is None or len(operator.inputs) < place + 9:
        return None
    given, numbers = operator.inputs[0], [each for each in operator.inputs[place : place + 4] if isinstance(each, int)]
    dtype = arithmetic(given.dtype, accelerator, operator.tf32 is not False) if isinstance(given, Tensor) else None
    if not isinstance(given, Tensor) or len(numbers) < 4 or dtype is None:
        return None
    kind, hidden, projected, layers = numbers
    directions, state, columns = 2 if operator.inputs[place + 7] else 1, projected or hidden, _GATES[kind] * hidden
    moments = _moments(given, operator.inputs[place + 8], bool(operator.inputs[place + 4]))
    total, is_forward = sum(moments), name == "_cudnn_rnn"

    def product(rows: int, columns: int, inner: int) -> Launch:
        return Launch(f"gemm_{dtype}", Gemm(rows, columns, inner, dtype, 1, max(2, dtype.bytes), cast=False))

    def gated(sequences: int) -> Launch:
        """Both products are read and the gates are kept, with the state and the cell before and after."""
        size = sequences * (3 * columns + 4 * hidden) * width(given.dtype)
        return Launch(f"rnn_elementwise_{'forward' if is_forward else 'backward'}", Traffic(size))

    def layer(inputs: int) -> list[Launch]:
        out = [product(total, columns, inputs)] if is_forward else []
        for sequences in moments if is_forward else reversed(moments):
            step = [product(sequences, columns, state), gated(sequences)] if is_forward else [
                gated(sequences), product(sequences, state, columns)
            ]  # fmt: skip
            projection = [product(sequences, state, hidden) if is_forward else product(sequences, hidden, state)] if projected else []
            out += [*step, *projection] if is_forward else [*projection, *step]
        of_weights = [product(total, inputs, columns), product(columns, inputs, total), product(columns, state, total)]
        return out if is_forward else out + of_weights

    every = [given.shape[-1], *[directions * state] * (layers - 1)]
    return [launch for inputs in (every if is_forward else reversed(every)) for _ in range(directions) for launch in layer(inputs)]


def _moments(given: Tensor, packed: Argument, batch_first: bool) -> list[int]:
    """The sequences at each moment: as a packed input says, else all of them at all."""
    if isinstance(packed, list) and packed:
        return [each for each in packed if isinstance(each, int)]
    batch, length = given.shape[:2] if batch_first else given.shape[1::-1]
    return [batch] * length
