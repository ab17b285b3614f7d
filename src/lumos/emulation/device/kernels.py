"""Which kernels an operator launches on an accelerator.

Rules are asked from the most to the least particular: multiplications, attention, recurrent networks, copies, what joins tensors, lists
of tensors, then the table of operators bound by memory. What none of them knows is priced by what it touches, and named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.emulation.device.attention import fused_attention
from lumos.emulation.device.copies import copy_kernels, joined_kernels
from lumos.emulation.device.launch import tensors_of
from lumos.emulation.device.products import product_kernels
from lumos.emulation.device.recurrent import recurrent_kernels
from lumos.emulation.device.tensor_lists import of_lists
from lumos.emulation.device.touched import table_kernels, unlisted
from lumos.operators.table import own_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.cost.cluster import Accelerator
    from lumos.emulation.device.launch import Launch
    from lumos.emulation.record import Operator

#: Operators that communicate: the record has what they move as exchanges.
_COMMUNICATION = ("c10d::", "_c10d_functional", "record_param_comms")


class Kernels:
    """The kernels of operators on one accelerator. unknown: operators that no rule knows, and how often each was asked for."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._unknown: dict[str, int] = {}

    @property
    def unknown(self) -> Mapping[str, int]:
        return self._unknown

    def __call__(self, operator: Operator) -> list[Launch]:
        """What the operator launches, in order: nothing for a view, for what works on the host alone, and for an operator that only
        calls others."""
        if not operator.leaf or operator.name.startswith(_COMMUNICATION) or not on_device(operator):
            return []
        name = own_name(operator.name)
        for priced in (product_kernels, fused_attention, recurrent_kernels):
            if (found := priced(name, operator, self.accelerator)) is not None:
                return found
        for moved in (copy_kernels, joined_kernels, of_lists, table_kernels):
            if (found := moved(name, operator)) is not None:
                return found
        found = unlisted(name, operator)
        if found:
            self._unknown[operator.name] = self._unknown.get(operator.name, 0) + 1
        return found


def on_device(operator: Operator) -> bool:
    """Whether the operator has a tensor on the device among its inputs or results."""
    return any(tensor.device != "cpu" for tensor in (*tensors_of(operator.inputs), *tensors_of(operator.outputs)))
