"""What a recorded multiplication's time says of the same multiplication with other sizes.

A multiplication takes longer or shorter than its cost model says for two reasons. One is this job's: its libraries, its clock. All
multiplications of its type share it, so it stays (`Usual`). The other is how tiles and waves happen to fit its own sizes, and that goes
where the sizes change. How fast, public tables of multiplications in bf16 on four accelerators show (A100, H100, H200 and B200; 7,464
rows), each modelled with the coefficients of each other one, as those of a job to which no model was fitted: of what one differs from the
model by more than its device does (the middle of its rows), 58 % is left where it has twice the rows, 36 and 15 % with four and eight
times; 59, 32 and 14 % with more columns, 72, 46 and 22 % with more depth. So what is left is the `FADES`-th negative power of the change.

It stays where only the number of equal multiplications in a kernel changes, and where a size that does not change is no whole number of
`ALIGNED` bytes, as matrix units then multiply by slower kernels. The interval reaches to what it would be if all of it stayed and, where a
recorded kernel says little (`prices.Ratio.far`), to the model itself. Few multiplications do not tell the two reasons apart: what is usual
is the middle of those recorded, drawn towards the model as much as by `PRIOR` more of them. """

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.rescale import modelled
from lumos.cost.gemm_model import SCALAR
from lumos.operators.shaped import product
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.changes.layout.prices import Ratio
    from lumos.cost.cluster import Accelerator
    from lumos.cost.estimate import Float64
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.dimensions import Shapes
    from lumos.trace.table import Int64

#: With which power of the change a misfit fades: where rows or columns change, and where only the depth does.
FADES, FADES_IN_DEPTH = 0.8, 0.55
#: As how many multiplications the model counts: in those tables, what the rows of a device share (8 % in the middle of the twelve pairs) is
#: about as large as what each has of its own (13 % in eight of ten rows).
PRIOR = 1.0
#: What kernels load at once, bytes.
ALIGNED = 16


class Usual(NamedTuple):
    """By how much longer than modelled the multiplications of a rank take, by the type of their first factor: the middle of their times, as
    a logarithm."""

    slower: Mapping[str, float]

    def fitted(self, o: ShapedOperator, new: ShapedOperator, f: Ratio, measured_ns: float) -> Ratio | None:
        """The factor `f` of a multiplication that becomes `new`, with as much of its misfit as stays; None where all of it does, and for
        other operators. measured_ns: what a call takes."""
        before, after, typical = product(o), product(new), self.slower.get(_type_of(o))
        if before is None or after is None or typical is None or min(f.modelled, f.best, measured_ns) <= 0:
            return None
        if before[:3] == after[:3] or _ragged(o, new):
            return None
        slower = log(measured_ns / f.modelled)
        misfit = slower - typical
        power = FADES_IN_DEPTH if before[:2] == after[:2] else FADES
        left = exp(-power / max(1.0, power * abs(misfit)) * abs(log(f.best)))  # so slowly that more work never takes less time
        change = exp((left - 1) * misfit)
        reached = change, 1.0, exp(-slower) if f.far else 1.0
        return f._replace(best=f.best * change, low=f.low * min(reached), high=f.high * max(reached))


def usual(
    operators: Sequence[ShapedOperator], shapes: Shapes, tasks: Int64, rows: Int64, duration: Float64, accelerator: Accelerator
) -> Usual:
    """What multiplications of a rank usually take. operators: those of `shapes`, in the types in which they are computed. tasks, rows: its
    kernels, and the rows of their operators. duration: of every task, ns."""
    chosen, calls = np.unique(rows, return_inverse=True)
    took = np.bincount(calls, duration[tasks], minlength=len(chosen))
    of_call = shapes.of_row[chosen]
    found: dict[str, tuple[list[float], list[float]]] = {}
    for index in np.unique(of_call).tolist():
        o = operators[index]
        estimate = modelled(o, accelerator) if product(o) is not None and not _ragged(o, o) else None
        spent = took[of_call == index]
        if estimate is not None and int(estimate.time) > 0 and spent.sum() > 0:
            slower, weight = found.setdefault(_type_of(o), ([], []))
            slower.append(log(float(spent.mean()) / int(estimate.time)))
            weight.append(float(spent.sum()))
    return Usual({dtype: _middle(*map(np.array, each)) * len(each[0]) / (len(each[0]) + PRIOR) for dtype, each in found.items()})


def _middle(values: Float64, weight: Float64) -> float:
    """The weighted median."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _type_of(o: ShapedOperator) -> str:
    """The type of the first input that has one."""
    return next((dtype for dtype in o.dtypes if DType.parse(dtype) is not None), "")


def _ragged(o: ShapedOperator, new: ShapedOperator) -> bool:
    """Whether a size of a multiplication by matrix units that stays as it is is no whole number of `ALIGNED` bytes."""
    dtype, before, after = DType.parse(_type_of(o)), product(o), product(new)
    if dtype is None or dtype in SCALAR or before is None or after is None:
        return False
    return any(a == b and a * dtype.bytes % ALIGNED for a, b in zip(before[:3], after[:3], strict=True))
