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
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.repeat import Loop, repeated
from lumos.analyze.loop.steps import StepTimes, step_times, still_working
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.one_off import recurring
from lumos.simulation import simulate
from lumos.simulation.durations import with_durations
from lumos.units import count
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64

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
        out = []
        if not self.settled:
            passes = len(self.loop.owners.job) // self.loop.steps
            message = (
                f"{what} does not settle: after {count(passes, 'repetition')} of its steps, successive ones still differ by more than"
                f" {AGREE:.1%}; its time is the mean over the last {len(self.cycle)} steps"
            )
            out.append(Diagnostic("step-not-settled", message))
        return tuple(out)


def looped_steps(owners: Members) -> tuple[int, ...]:
    """The positions in `owners.job` of the steps that a pass has: those that count or, where two passes of them would have more than
    MOST_TASKS tasks, the consecutive ones that best keep the share of each kind. GraphError where no step owns any work."""
    steps = owners.counted
    if not steps:
        raise GraphError("the job has no step that owns any work; record whole steps (ProfilerStep#… marks)")
    sizes = [len(owners.of_job(step)) for step in steps]
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


def steady(owners: Members, run: Callable[[Graph], Timeline] = simulate, *, repeat: bool | None = None, passes: int = 2) -> Steady:
    """The loop of a job, simulated until it settles.

    owners: of the job. run: how a graph is simulated. repeat: whether to repeat the steps that count, where that does not follow from the
    job's own periods. passes: how many to try at least. Raises GraphError where the graph has no schedule, or no step owns any work.
    """
    steps = looped_steps(owners)
    owners = replace(owners, graph=recurring(owners.graph))
    if not (owners.has_period if repeat is None else repeat):
        left = owners if owners.graph.left_out is None else still_working(owners, owners.graph)
        loop = Loop(owners.graph, left, np.arange(len(owners.graph)), len(owners.job), 1)
        return Steady(loop, run(loop.graph), Basis.LATENCY, tuple(owners.job[step].name for step in owners.counted), True)
    return _settling(owners, steps, run, passes)


def altered(base: Steady, owners: Members) -> Steady:
    """The same for a job with the tasks and dependencies of the one that `base` is of, but other durations. owners: its members.

    Its steps are repeated as often as those of `base`, and more often only where it does not settle.
    """
    if base.basis is Basis.LATENCY:
        return steady(owners, repeat=False)
    loop = base.loop.altered(recurring(owners.graph))
    timeline = simulate(loop.graph)
    if settled(timeline, loop):
        return Steady(loop, timeline, Basis.PERIOD, _last(loop, compared(loop)), True)
    passes = len(loop.owners.job) // loop.steps
    return _settling(replace(owners, graph=recurring(owners.graph)), looped_steps(owners), simulate, _more(passes))


def _settling(owners: Members, steps: Sequence[int], run: Callable[[Graph], Timeline], passes: int) -> Steady:
    """The loop of some steps of a job, in so many passes or as many more as it needs to settle."""
    tasks = sum(len(owners.of_job(step)) for step in steps)
    most = max(3, min(MOST_STEPS // len(steps), MOST_TASKS // max(tasks, 1)))
    passes = min(max(passes, 2 * -(-FEWEST // len(steps))), most)
    while True:
        loop = repeated(owners, steps, passes)
        timeline = run(loop.graph)
        agrees = settled(timeline, loop)
        if agrees or passes >= most:
            return Steady(loop, timeline, Basis.PERIOD, _last(loop, compared(loop) if agrees else max(loop.whole // 2, 1)), agrees)
        passes = min(_more(passes), most)


def _more(passes: int) -> int:
    """How many passes to try where so many do not settle: one more, or half as many more."""
    return passes + max(1, passes // 2)


def _last(loop: Loop, passes: int) -> tuple[str, ...]:
    """The names of the steps of the last so many passes that are whole; the first step of all has no period."""
    return tuple(job_step.name for job_step in loop.owners.job[: loop.whole * loop.steps][1:][-passes * loop.steps :])


def with_other_durations(base: Steady, durations: Int64) -> Steady:
    """The same loop and cycle with other durations. durations: int64, of the tasks of the job that the loop is of, ns."""
    timeline = simulate(with_durations(base.loop.graph, durations[base.loop.source]))
    return replace(base, timeline=timeline)


def compared(loop: Loop) -> int:
    """How many passes are compared with as many before them: those that have FEWEST steps, or as many as there are."""
    return max(1, min(-(-FEWEST // loop.steps), loop.whole // 2))


def settled(timeline: Timeline, loop: Loop) -> bool:
    """Whether the last passes that are whole take as long as those before them, the first of all from its own begin; passes that are
    compared together also where they are taken to end some steps earlier. Where a thread or stream takes longer for a pass than the loop
    does, it will come to set the pace, and the loop has not settled."""
    every, passes = step_times(timeline, loop.owners).job, compared(loop)
    ends = [min(time.begin_ns for time in every[: loop.steps]), *(time.completion_ns for time in every[: loop.whole * loop.steps])]
    steps = passes * loop.steps
    at = len(ends) - 1 - np.arange(FEWEST if passes > 1 else 1)
    if at[-1] < 2 * steps:
        return False
    end = np.array(ends, np.int64)
    last, before = end[at] - end[at - steps], end[at - steps] - end[at - 2 * steps]
    if (np.abs(last - before) > AGREE * np.maximum(before, 1)).any():
        return False
    return bool(_slowest(timeline, loop, passes) <= (1 + AGREE) * last[0])


def _slowest(timeline: Timeline, loop: Loop, passes: int) -> int:
    """What the slowest thread or stream takes for the last so many passes, from the end of its last task before them to that in them."""
    graph, whole = loop.graph, loop.whole
    number = len(loop.owners.job) // loop.steps
    copy = np.arange(len(graph)) // (len(graph) // number)
    end = np.zeros((number, len(graph.processors)), np.int64)
    works = loop.owners.completes
    np.maximum.at(end, (copy[works], graph.processor[works]), timeline.end[works])
    return int((end[whole - 1] - end[whole - 1 - passes]).max(initial=0))
