"""Collectives: which rank waits for which, how long the transfer takes, at what rate, and what kernels beside it lose.

All members of a rendezvous transfer from the moment at which the last of them arrives. The time of a member before that is
waiting for the member that arrived last. Where ranks' clocks disagree, a measured member may end before the last arrives; all
of its time then counts as waiting. Where members of a group are absent from the job, waiting and transfer cannot be separated.

The bus bandwidth is that of nccl-tests (PERFORMANCE.md): bytes over transfer time, times the share that must cross the
links, so that it compares with the links' rate whatever the kind and the number of ranks.

*Interference.* A collective takes SMs and memory bandwidth from the kernels of other streams of its device. Kernels of one name, launch
shape (grid, block, shared memory) and input shapes (of the operator that launched them) do equal work on devices of one name. Those that
ran during a collective are compared with those that ran while there was none, over all ranks. The launch shape alone does not determine the
work (one grid serves matrices of many depths), so a trace without input shapes gives no figures. Neither do kernels whose time varies even
when they run alone. All of this is measured from the trace and does not change a replay, in which each kernel keeps its measured duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import step_times
from lumos.graph.joined.collectives import is_communication
from lumos.graph.kernel_names import kernel_class
from lumos.graph.lists import equal_rows, numbered
from lumos.graph.places import innermost
from lumos.graph.table import Collectives, Dependency
from lumos.intervals import union, within
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline

#: Bytes that cross the links of a rank, as a multiple of (n - 1) / n of its buffer (the larger of input and output), n ranks;
#: kinds that are not listed move each byte once, whatever the ranks.
_CROSSING = {
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}


class Waiting(NamedTuple):
    """By task. began: int64[n] ns, when its own work began: its start, or in a rendezvous the latest arrival.
    last: int32[n], the member of its rendezvous that arrived last (the first of several at one time); of a task without a
    rendezvous, the task itself."""

    began: Int64
    last: Int32


def waiting(timeline: Timeline) -> Waiting:
    """Split every task of the timeline into waiting for its rendezvous and its own work."""
    graph = timeline.graph
    began, last = timeline.start.copy(), np.arange(len(graph), dtype=np.int32)
    sizes = np.diff(graph.rendezvous_offset)
    tasks = graph.rendezvous_task
    if not len(tasks) or Dependency.RENDEZVOUS in graph.ignored:
        return Waiting(began, last)
    first = graph.rendezvous_offset[:-1][sizes > 0]
    sizes = sizes[sizes > 0]
    arrival = timeline.start[tasks]
    latest = np.repeat(np.maximum.reduceat(arrival, first), sizes)
    came_last = np.flatnonzero(arrival == latest)
    came_last = came_last[np.searchsorted(came_last, first)]
    last[tasks] = np.repeat(tasks[came_last], sizes)
    began[tasks] = np.minimum(latest, timeline.end[tasks])
    return Waiting(began, last)


class CollectiveRow(NamedTuple):
    """Collectives of one kind, group and size. calls: tasks over all ranks and the steps that count. size_bytes: the larger of a rank's
    input and output. time_ns: mean duration; waiting_ns, transfer_ns: its parts, None where peers are absent. bus_bytes_per_s: None
    where bytes, ranks or transfer are unknown."""

    kind: CollectiveKind
    group: str
    ranks: int | None
    size_bytes: int | None
    calls: int
    time_ns: float
    waiting_ns: float | None
    transfer_ns: float | None
    bus_bytes_per_s: float | None


def collective_times(timeline: Timeline, owners: Members) -> tuple[CollectiveRow, ...]:
    """The collectives of the steps that count, those that take most time first."""
    graph, facts = timeline.graph, timeline.graph.collectives
    if facts is None:
        return ()
    chosen = np.flatnonzero(step_times(timeline, owners).tasks_counted()[facts.task])
    if not len(chosen):
        return ()
    size = _sizes(timeline, facts)
    keys = np.stack((facts.kind, facts.group, size, facts.nbytes))[:, chosen]
    row, task = numbered(*keys), facts.task[chosen]
    distinct = keys[:, np.unique(row, return_index=True)[1]]
    joined = np.zeros(len(graph), bool)
    joined[graph.rendezvous_task] = True
    began = waiting(timeline).began
    time, waited = timeline.end[task] - timeline.start[task], began[task] - timeline.start[task]
    calls, known = np.bincount(row), np.bincount(row, joined[task])
    total, wait = np.bincount(row, time), np.bincount(row, np.where(joined[task], waited, 0))
    out = []
    for i, (kind, group, ranks, nbytes) in enumerate(distinct.T.tolist()):
        whole = known[i] == calls[i]
        out.append(
            _row(
                facts.kinds[kind],
                facts.groups[group] if group >= 0 else "",
                ranks if ranks != ABSENT else None,
                nbytes if nbytes != ABSENT else None,
                int(calls[i]),
                float(total[i] / calls[i]),
                float(wait[i] / calls[i]) if whole else None,
            )
        )
    return tuple(sorted(out, key=lambda r: -r.time_ns * r.calls))


def _row(
    kind: CollectiveKind, group: str, ranks: int | None, nbytes: int | None, calls: int, time: float, wait: float | None
) -> CollectiveRow:
    transfer = None if wait is None else time - wait
    size = nbytes if nbytes is None or ranks is None else kind.buffer_bytes(nbytes, ranks)
    rate = None
    if size is not None and ranks is not None and ranks > 1 and transfer:
        rate = size / transfer * 1e9 * (_CROSSING[kind] * (ranks - 1) / ranks if kind in _CROSSING else 1.0)
    return CollectiveRow(kind, group, ranks, size, calls, time, wait, transfer, rate)


def _sizes(timeline: Timeline, facts: Collectives) -> Int64:
    """Ranks of each collective's group, int64[rows]: as recorded, else the members of its rendezvous; ABSENT where unknown."""
    graph = timeline.graph
    met = np.full(len(graph), ABSENT, np.int64)
    members = np.diff(graph.rendezvous_offset)
    met[graph.rendezvous_task] = np.repeat(members, members)
    size = met[facts.task]
    return size if facts.size is None else np.where(facts.size > 0, facts.size, size).astype(np.int64)


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
