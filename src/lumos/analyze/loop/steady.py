"""What a loop takes for a step in the long run.

A recording shows a few steps, and a change that is simulated on it shows how the job moves from its old state to its new one: the queue
of launches fills or drains, and the CPU catches up or falls behind. So the typical step is repeated (`analyze.loop.repeat`), and simulated
until successive periods agree within AGREE; that period is the answer. A job whose steps alternate is compared over a cycle of steps, up to
LONGEST_CYCLE of them. The last copies are left out where ranks meet in different steps, as the partners of the last are not there. A job
that does not settle within the bounds below says so, and its answer is the mean over the later half.

A recording without periods (`analyze.loop.steps`) is simulated as it is, and its step is the latency. Time that a job takes once, such as
to load code (`graph.one_off`), is in neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.repeat import Loop, repeated
from lumos.analyze.loop.steps import StepTimes, step_times
from lumos.diagnostics import Diagnostic
from lumos.graph.one_off import recurring
from lumos.simulate import simulate
from lumos.simulate.durations import with_durations
from lumos.simulate.timeline import Timeline, measured
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.analyze.loop.steps import Members
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: Successive periods that differ by less than this share are the same.
AGREE = 0.001
#: The most steps after which an alternating job repeats itself.
LONGEST_CYCLE = 4
#: The fewest copies of a step, and the most: in number, and in tasks.
FEWEST_COPIES, MOST_COPIES, MOST_TASKS = 6, 128, 8_000_000


@dataclass(frozen=True)
class Steady:
    """A job's step as its loop takes it in the long run.

    loop: the repeated step or, without periods, the job itself. timeline: of `loop.graph`. basis: what the time of the step is. cycle: the
    names of the last copies, over which the time is the mean; without periods, the name of the step. settled: whether periods agree.
    """

    loop: Loop
    timeline: Timeline
    basis: Basis
    cycle: tuple[str, ...]
    settled: bool

    @cached_property
    def times(self) -> StepTimes:
        """The times of all copies."""
        return step_times(self.timeline, self.loop.owners)

    @property
    def since_ns(self) -> int:
        """Where the first step of the cycle begins: when the copy before it was complete."""
        return self.times.named(self.cycle[0]).since_ns

    @property
    def completion_ns(self) -> int:
        """When the last step of the cycle was complete."""
        return self.times.named(self.cycle[-1]).completion_ns

    @property
    def step_time_ns(self) -> float:
        """The time of a step: the mean over the cycle."""
        return (self.completion_ns - self.since_ns) / len(self.cycle)

    def of_rank(self, position: int) -> float:
        """The time of a step of one rank by its own completions: the mean over the cycle, ns; 0 where the rank has no part in it."""
        owners, wanted = self.loop.owners, set(self.cycle)
        parts = [part for step in owners.job if step.name in wanted for part in step.parts]
        ranks = owners.step_rank()
        return sum(self.times.ranks[part].length_ns for part in parts if ranks[part] == position) / len(self.cycle)

    def findings(self, what: str) -> tuple[Diagnostic, ...]:
        """The diagnostic that successive steps do not agree; () where they do. what: the job, in words."""
        if self.settled:
            return ()
        copies = len(self.loop.owners.job)
        message = (
            f"{what} does not settle: after {copies} repetitions of its step, successive steps still differ by more than {AGREE:.1%};"
            f" its time is the mean over the last {len(self.cycle)}"
        )
        return (Diagnostic("step-not-settled", message),)


def typical_position(owners: Members, timeline: Timeline | None = None) -> int:
    """Position in `owners.job` of the typical step: as measured or, for a job that never was, in `timeline`, which is simulated here
    if it is not given. GraphError where no step owns any work."""
    graph = owners.graph
    run = measured(graph) if graph.measured_start is not None else timeline or simulate(graph)
    name = step_times(run, owners).typical.name
    return next(i for i, step in enumerate(owners.job) if step.name == name)


def steady(owners: Members, step: int, run: Callable[[Graph], Timeline] = simulate, *, repeat: bool | None = None) -> Steady:
    """The loop of a job's step, simulated until it settles.

    owners: of the job. step: position in `owners.job`. run: how a graph is simulated. repeat: whether to repeat the step,
    where that does not follow from the job's own periods. Raises GraphError where the graph has no schedule.
    """
    owners = replace(owners, graph=recurring(owners.graph))
    if not (owners.has_period if repeat is None else repeat):
        graph = owners.graph
        loop = Loop(graph, owners, np.arange(len(graph)), len(owners.job))
        return Steady(loop, run(graph), Basis.LATENCY, (owners.job[step].name,), True)
    copies = first_copies(owners, step)
    while True:
        loop = repeated(owners, step, copies)
        timeline = run(loop.graph)
        cycle = settled_cycle(timeline, loop)
        if cycle or 2 * copies > most_copies(owners, step):
            return Steady(loop, timeline, Basis.PERIOD, _last(loop, cycle or max(copies // 2, 1)), cycle > 0)
        copies *= 2


def altered(base: Steady, owners: Members, step: int) -> Steady:
    """The same for a job with the tasks and dependencies of the one that `base` is of, but other durations. owners: its members.

    Its step is repeated as often as that of `base`, and more often only where it does not settle.
    """
    if base.basis is Basis.LATENCY:
        return steady(owners, step, repeat=False)
    loop = base.loop.altered(recurring(owners.graph))
    timeline = simulate(loop.graph)
    cycle = settled_cycle(timeline, loop)
    if cycle:
        return Steady(loop, timeline, Basis.PERIOD, _last(loop, cycle), True)
    return steady(owners, step, repeat=True)


def _last(loop: Loop, count: int) -> tuple[str, ...]:
    """The names of the last so many copies that are whole; the first copy has no period."""
    return tuple(each.name for each in loop.owners.job[: loop.whole][1:][-count:])


def with_other_durations(base: Steady, durations: Int64) -> Steady:
    """The same loop and cycle with other durations. durations: int64, of the tasks of the job that the loop is of, ns."""
    timeline = simulate(with_durations(base.loop.graph, durations[base.loop.source]))
    return replace(base, timeline=timeline)


def first_copies(owners: Members, step: int) -> int:
    """How often to repeat a step at first: often enough to fill the queue of launches twice, and to compare a few steps then."""
    graph, depth = owners.graph, owners.graph.queue_depth
    fill = 0
    if depth is not None and depth.any():
        for part in owners.job[step].parts:
            tasks = owners.tasks(part)
            launched = int((owners.launch[tasks] >= 0).sum())
            limit = int(depth[graph.ranks.index(owners.steps[part].rank)])
            fill = max(fill, -(-2 * limit // launched) if launched and limit else 0)
    return max(FEWEST_COPIES, min(FEWEST_COPIES + fill, most_copies(owners, step)))


def most_copies(owners: Members, step: int) -> int:
    """The most copies of a step within the bounds on their number and on tasks."""
    tasks = sum(len(owners.tasks(part)) for part in owners.job[step].parts)
    return max(FEWEST_COPIES, min(MOST_COPIES, MOST_TASKS // max(tasks, 1)))


def settled_cycle(timeline: Timeline, loop: Loop) -> int:
    """After how many copies the loop repeats itself, judged by the last ones: 1 where all last periods agree; 0 where none do.

    Every cycle is compared with the one before it, also as they were up to LONGEST_CYCLE - 1 copies earlier: a few equal periods in a row
    do not hide that the next one differs. Where a thread or stream takes longer for a cycle than the loop does, it will come to set the
    pace, and the loop has not settled.
    """
    completion = np.array([step.completion_ns for step in step_times(timeline, loop.owners).job[: loop.whole]], np.int64)
    for cycle in range(1, LONGEST_CYCLE + 1):
        if len(completion) < 2 * cycle + LONGEST_CYCLE:
            break
        at = len(completion) - np.arange(1, LONGEST_CYCLE + 1)
        last, before = completion[at] - completion[at - cycle], completion[at - cycle] - completion[at - 2 * cycle]
        if (np.abs(last - before) <= AGREE * np.maximum(before, 1)).all():
            return cycle if _slowest(timeline, loop, cycle) <= (1 + AGREE) * last[0] else 0
    return 0


def _slowest(timeline: Timeline, loop: Loop, cycle: int) -> int:
    """What the slowest thread or stream takes for the last cycle, from the end of its last task in a copy to that in a later one, ns."""
    graph, whole = loop.graph, loop.whole
    copy = np.arange(len(graph)) // (len(graph) // len(loop.owners.job))
    end = np.zeros((len(loop.owners.job), len(graph.processors)), np.int64)
    works = loop.owners.completes
    np.maximum.at(end, (copy[works], graph.processor[works]), timeline.end[works])
    return int((end[whole - 1] - end[whole - 1 - cycle]).max(initial=0))
