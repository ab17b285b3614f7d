"""Operators that are bound by memory: which kernels they launch, and the bytes that each reads and writes.

The table of operators has the kernels. An operator that it does not have, such as a kernel of the user's own, passes once over what
it is given and what it gives back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import POINTWISE, REDUCTION, STRIDED
from lumos.emulation.device.elementwise import elementwise
from lumos.emulation.device.launch import Launch, has_channels_last, in_lines, nbytes, results_of, tensors_of
from lumos.operators.kernels import kernels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Operator, Tensor
    from lumos.operators.kernels import LaunchedKernel

#: The kernel of element-wise operators in the table.
_ELEMENTWISE = "elementwise_kernel"


def table_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What an operator of this base name launches by the table; None where the table does not have it."""
    known = kernels_of(name)
    if known is None:
        return None
    inputs, results = list(tensors_of(operator.inputs)), results_of(operator)
    out = []
    for kernel in known:
        # The few values that a reduction gives count for nothing where a recording does not have them.
        outputs = results if operator.outputs or kernel.kernel_class != REDUCTION else []
        launch = _launch(kernel, name, operator, inputs, outputs)
        out += [launch] if launch is not None else []
    return out


def unlisted(name: str, operator: Operator) -> list[Launch]:
    """One pass over everything that the operator is given and gives back, each piece of memory once; nothing for a view. One that returns
    nothing writes into what it is given."""
    inputs, outputs = list(tensors_of(operator.inputs)), results_of(operator)
    given = {tensor.storage for tensor in inputs}
    returns = any(each is not None for each in operator.outputs)
    if returns and not operator.name.endswith("_") and all(tensor.storage in given for tensor in outputs):
        return []
    size = sum(map(nbytes, inputs)) + sum(map(nbytes, outputs))
    return [Launch(f"{name}_kernel", Traffic(size, 1, STRIDED))] if size else []


def _launch(kernel: LaunchedKernel, name: str, operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Launch | None:
    size = kernel.moves(list(map(nbytes, inputs)), list(map(nbytes, outputs)))
    if not size:
        return None
    if kernel.kernel == _ELEMENTWISE and kernel.reads:
        return Launch(f"{kernel.kernel} [{name}]", elementwise(name, size, outputs, inputs, operator.inputs))
    kernel_class = POINTWISE if kernel.copies and in_lines((*inputs, *outputs)) else kernel.kernel_class
    called = kernel.channels_last if kernel.channels_last and has_channels_last(inputs[0]) else kernel.kernel
    return Launch(f"{called} [{name}]", Traffic(size, 1, kernel_class))
