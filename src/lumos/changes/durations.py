"""Changes of durations alone: the same tasks and dependencies, with some tasks faster, slower or taking no time.

A pattern is a shell glob over the names of tasks: kernels, copies and collectives on the device, operators and runtime
calls on the CPU. A word that is no task's whole name stands for all names that contain it. `cpu:GLOB` and `device:GLOB` restrict
it to one side. `operator:GLOB` means everything that operators (or annotated ranges) of that name do (`changes.ranges`). `rankN:`
before any of these keeps to one rank. The functions compose: each takes a graph and returns one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import translate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.spans import launches
from lumos.analyze.loop.steps import members
from lumos.analyze.ranks.equal_work import Like, durations_like
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.certainty.possible import check_left
from lumos.changes.ranges import inside
from lumos.characters import is_whole
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.concatenate import waits_elsewhere
from lumos.graph.table import Graph, Kind
from lumos.simulation.durations import Mask, scale, slow_rank, with_durations
from lumos.units import duration as in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lumos.trace.table import Int32, Int64, Job

_SIDES = ("cpu", "device", "operator")
_RANK = re.compile(r"rank(\d+):")
#: What has no sign of a pattern.
_WORD = re.compile(r"[^*?\[\]]+")
#: A pattern that matches less than this share of what operators and ranges of its name do probably meant all of it.
SMALL = 0.1
#: How many names, those with the most time, are compared with a pattern that matches nothing.
_MOST_NAMES = 2000


class Scale(NamedTuple):
    """Multiply the durations of the tasks that match by `factor` ≥ 0. like: give them the time of equal work elsewhere instead."""

    glob: str
    factor: float
    like: Like | None = None

    @property
    def value(self) -> str:
        """What the tasks take, as the command line has it."""
        return str(self.like or in_full(self.factor))


class MadeFrom(NamedTuple):
    """What a changed graph was made of. graph, job: the recording. source: the task of it that each task is a copy of, -1 for none."""

    graph: Graph
    job: Job
    source: Int64


class Durations(NamedTuple):
    """Changes of durations, applied in this order: times of equal work, drops, fusions, factors, slow ranks (rank and factor)."""

    scales: tuple[Scale, ...] = ()
    drops: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()

    @classmethod
    def parse(cls, scales: Iterable[str], drops: Iterable[str], fused: Iterable[str], slow: Iterable[str]) -> Durations:
        """From the words of the command line. Raises UsageError for a malformed one."""
        return cls(tuple(map(parse_scale, scales)), tuple(drops), tuple(fused), tuple(map(parse_slowdown, slow)))

    def apply(self, graph: Graph, job: Job, made_of: MadeFrom | None = None) -> Graph:
        """The changed graph. Patterns are matched against `graph` before any change. job: the traces from which it was built.

        made_of: the recording that `graph` was made of: what operators did is looked up there.

        Raises LumosError where a pattern matches nothing, and where a rank would have next to no work left.
        """
        before = graph
        masks = {glob: matching(graph, job, glob, made_of) for glob in (*self.drops, *self.fused, *(s.glob for s in self.scales))}
        for s in self.scales:
            if s.like:
                graph = with_durations(graph, np.where(masks[s.glob], durations_like(before, job, s.like), graph.duration))
        for glob in self.drops:
            graph = drop(graph, masks[glob])
        if self.fused:
            measured, _, source = made_of or MadeFrom(graph, job, np.arange(len(graph)))
            step = np.where(source >= 0, members(measured).step[source], -1)
            for glob in self.fused:
                graph = fuse(graph, masks[glob], step)
        for s in self.scales:
            graph = graph if s.like else scale(graph, masks[s.glob], s.factor)
        for rank, factor in self.slow:
            graph = slow_rank(graph, rank, factor)
        check_left(before, graph, ", ".join(self.described()))
        return graph

    def beside(self, other: Durations) -> Durations:
        """These changes and others."""
        return Durations(self.scales + other.scales, self.drops + other.drops, self.fused + other.fused, self.slow + other.slow)

    def described(self) -> tuple[str, ...]:
        """Each change in words."""
        return (
            *(f"drop {glob}" for glob in self.drops),
            *(f"fuse {glob}" for glob in self.fused),
            *(f"{s.glob} as long as {s.like.words}" if s.like else f"scale {s.glob} by {s.factor:g}" for s in self.scales),
            *(f"rank {rank} slower by {factor:g}" for rank, factor in self.slow),
        )


def parse_scale(text: str) -> Scale:
    """Parse GLOB=FACTOR, or GLOB= and a word of `Like`. Raises UsageError where FACTOR is neither of these nor a number ≥ 0."""
    glob, equals, factor = text.rpartition("=")
    if not equals or not glob:
        raise UsageError(f"--scale {text!r}: write GLOB=FACTOR, for instance '*nccl*=0.5'")
    if factor in tuple(Like):
        return Scale(glob, 1.0, Like(factor))
    return Scale(glob, number(factor, f"--scale {text!r}"))


def parse_slowdown(text: str) -> tuple[int, float]:
    """Parse RANK=FACTOR into both. Raises UsageError where FACTOR is not a number above 0."""
    rank, equals, factor = text.partition("=")
    if not equals or not is_whole(rank.strip()):
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


def in_full(factor: float) -> str:
    """A factor to its last digit, without the .0 of whole ones."""
    return f"{float(factor)!r}".removesuffix(".0")


def matching(graph: Graph, job: Job, glob: str, made_of: MadeFrom | None = None) -> Mask:
    """The tasks that match a pattern, bool[n]. made_of: as in `Durations.apply`.

    Raises LumosError with the job's longest names where none does.
    """
    if of_rank := _RANK.match(glob):
        own: Mask = matching(graph, job, glob[of_rank.end() :], made_of) & (graph.rank_of_task == int(of_rank[1]))
        if not own.any():
            raise LumosError(f"no task of rank {of_rank[1]} matches {glob!r}; the job has ranks {', '.join(map(str, graph.ranks))}")
        return own
    side, pattern = _parts(glob)
    matches = re.compile(translate(pattern)).match
    mask: Mask
    if side == "operator":
        measured, recorded, source = made_of or MadeFrom(graph, job, np.arange(len(graph)))
        mask = inside(measured, recorded, matches)[source] & (source >= 0)
    else:  # match every name once; a million tasks then only look up theirs
        mask = graph.named(matches)
        if not mask.any() and not side and inside(graph, job, matches).any():
            raise LumosError(f"no task matches {glob!r} by its own name, but what ranges of that name do: write 'operator:{glob}'")
        if not mask.any() and _WORD.fullmatch(pattern):
            mask = graph.named(re.compile(translate(f"*{pattern}*")).match)
        if side:
            mask &= graph.on_device == (side == "device")
    if not mask.any():
        raise LumosError(f"no task matches {glob!r}; {_near(graph, pattern) or _examples(graph, graph.on_device)}")
    return mask


def _parts(glob: str) -> tuple[str, str]:
    """The side of a pattern, "" for none, and the names that it is of."""
    side, colon, pattern = glob.partition(":")
    return (side, pattern) if colon and side in _SIDES else ("", glob)


def drop(graph: Graph, tasks: Mask) -> Graph:
    """The graph that leaves out `tasks`, with the calls that launch nothing else. Work of the CPU that waits for nothing, such as a launch
    call of work that stays, only takes no time: so a step that ended with it still does."""
    taken = tasks | _only_launch(graph, tasks)
    launch = launches(graph)
    gone = taken & (graph.on_device | waits_elsewhere(graph))
    gone[launch[(launch >= 0) & ~taken]] = False
    before = graph.left_out
    return replace(scale(graph, taken, 0.0), left_out=gone if before is None else gone | before)


def fuse(graph: Graph, tasks: Mask, step: Int32 | Int64) -> Graph:
    """The graph with every run of neighbouring `tasks` of one step on a stream as one kernel, launched once. step: int[n], the step that
    owns each task.

    The fused kernel lasts as long as the longest of the run's memory-bound kernels (they are assumed to read and write the same
    tensor, so that fusion keeps intermediate values in registers), or as all of its multiplications, convolutions and attention
    together, whichever is longer. Raises LumosError where no two neighbours match.
    """
    order = np.flatnonzero(graph.on_device)
    order = order[np.argsort(graph.processor[order], kind="stable")]
    joins = tasks[order] & (graph.kind[order] == Kind.KERNEL)
    follows = np.zeros(len(order), bool)
    follows[1:] = joins[1:] & joins[:-1] & (graph.processor[order[1:]] == graph.processor[order[:-1]]) & (np.diff(step[order]) == 0)
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


def meant_operators(graph: Graph, job: Job, durations: Durations) -> tuple[Diagnostic, ...]:
    """A hint for each pattern that matches next to nothing of what the operators and ranges of its name do."""
    out = []
    for glob in dict.fromkeys((*durations.drops, *(s.glob for s in durations.scales))):
        side, word = _parts(_RANK.sub("", glob, 1))
        if _WORD.fullmatch(word) and side != "operator" and word not in graph.names:
            out.append(Diagnostic("pattern-widened", f"no task is named {word!r}, so it stands for '*{word}*'"))
        if side:
            continue
        own = matching(graph, job, glob)
        all_of = inside(graph, job, re.compile(translate(glob)).match)
        alone, whole = int(graph.duration[own].sum()), int(graph.duration[own | all_of].sum())
        if alone < SMALL * whole:
            message = (
                f"{glob!r} matches {in_words(alone)} of work by its own name; operators and ranges of that name do {in_words(whole)}"
                f" with what is inside them and what they launch: 'operator:{glob}' changes all of it"
            )
            out.append(Diagnostic("operator-meant", message))
    return tuple(out)


def check_altered(graph: Graph, altered: Graph, job: Job, durations: Durations) -> None:
    """Raise LumosError where changes that ask for other durations left every task as it was, because those that match take no time and,
    where they are left out, wait for nothing."""
    if altered.left_out is not None and (altered.left_out & waits_elsewhere(graph)).any():
        return
    scaled = any(s.factor != 1 or s.like for s in durations.scales)
    asked = durations.drops or durations.fused or scaled or any(f != 1 for _, f in durations.slow)
    if not asked or not np.array_equal(graph.duration, altered.duration):
        return
    hints = "".join(f"; {hint.message}" for hint in meant_operators(graph, job, durations))
    raise LumosError(f"{', '.join(durations.described())}: no task changed, as those that match take no time{hints}")


def _near(graph: Graph, pattern: str) -> str:
    """The names that are most like a pattern, as a hint; "" where none is."""
    literal = max(re.split(r"[*?\[\]]", pattern), key=len).lower()
    total = np.bincount(graph.name, graph.duration, minlength=len(graph.names))
    names = [graph.names[i] for i in np.argsort(-total, kind="stable")[:_MOST_NAMES].tolist() if total[i]]
    near = [name for name in names if literal and literal in name.lower()]
    by_word = {word: name for name in reversed(names) for word in (name.lower(), *re.findall(r"\w+", name.lower()))}
    near = near or list(dict.fromkeys(by_word[word] for word in get_close_matches(literal, by_word, 3)))
    return f"names like it: {', '.join(repr(name[:60]) for name in near[:3])}" if near else ""


def _examples(graph: Graph, on_device: Mask) -> str:
    """The names that take the most time, as a hint."""
    candidates = np.flatnonzero(on_device) if on_device.any() else np.flatnonzero(graph.kind == Kind.OPERATOR)
    total = np.bincount(graph.name[candidates], graph.duration[candidates], minlength=len(graph.names))
    longest: Sequence[str] = [graph.names[i] for i in np.argsort(-total)[:3].tolist() if total[i] > 0]
    return f"most time goes to {', '.join(repr(name[:60]) for name in longest)}"
