"""Fit of the memory-bound model to the kernels of traces with shapes: per accelerator and class, and over all accelerators."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.cost.coefficients import GENERIC
from lumos.cost.fitting.fit import Fitted, MeasuredRows, fitted_to, held_out, summarise
from lumos.cost.fitting.models import FEWEST_ROWS
from lumos.cost.memory_bound_model import MemoryCoefficients, moved_seconds
from lumos.cost.operators import operator_times
from lumos.cost.traffic import traffic
from lumos.trace.table import Category, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.cost.cluster import Accelerator
    from lumos.cost.coefficients import Book, Coefficients
    from lumos.cost.estimate import Float64

#: Where the fit starts, and what it is pulled towards where there are few data.
MEMORY_PRIOR = MemoryCoefficients(2.0, 0.15, 2.5, 0.5)
#: A row whose time is not known to within this share of itself is fitted, but does not count for the error.
_COARSEST = 0.2


class KernelRows(NamedTuple):
    """Kernels of one accelerator (`rows.cluster`) and class (`rows.variant`), one row per operator and shapes. shapes: rows of equal shapes
    are held out together. scored: whether the clock of the trace was fine enough for the row to count for the error."""

    rows: MeasuredRows
    shapes: tuple[str, ...]
    scored: NDArray[np.bool_]


def kernel_rows(trace: Trace, accelerator: Accelerator) -> list[KernelRows]:
    """The memory-bound kernels of a trace by class: operators that launched one kernel and whose bytes are known. Seconds are medians."""
    times: dict[tuple[str, float, str], list[int]] = defaultdict(list)
    for operator in operator_times(trace):
        moved = traffic(operator)
        if moved and moved[1] > 0 and operator.kernels == 1 and operator.work_ns > 0:
            times[(*moved, f"{operator.name}{operator.shapes}")].append(operator.work_ns)
    kernels = trace.duration[trace.is_any(Category.KERNEL)]
    tick = 1000 if len(kernels) and np.all(kernels % 1000 == 0) else 1

    def formula(sizes: Mapping[str, Float64], c: Any) -> Float64:
        return moved_seconds(sizes["bytes"], accelerator, c).seconds

    out = []
    for kernel_class in sorted({key[0] for key in times}):
        keys = [key for key in times if key[0] == kernel_class]
        seconds = np.array([float(np.median(times[key])) for key in keys]) * 1e-9
        rows = MeasuredRows(accelerator.name, kernel_class, {"bytes": np.array([key[1] for key in keys])}, seconds, formula)
        out.append(KernelRows(rows, tuple(key[2].partition("(")[2] for key in keys), seconds * _COARSEST >= tick * 1e-9))
    return out


def fit_memory_bound(tables: Sequence[KernelRows]) -> Fitted:
    """Coefficients shared by the tables, with each row's seconds as modelled while its shapes were held out (NaN where the row is not
    scored)."""
    rows = [t.rows for t in tables]
    modelled = held_out(rows, MEMORY_PRIOR, [shape for t in tables for shape in t.shapes])
    modelled = np.where(np.concatenate([t.scored for t in tables]), modelled, np.nan)
    return Fitted(summarise(fitted_to(rows, MEMORY_PRIOR), modelled, rows, ("bytes",)), modelled)


def fit_kernels(tables: Sequence[KernelRows]) -> Book:
    """Coefficients of the memory-bound kernels of traces, by accelerator and class, and over all accelerators together."""
    sets: dict[str, dict[str, Coefficients]] = defaultdict(dict)
    for name, kernel_class in sorted({(t.rows.cluster, t.rows.variant) for t in tables}):
        own = [t for t in tables if (t.rows.cluster, t.rows.variant) == (name, kernel_class)]
        if sum(len(t.rows.seconds) for t in own) >= FEWEST_ROWS:
            sets[name][kernel_class] = fit_memory_bound(own).coefficients
    for kernel_class in sorted({t.rows.variant for t in tables}):
        sets[GENERIC][kernel_class] = fit_memory_bound([t for t in tables if t.rows.variant == kernel_class]).coefficients
    return {"memory_bound": dict(sets)}
