"""How much slower compute kernels run while a collective runs than alone.

A collective takes SMs and memory bandwidth from the kernels of other streams of its device. Kernels of one name, launch shape
(grid, block, shared memory) and input shapes (of the operator that launched them) do equal work on devices of one name. Those
that ran during a collective are compared with those that ran while there was none, over all ranks. The launch shape alone does
not determine the work (one grid serves matrices of many depths), so a trace without input shapes gives no figures. Neither do
kernels whose time varies even when they run alone. All of this is measured from the trace and does not change a replay, in which
each kernel keeps its measured duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.joined.collectives import is_communication
from lumos.graph.kernel_names import kernel_class
from lumos.graph.lists import equal_rows
from lumos.graph.places import innermost
from lumos.intervals import union, within
from lumos.trace.table import ABSENT, Category, Int64, Trace, unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A kernel counts as inside collectives when they cover at least this share of it, as alone when they cover none of it, and
#: otherwise as neither.
INSIDE = 0.9
#: So many equal kernels must have run alone before their median is taken as the time alone.
LEAST_ALONE = 3
#: Times alone are steady where their interquartile range is no more than this share of their median.
STEADY = 0.1
#: The name of the row for all classes together.
_ALL = "all classes"


class Interference(NamedTuple):
    """Kernels of a class that ran inside collectives. alone_ns: what the same kernels take alone. slowdown: time / alone."""

    kernel_class: str
    kernels: int
    time_ns: int
    alone_ns: int
    slowdown: float


class _Sums(NamedTuple):
    """Sums over kernels inside collectives: number, time, and what the same kernels take alone."""

    kernels: int
    time_ns: int
    alone_ns: int


class EqualKernels(NamedTuple):
    """Kernels with all of this in common do equal work. device: its name. name: of the kernel. shapes: of the operator's inputs."""

    device: str
    shared_memory: int
    name: str
    grid: str
    block: str
    shapes: str


def interference(traces: Sequence[Trace]) -> tuple[Interference, ...]:
    """One row for all classes together, then one for each class, the most time first; empty where nothing can be compared."""
    pooled: dict[EqualKernels, tuple[list[Int64], list[Int64]]] = {}
    for trace in traces:
        for work, inside, alone in _groups(trace):
            both = pooled.setdefault(work, ([], []))
            both[0].append(inside)
            both[1].append(alone)
    by_class: dict[str, _Sums] = {}
    for work, times in pooled.items():
        inside, alone = (np.concatenate(parts) for parts in times)
        if not len(inside) or len(alone) < LEAST_ALONE or not _steady(alone):
            continue
        for label in (_ALL, kernel_class(work.name)):
            number, time, expected = by_class.get(label, _Sums(0, 0, 0))
            by_class[label] = _Sums(number + len(inside), time + int(inside.sum()), expected + int(np.median(alone)) * len(inside))
    rows = [Interference(label, *sums, slowdown=sums.time_ns / sums.alone_ns) for label, sums in by_class.items() if sums.alone_ns]
    return tuple(sorted(rows, key=lambda row: (row.kernel_class != _ALL, -row.time_ns)))


def _groups(trace: Trace) -> Iterator[tuple[EqualKernels, Int64, Int64]]:
    """For each set of kernels that do equal work: their durations inside collectives, and alone, int64 ns."""
    kernels, covered = _covered(trace)
    shapes = _shapes(trace, kernels)
    kernels, covered, shapes = (column[shapes >= 0] for column in (kernels, covered, shapes))
    if not len(kernels):
        return
    time = trace.duration[kernels]
    inside, alone = covered >= INSIDE * time, covered == 0
    launch = [trace.dense(key)[kernels] for key in ("device", "grid", "block", "shared memory")]
    columns = np.stack([*launch, trace.name[kernels], shapes])
    devices = {listed["id"]: listed["name"] for listed in trace.devices if "id" in listed and "name" in listed}
    for group in equal_rows(*columns):
        device, grid, block, shared, name, dims = columns[:, group[0]].tolist()
        texts = (trace.strings[name], trace.strings[grid], trace.strings[block], trace.strings[dims])
        yield EqualKernels(devices.get(device, ""), shared, *texts), time[group[inside[group]]], time[group[alone[group]]]


def _steady(time: Int64) -> bool:
    low, middle, high = np.quantile(time, (0.25, 0.5, 0.75))
    return bool(high - low <= STEADY * middle)


def _covered(trace: Trace) -> tuple[Int64, Int64]:
    """Compute kernels with a launch shape and a duration, and how much of each is covered by collectives on other streams of its
    device, ns."""
    communicates = is_communication(trace)
    shaped = np.zeros(len(trace), bool)
    if "grid" in trace.args:
        shaped[trace.args["grid"].rows] = True
    wanted = shaped & (trace.category == Category.KERNEL) & ~communicates & (trace.duration > 0)
    kernels, collectives = np.flatnonzero(wanted), np.flatnonzero(communicates)
    device, end = trace.dense("device"), trace.start + trace.duration
    covered = np.zeros(len(kernels), np.int64)
    for lane in unique(trace.lane[kernels]):
        here = np.flatnonzero(trace.lane[kernels] == lane)
        rows = kernels[here]
        others = collectives[(trace.lane[collectives] != lane) & (device[collectives] == device[rows[0]])]
        covered[here] = within(union(trace.start[others], end[others]), trace.start[rows], end[rows])
    return kernels, covered


def _shapes(trace: Trace, kernels: Int64) -> Int64:
    """Input shapes of the innermost operator around each kernel's launch call that has any, as an index into the trace's strings;
    ABSENT where unknown. Not all traces give the operator's id with the kernel, so it is found by the launch call."""
    out = np.full(len(kernels), ABSENT, np.int64)
    dims = trace.args.get("Input Dims")
    calls = np.flatnonzero(trace.is_any(Category.RUNTIME) & (trace.correlation >= 0))
    if dims is None or not len(calls):
        return out
    known, first = np.unique(trace.correlation[calls], return_index=True)
    nearest = np.minimum(np.searchsorted(known, trace.correlation[kernels]), len(known) - 1)
    launched = np.flatnonzero(known[nearest] == trace.correlation[kernels])
    has_shape = np.zeros(len(trace.strings), bool)
    texts = unique(dims.values)
    has_shape[texts] = [any(map(str.isdigit, trace.strings[i])) for i in texts.tolist()]
    shaped = dims.rows[(trace.category[dims.rows] == Category.OPERATOR) & has_shape[dims.values]].astype(np.int64)
    operator = innermost(trace, shaped, calls[first][nearest[launched]])
    out[launched] = np.where(operator >= 0, trace.dense("Input Dims")[operator], ABSENT)
    return out
