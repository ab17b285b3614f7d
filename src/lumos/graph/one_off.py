"""Time that a job takes once and not in every step: starting the driver, loading code onto the device, compiling, and trying out kernels.

*Starting*: the first call that needs the driver starts it, and the first calls of a library its part of it (the CUDA C++ Programming Guide,
"Initialization": the runtime starts when one of its functions is first called). A runtime call that launches, copies and awaits nothing is
starting if it is the first of its name in the recording, takes STARTS, and no device work is outstanding that it could wait for; what the
median later call of its name takes is left to it.

*Loading*: a driver that loads modules lazily does so in the launch call that first needs a kernel. Such a call takes milliseconds to
seconds; a later launch of the kernel does not. A call that launches the first kernel of its name in the recording is loading beyond
the usual time of a launch, where it takes both LONG and TIMES the usual time, without what it waited for a place in the queue. Calls
that load modules by name are loading throughout.

*Compilation*: ranges that torch's compiler leaves while it compiles, with all that they run. They are named "… (dynamo_timed)", such as
"_compile.compile_inner (dynamo_timed)". A recording with Python functions has those of Dynamo and Triton that compile. A job of several
marked steps that compiles in each of them does not do so once, and keeps it.

*Autotuning*: ranges whose names say so (Inductor's and Triton's, MIOpen's search), with all that they run. A library that searches
inside an operator without a range of its own (cuDNN's benchmark mode) is not recognised.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.graph.launches import of_graph_launches
from lumos.graph.places import steps
from lumos.graph.table import ONCE, Kind, OneOff
from lumos.intervals import covered, union, within
from lumos.trace.table import Category, excluding, unique
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.graph.host import HostPlan, HostTasks
    from lumos.graph.launches import DeviceWork
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Trace

#: A launch call that loads its kernel takes at least this time (ns) …
LONG = 100_000
#: … and this many times the median launch call of its rank.
TIMES = 20

#: A call that starts the driver takes at least this time (ns). To make a context takes some 100 ms on current systems, and calls that
#: only allocate or ask for something at most a few ms (public traces).
STARTS = 10_000_000

#: Runtime calls that load code.
_LOADS = re.compile(r"(cu|cuda|hip)(Module|Library)(Load|GetFunction|GetKernel|GetModule|EnumerateKernels)\w*")

#: Ranges in which kernels are tried out.
_TUNES = re.compile(r"(?i)auto_?tun(e|ing)|benchmark_all_configs|miopen\w*find\w*conv|find_?best_?(config|algorithm)")

#: Ranges in which torch compiles (torch 2.13: `dynamo_timed` in torch/_dynamo/utils.py; in 2.0 it was the decorator of the same functions).
#: One range of that kind is no compilation: with guard collectives, ranks ask each other in every step whether to compile. Inductor's call
#: of Triton's compiler, and Triton's of its own, leave Python functions.
_COMPILES = re.compile(
    r"(?!guard_collective ).*\(dynamo_timed\)|.*torch/_dynamo/convert_frame\.py\(\d+\): (_compile|compile_inner)"
    r"|.*triton/compiler/compiler\.py\(\d+\): compile"
)


class _Part(NamedTuple):
    """Tasks, and how much of each is of one cause, ns."""

    task: Int64
    time: Int64


def one_off(trace: Trace, planned: HostPlan, tasks: HostTasks, work: DeviceWork) -> tuple[OneOff | None, list[Diagnostic]]:
    """The time of a rank's tasks that no later step takes, and what is said of it; None where there is none."""
    tuning = _inside(trace, _ranges(trace, _TUNES.search), tasks, work)
    compiling = _without(_inside(trace, _compiling(trace), tasks, work), tuning.task)
    taken = np.concatenate((tuning.task, compiling.task))
    loading = _without(_loading(trace, planned, tasks, work), taken)
    starting = _starting(trace, tasks, work, np.concatenate((taken, loading.task)))
    parts = (starting, loading, compiling, tuning)  # in the order of ONCE
    words = ("starting the driver and its libraries", "loading of code onto the device", "compiling", "trying out kernels")
    notes = [_said(trace, code, what, part, tasks, work) for code, what, part in zip(ONCE, words, parts, strict=True)]
    task, time = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not time.sum():
        return None, []
    whole = np.concatenate((tasks.duration, work.end - work.start))[task]
    cause = np.repeat(np.arange(len(ONCE), dtype=np.int8), [len(part.task) for part in parts])
    return OneOff(task.astype(np.int32), time / np.maximum(whole, 1), cause), [d for d in notes if d is not None]


def recurring(graph: Graph) -> Graph:
    """The graph without the time that is taken once; the same graph where there is none. What begins at a time of the recording that no
    dependency explains begins earlier by as much as its rank's threads took before, once. That is read from the recorded times, also where
    the graph has other durations; where it has other times of that kind, the same share of them is left."""
    if graph.one_off is None:
        return graph
    durations = graph.duration.copy()
    durations[graph.one_off.task] = np.rint(durations[graph.one_off.task] * (1 - graph.one_off.share)).astype(np.int64)
    if graph.measured_start is None or graph.measured_end is None:
        return replace(graph, duration=durations, one_off=None)
    rank, release, recorded = graph.rank_of_task, graph.release_time.copy(), graph.measured_start[graph.release_task]
    host = ~graph.on_device[graph.one_off.task]
    task, share = graph.one_off.task[host], graph.one_off.share[host]
    start, lasted = graph.measured_start[task], graph.measured_end[task] - graph.measured_start[task]
    for rank_number in unique(rank[task]).tolist():
        own, of_rank = rank[task] == rank_number, rank[graph.release_task] == rank_number
        once = union(start[own], start[own] + np.rint(share[own] * lasted[own]).astype(np.int64))
        gone = covered(once, recorded[of_rank]) / np.maximum(recorded[of_rank], 1)
        release[of_rank] = np.rint(release[of_rank] * (1 - gone)).astype(np.int64)
    return replace(graph, duration=durations, release_time=release, one_off=None)


def _loading(trace: Trace, planned: HostPlan, tasks: HostTasks, work: DeviceWork) -> _Part:
    by_name = np.flatnonzero((tasks.kind == Kind.RUNTIME) & (tasks.row >= 0))
    by_name = by_name[trace.named(_LOADS.fullmatch)[tasks.row[by_name]]]
    launches = np.flatnonzero((work.call >= 0) & (trace.category[work.row] == Category.KERNEL) & ~of_graph_launches(trace, work))
    first = launches[np.lexsort((trace.start[work.call[launches]], trace.name[work.row[launches]]))]
    first = first[np.append(True, np.diff(trace.name[work.row[first]]) != 0)[: len(first)]]
    calls = unique(tasks.of_slice[planned.last_of_row[work.call[first]]])
    every = tasks.duration[tasks.kind == Kind.LAUNCH]
    usual = int(np.median(every)) if len(every) else 0
    calls = calls[tasks.duration[calls] >= max(LONG, TIMES * usual)]
    task = np.concatenate((by_name, calls))
    return _Part(task, np.concatenate((tasks.duration[by_name], tasks.duration[calls] - usual)))


def _without(part: _Part, taken: Int64) -> _Part:
    """The part less the tasks that are of another cause already."""
    fresh = ~np.isin(part.task, taken)
    return _Part(part.task[fresh], part.time[fresh])


def _starting(trace: Trace, tasks: HostTasks, work: DeviceWork, taken: Int64) -> _Part:
    calls = np.flatnonzero((tasks.kind == Kind.RUNTIME) & (tasks.row >= 0))
    name = trace.name[tasks.row[calls]]
    started: list[tuple[int, int]] = []
    for task in excluding(calls[tasks.duration[calls] >= STARTS], taken).tolist():
        same = calls[name == trace.name[tasks.row[task]]]
        outstanding = (work.issued < tasks.end[task]) & (work.end > tasks.start[task])
        if tasks.start[task] == tasks.start[same].min() and not outstanding.any():
            later = tasks.duration[same[same != task]]
            started.append((task, max(int(tasks.duration[task]) - (int(np.median(later)) if len(later) else 0), 0)))
    columns = np.array(started, np.int64).reshape(-1, 2)
    return _Part(columns[:, 0], columns[:, 1])


def _ranges(trace: Trace, matches: Callable[[str], object]) -> Int64:
    """The rows of operators, ranges and Python functions whose names match."""
    return np.flatnonzero(trace.named(matches) & trace.is_any(Category.OPERATOR, Category.ANNOTATION, Category.PYTHON))


def _compiling(trace: Trace) -> Int64:
    """The ranges in which torch compiles; none where there are some in each of several marked steps."""
    rows = _ranges(trace, _COMPILES.fullmatch)
    marks = steps(trace)
    step = np.searchsorted([mark.start for mark in marks], trace.start[rows], "right")
    return rows[:0] if len(marks) > 2 and len(unique(step[step > 0])) == len(marks) else rows


def _inside(trace: Trace, ranges: Int64, tasks: HostTasks, work: DeviceWork) -> _Part:
    """All tasks inside the ranges, and the device work that they launch."""
    inside = np.zeros(len(tasks), bool)
    for lane in unique(trace.lane[ranges]):
        rows = ranges[trace.lane[ranges] == lane]
        own = np.flatnonzero(tasks.lane == lane)
        spans = union(trace.start[rows], trace.start[rows] + trace.duration[rows])
        length = tasks.end[own] - tasks.start[own]
        inside[own] = (length > 0) & (2 * within(spans, tasks.start[own], tasks.end[own]) > length)
    host = np.flatnonzero(inside)
    launched = np.flatnonzero((work.call >= 0) & np.isin(work.call, tasks.row[host]))
    return _Part(np.concatenate((host, len(tasks) + launched)), np.concatenate((tasks.duration[host], (work.end - work.start)[launched])))


def _said(trace: Trace, code: str, what: str, part: _Part, tasks: HostTasks, work: DeviceWork) -> Diagnostic | None:
    if not part.time.sum():
        return None
    worst = int(part.task[np.argmax(part.time)])
    start = np.concatenate((tasks.start, work.start))
    row = np.concatenate((tasks.row, work.row))[worst]
    name = trace.strings[trace.name[row]] if row >= 0 else "time between operators"
    at = int(start[worst] - start.min())
    message = (
        f"rank {trace.rank}: {what} takes {duration(int(part.time.sum()))} in {count(len(part.task), 'piece')} of work, most of it"
        f" {duration(at)} after the first work, in {name}; it happens once, so what-ifs leave it out"
    )
    return Diagnostic(code, message)
