"""Where the time of the steps that count goes, in rows of one grouping; and the mean step by class on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.breakdown import FourWay, four_way
from lumos.analyze.collectives import waiting
from lumos.analyze.device_load import QueueLength, queue_during, queue_steps
from lumos.analyze.loop.steps import Members, members, step_times
from lumos.analyze.patterns import PatternRow, patterns
from lumos.analyze.ranks.equal_work import equal_work
from lumos.analyze.task_class import ARITHMETIC, has_modules, modules, operators, working
from lumos.analyze.waiting.causes import device_causes
from lumos.analyze.waiting.idle import Idle, device_idle, split
from lumos.errors import TraceError
from lumos.graph.kernel_names import kernel_class
from lumos.graph.table import Kind
from lumos.intervals import union, within
from lumos.operators.kernels import on_tensor_cores
from lumos.trace.table import unique
from lumos.vocabulary import MODULE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64, Job

    #: The module of a task, "" where none is known.
    ModuleOf = Callable[[int], str]

#: What time can be grouped by.
GROUPINGS = ("kernel", "pattern", "operator", "module", "stream", "rank")
#: Of these, what only a recording knows.
OF_A_RECORDING = ("operator", "module")


class TimeRow(NamedTuple):
    """All tasks of one name. share: of the total time of all rows. tensor_cores: whether it multiplies on tensor cores; None where it does
    not multiply, or its name does not say."""

    name: str
    tasks: int
    total_ns: int
    share: float
    mean_ns: float
    min_ns: int
    max_ns: int
    tensor_cores: bool | None = None


class TensorCores(NamedTuple):
    """The time of products, convolutions and attention on devices, ns. on_ns, off_ns: in kernels whose names say that they multiply on
    tensor cores, and that they do not; unknown_ns: in others. share: of on_ns in the time of all device work; None without any."""

    on_ns: int
    off_ns: int
    unknown_ns: int
    share: float | None


class OperatorRow(NamedTuple):
    """An operator: the device work launched from it, and its own CPU time, which is cut into cpu_tasks slices."""

    name: str
    device_tasks: int
    device_ns: int
    device_share: float
    cpu_tasks: int
    cpu_ns: int
    cpu_share: float


class ModuleRow(NamedTuple):
    """A module: the device work launched from it, forward and backward."""

    name: str
    device_tasks: int
    device_ns: int
    device_share: float


class StreamRow(NamedTuple):
    """A stream of one rank during the steps that count. share: busy time over the time of the steps. queue: of its launched work that has
    not ended, from the first of these steps to the last."""

    rank: int
    name: str
    tasks: int
    busy_ns: int
    share: float
    idle: Idle
    queue: QueueLength


class RankRow(NamedTuple):
    """A rank over its steps that count. idle: None for a rank without device work."""

    rank: int
    steps: int
    duration_ns: int
    breakdown: FourWay
    idle: Idle | None


TableRow = TimeRow | PatternRow | OperatorRow | ModuleRow | StreamRow | RankRow


def tabulate(timeline: Timeline, owners: Members, by: str, job: Job, module_of: ModuleOf | None = None) -> tuple[TableRow, ...]:
    """The rows of a grouping, the largest first (ranks in order). `by` is one of GROUPINGS. module_of: as for `by_module`."""
    if by == "kernel":
        return by_kernel(timeline, owners)
    if by == "pattern":
        return patterns(timeline, owners)
    if by == "operator":
        return by_operator(timeline, owners, job)
    if by == "module":
        return by_module(timeline, owners, job, module_of)
    if by == "stream":
        return by_stream(timeline, owners)
    return by_rank(timeline, owners)


def by_kernel(timeline: Timeline, owners: Members) -> tuple[TimeRow, ...]:
    """Device work by name; on ranks without any, CPU operators and collectives by name."""
    graph = timeline.graph
    computes, communicates = working(owners)
    tasks = np.flatnonzero((computes | communicates) & step_times(timeline, owners).tasks_counted())
    time = timeline.end[tasks] - timeline.start[tasks]
    order = np.argsort(graph.name[tasks], kind="stable")
    tasks, time = tasks[order], time[order]
    first = np.flatnonzero(np.concatenate(([True], np.diff(graph.name[tasks]) != 0))) if len(tasks) else np.empty(0, np.int64)
    total, least, most = (op.reduceat(time, first) if len(first) else time for op in (np.add, np.minimum, np.maximum))
    number = np.diff(np.append(first, len(tasks)))
    everything = int(time.sum()) or 1
    names = [graph.names[name] for name in graph.name[tasks[first]].tolist()]
    cores = [on_tensor_cores(name) if kernel_class(name) in ARITHMETIC else None for name in names]
    rows = [
        TimeRow(name, n, t, t / everything, t / n, low, high, cored)
        for name, n, t, low, high, cored in zip(names, number.tolist(), total.tolist(), least.tolist(), most.tolist(), cores, strict=True)
    ]
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name)))


def tensor_cores(timeline: Timeline, owners: Members | None = None) -> TensorCores:
    """How much of the time of the steps that count kernels multiply on tensor cores, as their names say."""
    owners = owners or members(timeline.graph)
    chosen = np.flatnonzero(owners.on_device & step_times(timeline, owners).tasks_counted())
    time = np.bincount(timeline.graph.name[chosen], timeline.end[chosen] - timeline.start[chosen]).astype(np.int64)
    of: dict[bool | None, int] = dict.fromkeys((True, False, None), 0)
    for i in np.flatnonzero(time).tolist():
        if kernel_class(timeline.graph.names[i]) in ARITHMETIC:
            of[on_tensor_cores(timeline.graph.names[i])] += int(time[i])
    return TensorCores(of[True], of[False], of[None], of[True] / int(time.sum()) if time.any() else None)


def by_operator(timeline: Timeline, owners: Members, job: Job) -> tuple[OperatorRow, ...]:
    """Device work by the operator that launched it, with the operator's own CPU time."""
    labels, label = _names(job, owners, operators(job, owners))
    counted = step_times(timeline, owners).tasks_counted()
    device = _totals(timeline, label, owners.on_device & counted, len(labels))
    cpu = _totals(timeline, label, ~owners.on_device & (label > 0) & counted, len(labels))
    shares = [time / (int(time.sum()) or 1) for _, time in (device, cpu)]
    rows = [
        OperatorRow(
            name,
            int(device[0][i]),
            int(device[1][i]),
            float(shares[0][i]),
            int(cpu[0][i]),
            int(cpu[1][i]),
            float(shares[1][i]),
        )
        for i, name in enumerate(labels)
        if device[0][i] or cpu[0][i]
    ]
    return tuple(sorted(rows, key=lambda r: (-r.device_ns, -r.cpu_ns, r.name)))


def by_module(timeline: Timeline, owners: Members, job: Job, module_of: ModuleOf | None = None) -> tuple[ModuleRow, ...]:
    """Device work by the module that launched it, or by named range where no module is recorded around it. module_of: tells the module of
    a task by the script instead. TraceError where no trace names either, and there is no script."""
    if module_of is not None:
        device = np.flatnonzero(owners.on_device)
        places = dict.fromkeys(["(none)", *(told := [module_of(int(i)) or "(none)" for i in device])])
        labels, label = list(places), np.zeros(len(owners.graph), np.int64)
        numbers = {name: i for i, name in enumerate(labels)}
        label[device] = [numbers[name] for name in told]
    elif has_modules(job):
        labels, label = _names(job, owners, modules(job, owners))
    else:
        remedy = "record with with_modules=True, name ranges with torch.profiler.record_function, or name the script with --before CMD"
        raise TraceError(f"{job.traces[0].path}: no row names a module; {remedy}")
    number, time = _totals(timeline, label, owners.on_device & step_times(timeline, owners).tasks_counted(), len(labels))
    everything = int(time.sum()) or 1
    rows = [
        ModuleRow(name.removeprefix(MODULE_PREFIX), int(number[i]), int(time[i]), int(time[i]) / everything)
        for i, name in enumerate(labels)
        if number[i]
    ]
    return tuple(sorted(rows, key=lambda r: (-r.device_ns, r.name)))


def by_stream(timeline: Timeline, owners: Members) -> tuple[StreamRow, ...]:
    """Each stream's busy time and its idle time by cause, over the steps that count."""
    graph = timeline.graph
    causes = device_causes(timeline, owners)
    times = step_times(timeline, owners)
    start, end = times.job_intervals()
    step_rank, counted = np.where(times.rank_steps_counted(), owners.step_rank(), -1), times.tasks_counted()
    rows = []
    for stream in unique(graph.processor[causes.task]):
        processor = graph.processors[int(stream)]
        here = np.flatnonzero(graph.processor[causes.task] == stream)
        tasks = causes.task[here]
        steps = np.flatnonzero(step_rank == owners.rank[tasks[0]])
        busy = int(within(union(timeline.start[tasks], timeline.end[tasks]), start[steps], end[steps]).sum())
        idle = [split(timeline, causes, here, int(start[i]), int(end[i])).by_cause() for i in steps]
        window = int((end[steps] - start[steps]).sum()) or 1
        owned = int(counted[tasks].sum())
        launched = queue_steps(timeline, owners, int(owners.rank[tasks[0]]), int(stream))
        queue = queue_during(*launched, int(start[steps[0]]), int(end[steps[-1]])) if len(steps) else QueueLength(None, None)
        rows.append(StreamRow(processor.rank, processor.name, owned, busy, busy / window, Idle(*_sums(idle, 4)), queue))
    return tuple(sorted(rows, key=lambda r: (r.rank, -r.busy_ns)))


def by_rank(timeline: Timeline, owners: Members) -> tuple[RankRow, ...]:
    """Each rank's steps together, those that count."""
    times = step_times(timeline, owners)
    start, end = times.job_intervals()
    step_rank = np.where(times.rank_steps_counted(), owners.step_rank(), -1)
    interval = start, end
    parts, idle = four_way(timeline, owners, interval), device_idle(timeline, owners, interval)
    rows = []
    for position, rank in enumerate(timeline.graph.ranks):
        steps = np.flatnonzero(step_rank == position).tolist()
        known = [split_idle for i in steps if (split_idle := idle[i]) is not None]
        rows.append(
            RankRow(
                rank,
                len(steps),
                int((end[steps] - start[steps]).sum()),
                FourWay(*_sums([parts[i] for i in steps], 4)),
                Idle(*_sums(known, 4)) if known else None,
            )
        )
    return tuple(rows)


def _sums(rows: Sequence[tuple[int, ...]], width: int) -> list[int]:
    return [sum(row[i] for row in rows) for i in range(width)]


def _names(job: Job, owners: Members, row: Int64) -> tuple[list[str], Int64]:
    """The names of rows of the traces, int64[n] by task: the distinct names of all ranks, and each task's index into them. Index 0 is
    "(none)", for tasks without a row."""
    labels = {"(none)": 0}
    out = np.zeros(len(row), np.int64)
    for position, trace in enumerate(job.traces):
        tasks = np.flatnonzero((owners.rank == position) & (row >= 0))
        names, inverse = np.unique(trace.name[row[tasks]], return_inverse=True)
        of_name = [labels.setdefault(trace.strings[int(i)], len(labels)) for i in names]
        out[tasks] = np.array(of_name, np.int64)[inverse]
    return list(labels), out


def _totals(timeline: Timeline, label: Int64, tasks: NDArray[np.bool_], size: int) -> tuple[Int64, Int64]:
    """Number and time of the tasks of each label."""
    chosen = np.flatnonzero(tasks)
    time = np.zeros(size, np.int64)
    np.add.at(time, label[chosen], timeline.end[chosen] - timeline.start[chosen])
    return np.bincount(label[chosen], minlength=size), time


class ClassTimes(NamedTuple):
    """The mean step. labels: the classes that take time. time_ns: int64[ranks, labels], work without waiting for peers.
    waiting_ns: int64[ranks], waiting in collectives for the last rank."""

    labels: tuple[str, ...]
    time_ns: Int64
    waiting_ns: Int64


def class_times(timeline: Timeline, owners: Members, job: Job | None = None) -> ClassTimes:
    """The mean step of the job, over those that count, by rank and class, the classes that take most time first. job: as for `work`."""
    graph, classes = timeline.graph, equal_work(timeline.graph, owners, job)
    began = waiting(timeline).began
    times = step_times(timeline, owners)
    tasks = np.flatnonzero(times.tasks_counted() & (graph.kind != Kind.RETURN))
    shape = len(graph.ranks), len(classes.labels)
    time, waited = np.zeros(shape, np.int64), np.zeros(shape[0], np.int64)
    np.add.at(time, (owners.rank[tasks], classes.label[tasks]), timeline.end[tasks] - began[tasks])
    np.add.at(waited, owners.rank[tasks], began[tasks] - timeline.start[tasks])
    steps = max(len(times.counted), 1)
    order = [i for i in np.argsort(-time.sum(axis=0), kind="stable").tolist() if time[:, i].any()]
    return ClassTimes(tuple(classes.labels[i] for i in order), time[:, order] // steps, waited // steps)
