"""Several windows of one run in one folder, of which one is the job.

A profiler with a repeating schedule writes a file of every rank for every window. Files of one rank are windows of one run where the
same process recorded other steps in each, as their `ProfilerStep#…` say. Otherwise they may be of different runs or ranks, and are
refused.
"""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.trace.operations import is_operations
from lumos.trace.table import Category, unique
from lumos.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.trace.table import Trace

#: How torch.profiler names the range of one step.
_MARK = re.compile(r"ProfilerStep#\d+")


class _Marks(NamedTuple):
    """The steps that a trace recorded, ascending, and the processes that it marks them in."""

    steps: tuple[int, ...]
    processes: frozenset[str]


def one_window(traces: Sequence[Trace]) -> tuple[list[Trace], tuple[Diagnostic, ...]]:
    """The traces of the newest complete window, ascending by rank, and a diagnostic where others are left out.

    A window is complete if all ranks recorded it, with as many steps as any window has. Raises TraceError where two traces of one
    rank are no windows of one run, and where no window is complete.
    """
    of_rank: dict[int, list[Trace]] = {}
    for trace in sorted(traces, key=lambda trace: trace.rank):
        of_rank.setdefault(trace.rank, []).append(trace)
    if len(of_rank) == len(traces):
        return [trace for (trace,) in of_rank.values()], ()
    marks = {id(trace): _marks(trace) for trace in traces}
    for of_one in of_rank.values():
        for one, other in combinations(of_one, 2):
            if not _are_windows(marks[id(one)], marks[id(other)]):
                raise TraceError(_both_of_one_rank(one, other))
    windows: dict[tuple[int, ...], list[Trace]] = {}
    for of_one in of_rank.values():
        for trace in of_one:
            windows.setdefault(marks[id(trace)].steps, []).append(trace)
    newest, held = _newest(windows, len(of_rank))
    message = f"{held}; {_steps(newest)} are read, the newest that all ranks recorded in full; for others, name their files"
    return windows[newest], (Diagnostic("windows-left-out", message),)


def _newest(windows: Mapping[tuple[int, ...], Sequence[Trace]], ranks: int) -> tuple[tuple[int, ...], str]:
    """The newest complete window, and all windows in words. Raises TraceError where none is complete."""
    files = [trace for of_window in windows.values() for trace in of_window]
    short = {steps: f" of only {count(len(of), 'rank')}" for steps, of in windows.items() if len(of) < ranks}
    described = "; ".join(_steps(steps) + short.get(steps, "") for steps in sorted(windows))
    files_said = f"{count(len(files), 'file')} of {count(ranks, 'rank')}, the first {files[0].path}"
    held = f"{files_said}, hold {count(len(windows), 'window')} ({described})"
    longest = max(map(len, windows))
    complete = [steps for steps, of_window in windows.items() if len(of_window) == ranks and len(steps) == longest]
    if not complete:
        raise TraceError(f"{held}, none of which all ranks recorded in full; name one file of every rank")
    return max(complete), held


def unmarked(trace: Trace) -> tuple[Diagnostic, ...]:
    """The finding that numbers of steps are left out between those that a trace marks."""
    steps = _marks(trace).steps
    lost = next((step + 1 for step, after in pairwise(steps) if after > step + 1), None)
    if lost is None or is_operations(trace):
        return ()
    lacks = f"{_steps(steps)} lack {count(steps[-1] - steps[0] + 1 - len(steps), 'mark')}, the first that of step {lost}"
    return (Diagnostic("step-unmarked", f"rank {trace.rank}: {lacks}: that work is in no step, and only the longest run of steps counts"),)


def _marks(trace: Trace) -> _Marks:
    rows = np.flatnonzero(trace.named(_MARK.fullmatch) & (trace.category != Category.GPU_ANNOTATION))
    steps = sorted(int(trace.strings[i].partition("#")[2]) for i in trace.names_of(rows)) if len(rows) else []
    return _Marks(tuple(steps), frozenset(trace.lanes[lane].pid for lane in unique(trace.lane[rows]).tolist()))


def _are_windows(one: _Marks, other: _Marks) -> bool:
    """Whether one process recorded both, the steps of one before those of the other."""
    if not one.steps or not other.steps or one.processes != other.processes:
        return False
    return one.steps[-1] < other.steps[0] or other.steps[-1] < one.steps[0]


def _steps(steps: tuple[int, ...]) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"


def _both_of_one_rank(one: Trace, other: Trace) -> str:
    """The message that refuses two files of one rank. Renaming is no remedy where distributedInfo gives a file's rank."""
    sources = (one.rank_source, other.rank_source)
    both = f"{one.path} and {other.path} are both of rank {one.rank} (from: {', '.join(sources)}); name the one to read, or "
    if "distributedInfo" in sources:
        return both + "correct the rank in distributedInfo of the file that is of another (it wins over the file's name)"
    return both + "give each rank's number in its file name (rank0.json)"
