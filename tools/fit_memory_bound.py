"""Fit of the memory-bound model to the kernels of traces with shapes: per accelerator and class, and over all accelerators."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.coefficients import GENERIC
from lumos.cost.fitting.calibrate import FEWEST_ROWS
from lumos.cost.fitting.fit import fit_positive, held_out, input_ranges, summarise
from lumos.cost.memory_bound_model import MEMORY_PRIOR, MemoryCoefficients, moved_seconds
from lumos.cost.operators import operator_times
from lumos.cost.traffic import traffic
from lumos.trace.table import Category, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.cost.cluster import Accelerator
    from lumos.cost.coefficients import Book, Coefficients
    from lumos.cost.estimate import Float64

#: A row whose time is not known to within this share of itself is fitted, but does not count for the error.
_COARSEST = 0.2


class MemoryRows(NamedTuple):
    """Kernels of one accelerator and class, one row per operator and shapes. seconds: medians. shapes: rows of equal shapes are held
    out together. scored: whether the clock of the trace was fine enough for the row to count for the error."""

    accelerator: Accelerator
    kernel_class: str
    bytes: Float64
    seconds: Float64
    shapes: tuple[str, ...]
    scored: NDArray[np.bool_]

    def where(self, mask: NDArray[np.bool_]) -> MemoryRows:
        """The rows of the mask."""
        shapes = tuple(s for s, keep in zip(self.shapes, mask.tolist(), strict=True) if keep)
        return self._replace(bytes=self.bytes[mask], seconds=self.seconds[mask], shapes=shapes, scored=self.scored[mask])


def memory_rows(trace: Trace, accelerator: Accelerator) -> list[MemoryRows]:
    """The memory-bound kernels of a trace by class: operators that launched one kernel and whose bytes are known."""
    times: dict[tuple[str, float, str], list[int]] = defaultdict(list)
    for operator in operator_times(trace):
        moved = traffic(operator)
        if moved and moved[1] > 0 and operator.kernels == 1 and operator.work_ns > 0:
            times[(*moved, f"{operator.name}{operator.shapes}")].append(operator.work_ns)
    kernels = trace.duration[trace.is_any(Category.KERNEL)]
    tick = 1000 if len(kernels) and np.all(kernels % 1000 == 0) else 1
    out = []
    for kernel_class in sorted({key[0] for key in times}):
        keys = [key for key in times if key[0] == kernel_class]
        seconds = np.array([float(np.median(times[key])) for key in keys]) * 1e-9
        shapes = tuple(key[2].partition("(")[2] for key in keys)
        out.append(
            MemoryRows(accelerator, kernel_class, np.array([k[1] for k in keys]), seconds, shapes, seconds * _COARSEST >= tick * 1e-9)
        )
    return out


def fit_memory_bound(tables: Sequence[MemoryRows]) -> tuple[Coefficients, Float64]:
    """Coefficients shared by the tables, and each row's seconds as modelled while its shapes were held out (NaN where
    the row is not scored)."""
    measured = np.concatenate([t.seconds for t in tables])
    shapes = [s for t in tables for s in t.shapes]
    borders = np.cumsum([len(t.seconds) for t in tables])[:-1]

    def split(mask: NDArray[np.bool_]) -> list[MemoryRows]:
        return [t.where(part) for t, part in zip(tables, np.split(mask, borders), strict=True)]

    modelled = held_out(lambda mask: lambda other: _predict(_fit(split(mask)), split(other)), measured, shapes)
    modelled = np.where(np.concatenate([t.scored for t in tables]), modelled, np.nan)
    values: dict[str, float | list[float]] = dict(_fit(tables)._asdict())
    return summarise(values, modelled, measured, input_ranges(bytes=np.concatenate([t.bytes for t in tables]))), modelled


def _fit(tables: Sequence[MemoryRows]) -> MemoryCoefficients:
    some = [t for t in tables if len(t.seconds)]
    models = [lambda values, t=t: _seconds(t, MemoryCoefficients(*map(float, values))) for t in some]
    return MemoryCoefficients(*map(float, fit_positive(models, [t.seconds for t in some], np.array(MEMORY_PRIOR))))


def _seconds(t: MemoryRows, c: MemoryCoefficients) -> Float64:
    return moved_seconds(t.bytes, t.accelerator, c).seconds


def _predict(c: MemoryCoefficients, tables: Sequence[MemoryRows]) -> Float64:
    return np.concatenate([_seconds(t, c) for t in tables])


def fit_kernels(tables: Sequence[MemoryRows], *, generic: bool) -> Book:
    """Coefficients of the memory-bound kernels of traces, by accelerator and class; with `generic` also over all accelerators."""
    sets: dict[str, dict[str, Coefficients]] = defaultdict(dict)
    for name, kernel_class in sorted({(t.accelerator.name, t.kernel_class) for t in tables}):
        own = [t for t in tables if (t.accelerator.name, t.kernel_class) == (name, kernel_class)]
        if sum(len(t.seconds) for t in own) >= FEWEST_ROWS:
            sets[name][kernel_class] = fit_memory_bound(own)[0]
    for kernel_class in sorted({t.kernel_class for t in tables}) if generic else ():
        sets[GENERIC][kernel_class] = fit_memory_bound([t for t in tables if t.kernel_class == kernel_class])[0]
    return {"memory_bound": dict(sets)}
