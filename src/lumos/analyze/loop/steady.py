"""What a loop takes for a step in the long run.

A recording shows a few steps, and a change that is simulated on it shows how the job moves from its old state to its new one: the queue
of launches fills or drains, and the CPU catches up or falls behind. So the steps that count are repeated in passes
(`analyze.loop.repeat`), and simulated until two successive passes agree within AGREE, or several together where a pass has fewer steps
than FEWEST; the mean period of the last is the answer. The last passes are left out where ranks meet in different ones, as the partners of
the last are not there. A job that does not settle within the bounds below says so, and its answer is the mean over the later half. Where
two passes would have too many tasks, a part of the steps that follow one another stands for all, the one that keeps the share of each kind
of step.

A recording without periods (`analyze.loop.steps`) is simulated as it is, and its step is the mean latency. Time that a job takes once, such
as to load code (`graph.one_off`), is in neither.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.repeat import Loop, repeated
from lumos.analyze.loop.steps import StepTimes, step_times, still_working
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.one_off import recurring
from lumos.simulation import freeze, simulate, sweep, sweep_groups, sweep_scaled
from lumos.simulation.durations import with_durations
from lumos.units import count
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int32, Int64

#: Successive periods that differ by less than this share are the same.
AGREE = 0.001
#: The fewest steps that are compared with those after them: a job may repeat itself over two or four steps, and a few equal periods in a
#: row do not hide that the next one differs.
FEWEST = 4
#: The most passes, in steps and in tasks.
MOST_STEPS, MOST_TASKS = 128, 8_000_000


@dataclass(frozen=True)
class Steady:
    """A job's step as its loop takes it in the long run.

    loop: the repeated steps or, without periods, the job itself. timeline: of `loop.graph`. basis: what the time of the step is. cycle: the
    names of the steps over which the time is the mean: those of the last passes or, without periods, those that count. settled: whether
    periods agree.
    """

    loop: Loop
    timeline: Timeline
    basis: Basis
    cycle: tuple[str, ...]
    settled: bool

    @cached_property
    def times(self) -> StepTimes:
        """The times of all steps of the loop."""
        return step_times(self.timeline, self.loop.owners)

    @cached_property
    def in_loop(self) -> NDArray[np.bool_]:
        """The threads and streams that have work with which a step is complete, bool[processors]."""
        graph = self.loop.graph
        return np.bincount(graph.processor[self.loop.owners.completes], minlength=len(graph.processors)) > 0

    @property
    def since_ns(self) -> int:
        """Where the first step of the cycle begins: when the step before was complete."""
        return self.times.named(self.cycle[0]).since_ns

    @property
    def completion_ns(self) -> int:
        """When the last step of the cycle was complete."""
        return self.times.named(self.cycle[-1]).completion_ns

    @property
    def step_time_ns(self) -> float:
        """The time of a step: the mean over the cycle."""
        if self.basis is Basis.PERIOD:
            return (self.completion_ns - self.since_ns) / len(self.cycle)
        return sum(self.times.named(name).length_ns for name in self.cycle) / len(self.cycle)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The times that the cycle covers, (begin, end) in ns: one stretch of steps or, without periods, each step by itself."""
        if self.basis is Basis.PERIOD:
            return ((self.since_ns, self.completion_ns),)
        return tuple((time.since_ns, time.completion_ns) for time in map(self.times.named, self.cycle))

    def of_rank(self, position: int) -> float:
        """The time of a step of one rank by its own completions: the mean over the cycle, ns; 0 where the rank has no part in it."""
        owners, wanted = self.loop.owners, set(self.cycle)
        parts = [part for step in owners.job if step.name in wanted for part in step.parts]
        ranks = owners.step_rank()
        return sum(self.times.ranks[part].length_ns for part in parts if ranks[part] == position) / len(self.cycle)

    def findings(self, what: str) -> tuple[Diagnostic, ...]:
        """What is said of the loop: that successive passes do not agree, and that it holds a part of the steps. what: the job, in words."""
        message = (
            f"{what} does not settle: after {count(self.loop.passes, 'repetition')} of its steps, successive ones still differ by more"
            f" than {AGREE:.1%}; its time is the mean over the last {len(self.cycle)} steps"
        )
        return () if self.settled else (Diagnostic("step-not-settled", message),)


def looped_steps(owners: Members) -> tuple[int, ...]:
    """The positions in `owners.job` of the steps that a pass has: those that count or, where two passes of them would have more than
    MOST_TASKS tasks, the consecutive ones that best keep the share of each kind. GraphError where no step owns any work."""
    steps = owners.counted
    if not steps:
        raise GraphError("the job has no step that owns any work; record whole steps (ProfilerStep#… marks)")
    sizes = [sum(len(owners.tasks(part)) for part in owners.job[step].parts) for step in steps]
    number = len(steps)
    while number > 1 and 2 * max(sum(sizes[i : i + number]) for i in range(len(steps) - number + 1)) > MOST_TASKS:
        number -= 1
    if number == len(steps):
        return steps
    shares = Counter(owners.kinds[step] for step in steps)

    def strays(first: int) -> float:
        """How far the shares of the kinds in a part of the steps are from those in all."""
        part = Counter(owners.kinds[step] for step in steps[first : first + number])
        return sum(abs(part[kind] / number - of_all / len(steps)) for kind, of_all in shares.items())

    first = min(range(len(steps) - number + 1), key=strays)
    return steps[first : first + number]


def part_of_steps(owners: Members) -> tuple[Diagnostic, ...]:
    """The diagnostic that a part of the steps is repeated, as all would be too many; () where all are."""
    part, whole = len(looped_steps(owners)), len(owners.counted)
    message = f"{part} of the {count(whole, 'step')} that count are repeated, as all would have more than {MOST_TASKS:,} tasks"
    return (Diagnostic("steps-sampled", message),) if part < whole else ()


def steady(owners: Members, run: Callable[[Graph], Timeline] = simulate, *, repeat: bool | None = None) -> Steady:
    """The loop of a job, simulated until it settles.

    owners: of the job. run: how a graph is simulated. repeat: whether to repeat the steps that count, where that does not follow from the
    job's own periods. Raises GraphError where the graph has no schedule, or no step owns any work.
    """
    steps = looped_steps(owners)
    owners = replace(owners, graph=recurring(owners.graph))
    if not (owners.has_period if repeat is None else repeat):
        left = owners if owners.graph.left_out is None else still_working(owners, owners.graph)
        loop = Loop(owners.graph, left, np.arange(len(owners.graph)), len(owners.job), 1)
        return Steady(loop, run(loop.graph), Basis.LATENCY, tuple(owners.job[step].name for step in owners.counted), True)
    return _settling(owners, steps, run)


def altered(base: Steady, owners: Members) -> Steady:
    """The same for a job with the tasks and dependencies of the one that `base` is of, but other durations. owners: its members.

    Its steps are repeated as often as those of `base`, and more often only where it does not settle.
    """
    if base.basis is Basis.LATENCY:
        return steady(owners, repeat=False)
    owners = replace(owners, graph=recurring(owners.graph))
    return _settling(owners, looped_steps(owners), simulate, base.loop.altered(owners.graph))


class SweptLoop:
    """A job's loop with the order of its work fixed, for changes of durations of which the step alone is asked. base: the loop. holds:
    whether that order gives the base as it is simulated."""

    def __init__(self, base: Steady) -> None:
        self.base, self.loop, self.frozen = base, base.loop, freeze(base.loop.graph)
        self.holds = self.frozen.exact and np.array_equal(sweep(self.frozen).end, base.timeline.end)
        order = self.frozen.edges.order
        self._source, self._group = self.loop.source[order].astype(np.int32), _groups(self.loop)[order]
        self._shape = len(self.loop.owners.job), len(self.loop.graph.processors)
        self._most = _most_passes(self.loop.steps, len(order) // self.loop.passes)

    def step_time_ns(self, owners: Members) -> float:
        """The step that `altered` gives, ns. owners: of the job with other durations."""
        graph, step = recurring(owners.graph), None
        if self.holds and graph.left_out is None and np.array_equal(graph.lag, self.loop.graph.lag):
            step = self._step(*sweep_groups(self.frozen, graph.duration, self._source, self._group, self._shape[0] * self._shape[1]))
        return altered(self.base, owners).step_time_ns if step is None else step

    def scaled(self, group: NDArray[np.uint16], factors: NDArray[np.float64]) -> list[float | None]:
        """The step with each row of factors, as `simulation.sweep_scaled` takes them, ns; None where the loop does not settle with it."""
        ends = sweep_scaled(self.frozen, group, factors, self._group, self._shape[0] * self._shape[1])
        return [self._step(first, last) for first, last in zip(*ends, strict=True)]

    def _step(self, first: Int64, last: Int64) -> float | None:
        """The step with these earliest starts and latest ends of the groups of tasks, ns; None where more passes are to be tried."""
        begin, loop = first.reshape(self._shape).min(axis=1), self.loop
        ends = LoopEnds(int(begin[: loop.steps].min()), last.reshape(self._shape))
        if self.base.basis is Basis.LATENCY:
            chosen = np.isin([step.name for step in loop.owners.job], self.base.cycle)
            return float((ends.by_processor.max(axis=1) - begin)[chosen].mean())
        passes = _passes_of_cycle(settled(ends, loop), loop, self._most)
        return ends.step_time_ns(loop, passes) if passes else None


def _settling(owners: Members, steps: tuple[int, ...], run: Callable[[Graph], Timeline], loop: Loop | None = None) -> Steady:
    """The loop of some steps of a job, in so many passes or as many more as it needs to settle. loop: the first to try, if any."""
    most = _most_passes(len(steps), sum(len(owners.tasks(part)) for step in steps for part in owners.job[step].parts))
    loop = loop or repeated(owners, steps, min(2 * -(-FEWEST // len(steps)), most))
    while True:
        timeline = run(loop.graph)
        agrees = settled(_ends_of(timeline, loop), loop)
        if cycle := _passes_of_cycle(agrees, loop, most):
            whole = loop.owners.job[1 : loop.whole * loop.steps]  # the first step of all has no period
            return Steady(loop, timeline, Basis.PERIOD, tuple(step.name for step in whole[-cycle * loop.steps :]), agrees)
        loop = repeated(owners, steps, min(loop.passes + max(1, loop.passes // 2), most))


def _most_passes(steps: int, tasks: int) -> int:
    """How many passes of so many steps and tasks are tried at most."""
    return max(3, min(MOST_STEPS // steps, MOST_TASKS // max(tasks, 1)))


def _passes_of_cycle(agrees: bool, loop: Loop, most: int) -> int:
    """Over how many passes, the last that are whole, the step is the mean: those that agree or, where none do and no more than `most` may
    be tried, the later half. 0 where more are to be tried."""
    return compared(loop) if agrees else max(loop.whole // 2, 1) if loop.passes >= most else 0


def with_other_durations(base: Steady, durations: Int64) -> Steady:
    """The same loop and cycle with other durations. durations: int64, of the tasks of the job that the loop is of, ns."""
    return replace(base, timeline=simulate(with_durations(base.loop.graph, durations[base.loop.source])))


def compared(loop: Loop) -> int:
    """How many passes are compared with as many before them: those that have FEWEST steps, or as many as there are."""
    return max(1, min(-(-FEWEST // loop.steps), loop.whole // 2))


class LoopEnds(NamedTuple):
    """When the work of a loop ends with which its steps are complete. by_processor: the latest of each step of the job on each thread and
    stream, int64[steps, processors] ns, the smallest int64 for none. begin_ns: when the first of it in the first pass begins."""

    begin_ns: int
    by_processor: Int64

    def step_time_ns(self, loop: Loop, passes: int) -> float:
        """The mean period of the steps of the last so many passes that are whole, ns; the first step of all has none."""
        last = loop.whole * loop.steps - 1
        steps = min(passes * loop.steps, last)
        return int(self.by_processor[last].max() - self.by_processor[last - steps].max()) / steps


def _ends_of(timeline: Timeline, loop: Loop) -> LoopEnds:
    """The ends of a loop's steps in a timeline of it."""
    group, shape = _groups(loop), (len(loop.owners.job), len(loop.graph.processors))
    works = group >= 0
    end, first = np.full(shape[0] * shape[1], np.iinfo(np.int64).min), slice(len(group) // loop.passes)
    np.maximum.at(end, group[works], timeline.end[works])
    return LoopEnds(int(timeline.start[first][works[first]].min(initial=np.iinfo(np.int64).max)), end.reshape(shape))


def _groups(loop: Loop) -> Int32:
    """For each task with which a step is complete, the step of the job and the thread or stream, as one number; -1 for any other."""
    owners, processor = loop.owners, loop.graph.processor
    group: Int32 = owners.position.astype(np.int32)[owners.step] * np.int32(len(loop.graph.processors)) + processor
    return np.where(owners.completes, group, np.int32(-1))


def settled(ends: LoopEnds, loop: Loop) -> bool:
    """Whether the last passes that are whole take as long as those before them, the first of all from its own begin; passes that are
    compared together also where they are taken to end some steps earlier. Where a thread or stream takes longer for a pass than the loop
    does, it will come to set the pace, and the loop has not settled."""
    passes, whole = compared(loop), loop.whole * loop.steps
    steps, end = passes * loop.steps, np.append(ends.begin_ns, ends.by_processor[:whole].max(axis=1))
    at = whole - np.arange(FEWEST if passes > 1 else 1)
    if at[-1] < 2 * steps:
        return False
    last, before = end[at] - end[at - steps], end[at - steps] - end[at - 2 * steps]
    if (np.abs(last - before) > AGREE * np.maximum(before, 1)).any():
        return False
    # what the slowest takes, from the end of its last task before these passes to that in them
    by_pass = np.maximum(ends.by_processor, 0).reshape(loop.passes, loop.steps, -1).max(axis=1)
    return bool((by_pass[loop.whole - 1] - by_pass[loop.whole - 1 - passes]).max(initial=0) <= (1 + AGREE) * last[0])
