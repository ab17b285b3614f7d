"""What another size makes of an operator's time on a CPU, as every change of a size does (`changes.layout.rescale`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.prices import growing
from lumos.changes.layout.rescale import CPU_INTERVAL, Core, operator_work, touched
from lumos.emulation.device.launch import tensors_of
from lumos.operators.shaped import ShapedOperator, product
from lumos.operators.table import without_work
from lumos.scripted.script import Slot, type_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.changes.layout.prices import Ratio
    from lumos.cost.estimate import Float64
    from lumos.emulation.record import Operator
    from lumos.scripted.script import Kindred

#: Operators of at most so many elements show the fixed time of an operator.
_SMALL = 256


def shaped(operator: Operator) -> ShapedOperator:
    """An emulated operator as the tables of sizes have them."""
    tensors = list(tensors_of(operator.inputs))
    return ShapedOperator(operator.name, tuple(tensor.shape for tensor in tensors), tuple(type_name(tensor.dtype) for tensor in tensors))


class HostSizes:
    """The operators of a recording on CPUs. measured: of each recorded rank its kind and prices."""

    def __init__(self, measured: Iterable[tuple[Kindred, Float64]]) -> None:
        own: dict[ShapedOperator, list[float]] = {}
        for kindred, prices in measured:
            for i, operator in enumerate(kindred.process.operators):
                if operator.leaf and not np.isnan(prices[Slot.OWN, i]):
                    own.setdefault(shaped(operator), []).append(float(prices[Slot.OWN, i]))
        typical = {operator: float(np.median(times)) for operator, times in own.items()}
        small = [time for operator, time in typical.items() if any(operator.shapes) and touched(operator) <= _SMALL]
        products = [(operator_work(operator), time) for operator, time in typical.items() if product(operator) is not None]
        fixed = float(np.median(small)) if small else 0.0
        spent = sum(time for _, time in products)
        self.core = Core(fixed, fixed, sum(work for work, _ in products) / spent if spent else 0.0, typical)
        self._rates = _rates(typical, fixed)

    def factor(self, before: Operator, after: Operator) -> Ratio | None:
        """The factor of the time beyond the fixed one; None where the size does not show in the time of the one and does in the other's."""
        old, new = shaped(before), shaped(after)
        if touched(old) <= _SMALL < touched(new) and not without_work(old.name):
            return None
        return growing(self.core.ratio(old, new) if old != new else 1.0, CPU_INTERVAL, self.core.fixed)

    def new(self, operator: Operator) -> float:
        """What an operator takes that the recording does not have, ns: its fixed time, and its work at the rate of those of its name, of
        multiplications, or of all others."""
        shaped_operator = shaped(operator)
        if not operator.leaf or without_work(shaped_operator.name):
            return self.core.fixed
        rate = self._rates.get(shaped_operator.name) or self._rates.get("product" if product(shaped_operator) is not None else "")
        return self.core.fixed + (operator_work(shaped_operator) / rate if rate else 0.0)


def _rates(typical: dict[ShapedOperator, float], fixed: float) -> dict[str, float]:
    """Work per ns beyond the fixed time, by name, of all multiplications ("product") and of all other operators (""); of operators whose
    size shows in their time."""
    work: dict[str, list[float]] = {}
    for operator, time in typical.items():
        if without_work(operator.name) or time <= fixed or touched(operator) <= _SMALL:
            continue
        for name in (operator.name, "product" if product(operator) is not None else ""):
            entry = work.setdefault(name, [0.0, 0.0])
            entry[0] += operator_work(operator)
            entry[1] += time - fixed
    return {name: done / time for name, (done, time) in work.items() if done and time}
