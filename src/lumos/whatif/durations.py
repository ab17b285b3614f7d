"""Changes of durations alone: the same tasks and dependencies, with some tasks faster, slower or taking no time.

A pattern is a shell glob over the names of tasks: kernels, copies and collectives on the device, operators and runtime
calls on the CPU. `cpu:GLOB` and `device:GLOB` restrict it to one side. `operator:GLOB` means everything that operators (or
annotated ranges) of that name do: their time on the CPU, that of the operators and calls inside them, and the device work that
they launch. The functions compose: each takes a graph and returns one.
"""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.loop.spans import launches
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.simulate.durations import Mask, scale, slow_rank, with_durations
from lumos.trace.table import ABSENT, Category, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_SIDES = ("cpu", "device", "operator")


class Scale(NamedTuple):
    """Multiply the durations of the tasks that match by `factor` ≥ 0."""

    glob: str
    factor: float


class Durations(NamedTuple):
    """Changes of durations, applied in this order: drops, fusions, scales, slow ranks (rank and factor)."""

    scales: tuple[Scale, ...] = ()
    drops: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()

    @classmethod
    def parse(cls, scales: Iterable[str], drops: Iterable[str], fused: Iterable[str], slow: Iterable[str]) -> Durations:
        """From the words of the command line. Raises UsageError for a malformed one."""
        return cls(tuple(map(parse_scale, scales)), tuple(drops), tuple(fused), tuple(map(parse_slowdown, slow)))

    def apply(self, graph: Graph, job: Job) -> Graph:
        """The changed graph. Patterns are matched against `graph` before any change. job: the traces from which it was built."""
        masks = {glob: matching(graph, job, glob) for glob in (*self.drops, *self.fused, *(s.glob for s in self.scales))}
        for glob in self.drops:
            graph = drop(graph, masks[glob])
        for glob in self.fused:
            graph = fuse(graph, masks[glob])
        for s in self.scales:
            graph = scale(graph, masks[s.glob], s.factor)
        for rank, factor in self.slow:
            graph = slow_rank(graph, rank, factor)
        return graph

    def described(self) -> tuple[str, ...]:
        """Each change in words."""
        return (
            *(f"drop {glob}" for glob in self.drops),
            *(f"fuse {glob}" for glob in self.fused),
            *(f"scale {s.glob} by {s.factor:g}" for s in self.scales),
            *(f"rank {rank} slower by {factor:g}" for rank, factor in self.slow),
        )


def parse_scale(text: str) -> Scale:
    """Parse GLOB=FACTOR. Raises UsageError where FACTOR is not a number ≥ 0."""
    glob, equals, factor = text.rpartition("=")
    if not equals or not glob:
        raise UsageError(f"--scale {text!r}: write GLOB=FACTOR, for instance '*nccl*=0.5'")
    return Scale(glob, number(factor, f"--scale {text!r}"))


def parse_slowdown(text: str) -> tuple[int, float]:
    """Parse RANK=FACTOR into both. Raises UsageError where FACTOR is not a number above 0."""
    rank, equals, factor = text.partition("=")
    if not equals or not rank.strip().isdigit():
        raise UsageError(f"--rank-slowdown {text!r}: write RANK=FACTOR, for instance 3=1.2")
    slower = number(factor, f"--rank-slowdown {text!r}")
    if not slower:
        raise UsageError(f"--rank-slowdown {text!r}: a rank takes some time; give a factor above 0, for instance {rank.strip()}=1.2")
    return int(rank), slower


def number(text: str, where: str) -> float:
    """Parse a finite number ≥ 0; a leading x is allowed (x2). Raises UsageError with `where` for anything else."""
    try:
        value = float(text.strip().removeprefix("x"))
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is not a number") from error
    if not 0 <= value < float("inf"):
        raise UsageError(f"{where}: a factor must be 0 or more, not {text}")
    return value


def matching(graph: Graph, job: Job, glob: str) -> Mask:
    """The tasks that match a pattern, bool[n]. Raises LumosError with the job's longest names where none does."""
    side, colon, pattern = glob.partition(":")
    if not colon or side not in _SIDES:
        side, pattern = "", glob
    matches = re.compile(translate(pattern)).match
    if side == "operator":
        mask = _inside(graph, job, matches)
    else:  # match every name once; a million tasks then only look up theirs
        mask = np.array([bool(matches(name)) for name in graph.names] or [False])[graph.name]
        if side:
            mask &= graph.on_device == (side == "device")
    if not mask.any():
        raise LumosError(f"no task matches {glob!r}; {_examples(graph, graph.on_device)}")
    return mask


def drop(graph: Graph, tasks: Mask) -> Graph:
    """The graph in which `tasks`, and the calls that launch nothing else, take no time."""
    return scale(graph, tasks | _only_launch(graph, tasks), 0.0)


def fuse(graph: Graph, tasks: Mask) -> Graph:
    """The graph with every run of neighbouring `tasks` on a stream as one kernel, launched once.

    The fused kernel lasts as long as the longest of the run's memory-bound kernels (they are assumed to read and write the same
    tensor, so that fusion keeps intermediate values in registers), or as all of its multiplications, convolutions and attention
    together, whichever is longer. Raises LumosError where no two neighbours match.
    """
    order = np.flatnonzero(graph.on_device)
    order = order[np.argsort(graph.processor[order], kind="stable")]
    joins = tasks[order] & (graph.kind[order] != Kind.COLLECTIVE)
    follows = np.zeros(len(order), bool)
    follows[1:] = joins[1:] & joins[:-1] & (graph.processor[order[1:]] == graph.processor[order[:-1]])
    if not follows.any():
        raise LumosError("--fuse: no two neighbouring kernels of a stream match; widen the pattern")
    run = np.cumsum(~follows) - 1
    fused = np.bincount(run, np.where(bound_by_arithmetic(graph)[order], graph.duration[order], 0)).astype(np.int64)
    np.maximum.at(fused, run, graph.duration[order])
    duration = graph.duration.copy()
    duration[order] = np.where(follows, 0, fused[run])
    removed = np.zeros(len(graph), bool)
    removed[order[follows]] = True
    duration[_only_launch(graph, removed)] = 0
    return with_durations(graph, duration)


def _only_launch(graph: Graph, tasks: Mask) -> Mask:
    """Launch calls of which all device work is in `tasks`."""
    launch = launches(graph)
    launched = launch >= 0
    chosen = np.bincount(launch[launched & tasks], minlength=len(graph))
    total = np.bincount(launch[launched], minlength=len(graph))
    only: Mask = (chosen > 0) & (chosen == total)
    return only


def _inside(graph: Graph, job: Job, matches: Callable[[str], object]) -> Mask:
    """Tasks inside operators whose name matches: CPU slices that began in one, and the device work that they launch."""
    mask = np.zeros(len(graph), bool)
    rank, on_device = graph.rank_of_task, graph.on_device
    for trace in job.traces:
        rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.ANNOTATION) & trace.named(matches))
        tasks = np.flatnonzero((rank == trace.rank) & ~on_device & (graph.event != ABSENT))
        events = graph.event[tasks].astype(np.int64)
        mask[tasks] = np.isin(events, rows) | (innermost(trace, rows, events) >= 0)
    launch = launches(graph)
    launched = launch >= 0
    mask[launched] |= mask[launch[launched]]
    return mask


def _examples(graph: Graph, on_device: Mask) -> str:
    """The names that take the most time, as a hint."""
    candidates = np.flatnonzero(on_device) if on_device.any() else np.flatnonzero(graph.kind == Kind.OPERATOR)
    total = np.bincount(graph.name[candidates], graph.duration[candidates], minlength=len(graph.names))
    longest: Sequence[str] = [graph.names[i] for i in np.argsort(-total)[:3].tolist() if total[i] > 0]
    return f"most time goes to {', '.join(repr(name[:60]) for name in longest)}"
