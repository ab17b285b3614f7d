"""Which tasks belong to which training step, and when a step begins and ends.

A step owns the CPU tasks of its rank that were measured to start inside its mark, and the device tasks that these
launch, whenever they run. A device task without a known launch belongs to the step in which it was measured to start.
Device work launched before the window (`prefix`) belongs to no step, because what it waited for is not in the trace.

A step's time in any timeline is the latest end minus the earliest start over the tasks that it owns. Time between
operators does not count: a thread that pauses until the next step, or after its last work, does not make its step longer.
Nor does a thread that only polls on a timer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import Lists, grouped, offsets
from lumos.graph.table import Dependency, Graph, Kind, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.simulate.timeline import Timeline
    from lumos.trace.table import Int32, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """For each of a graph's n tasks: the rank that runs it, the task that launched it and the step that owns it.

    steps: the steps that own any work, by rank and start. step: int32[n], index into `steps`, -1 none.
    rank: int32[n], position in `graph.ranks`. on_device: bool[n]. launch: int32[n], the launching task, -1 none.
    prefix: bool[n], device work launched before the window.
    order, offset: step i owns tasks order[offset[i]:offset[i + 1]], in ascending id.
    rank_order, rank_offset: the same for the ranks, by position.
    """

    graph: Graph
    steps: tuple[Step, ...]
    step: Int32
    rank: Int32
    on_device: NDArray[np.bool_]
    launch: Int32
    prefix: NDArray[np.bool_]
    order: Int64
    offset: Int64
    rank_order: Int64
    rank_offset: Int64

    def tasks(self, step: int) -> Int64:
        """The tasks that a step owns, in ascending id."""
        return self.order[self.offset[step] : self.offset[step + 1]]

    def of_rank(self, position: int) -> Int64:
        """The tasks of a rank, in ascending id."""
        return self.rank_order[self.rank_offset[position] : self.rank_offset[position + 1]]

    def step_rank(self) -> Int64:
        """Position in `graph.ranks` of every step's rank."""
        place = {rank: i for i, rank in enumerate(self.graph.ranks)}
        return np.array([place[s.rank] for s in self.steps], np.int64)


def members(graph: Graph) -> Members:
    """Assign every task of the graph to its step. A graph without marked steps is one step per rank."""
    rank = graph.position_of_task
    by_rank = grouped(rank, len(graph.ranks))
    on_device = graph.on_device
    launch = launches(graph)
    prefix = _prefix(graph, rank, on_device, launch)
    if graph.steps and graph.measured_start is not None:
        marked = graph.steps
        step = _assign(graph, graph.measured_start, by_rank, on_device & (launch >= 0), launch)
    else:
        marked = tuple(Step(r, "step", 0, 0) for r in graph.ranks)
        step = rank.copy()
    return _members(graph, tuple(marked), step, _Facts(rank, by_rank, on_device, launch, prefix))


def assigned(graph: Graph, steps: tuple[Step, ...], step: Int32) -> Members:
    """The members of a graph whose steps are known already. step: int32[n], index into `steps`, -1 none."""
    rank = graph.position_of_task
    on_device = graph.on_device
    launch = launches(graph)
    facts = _Facts(rank, grouped(rank, len(graph.ranks)), on_device, launch, _prefix(graph, rank, on_device, launch))
    return _members(graph, steps, step.copy(), facts)


class _Facts(NamedTuple):
    """What `Members` holds that does not depend on steps. by_rank: the tasks of each rank."""

    rank: Int32
    by_rank: Lists
    on_device: NDArray[np.bool_]
    launch: Int32
    prefix: NDArray[np.bool_]


def _members(graph: Graph, marked: tuple[Step, ...], step: Int32, facts: _Facts) -> Members:
    """Members with only those of the `marked` steps that own any work. step: index into `marked`, changed in place."""
    rank, by_rank, on_device, launch, prefix = facts
    step[prefix | np.array([p.timer for p in graph.processors], bool)[graph.processor]] = -1
    owning = np.unique(step[(step >= 0) & (graph.kind != Kind.HOST)])
    number = np.full(len(marked) + 1, -1, np.int32)  # the last is what index -1 finds
    number[owning] = np.arange(len(owning))
    step = number[step]
    by_step = grouped(step, len(owning))
    return Members(
        graph=graph,
        steps=tuple(marked[i] for i in owning),
        step=step,
        rank=rank,
        on_device=on_device,
        launch=launch,
        prefix=prefix,
        order=by_step.flat,
        offset=by_step.offset,
        rank_order=by_rank.flat,
        rank_offset=by_rank.offset,
    )


def job_steps(owners: Members) -> dict[str, list[int]]:
    """The steps of the job: by name, the indices of the ranks' steps of that name. Where a rank has several steps of one
    name, the second is called "name (2)", and so on."""
    indices: dict[str, list[int]] = {}
    seen: dict[tuple[int, str], int] = {}
    for i, step in enumerate(owners.steps):
        again = seen[step.rank, step.name] = seen.get((step.rank, step.name), 0) + 1
        indices.setdefault(step.name if again == 1 else f"{step.name} ({again})", []).append(i)
    return indices


def only_steps(owners: Members, *names: str) -> Members:
    """The same members with the steps of these names only; the tasks of all other steps then belong to no step."""
    chosen = [i for i, step in enumerate(owners.steps) if step.name in names]
    number = np.full(len(owners.steps) + 1, -1, np.int32)  # the last is what index -1 finds
    number[chosen] = np.arange(len(chosen))
    tasks = [owners.tasks(i) for i in chosen]
    return replace(
        owners,
        steps=tuple(owners.steps[i] for i in chosen),
        step=number[owners.step],
        order=np.concatenate(tasks) if tasks else np.empty(0, np.int64),
        offset=offsets([len(t) for t in tasks]),
    )


def step_names(graph: Graph) -> tuple[str, ...]:
    """The names of the steps that own work, each once, in order."""
    return tuple(dict.fromkeys(step.name for step in members(graph).steps))


def launches(graph: Graph) -> Int32:
    """The task that launched each device task, int32[n]; -1 where none is known."""
    edge = np.flatnonzero(graph.pred_kind == Dependency.LAUNCH)
    launch = np.full(len(graph), -1, np.int32)
    launch[np.searchsorted(graph.pred_offset, edge, side="right") - 1] = graph.pred[edge]
    return launch


def step_spans(timeline: Timeline, owners: Members) -> tuple[Int64, Int64]:
    """Start and end of every step of `owners` in the timeline, int64[steps] ns."""
    if not owners.steps:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, tasks = owners.offset[:-1], owners.order
    pause = owners.graph.kind[tasks] == Kind.HOST
    latest, earliest = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    start: Int64 = np.minimum.reduceat(np.where(pause, latest, timeline.start[tasks]), first)
    end: Int64 = np.maximum.reduceat(np.where(pause, earliest, timeline.end[tasks]), first)
    return start, end


def lengths(timeline: Timeline, owners: Members) -> Int64:
    """The time of every step of `owners` in the timeline, int64[steps] ns."""
    start, end = step_spans(timeline, owners)
    return end - start


def _prefix(graph: Graph, rank: Int32, on_device: NDArray[np.bool_], launch: Int32) -> NDArray[np.bool_]:
    """Device tasks whose start is taken from the trace because their launch is missing.

    A rank without any launches has no prefix: the launches of all of its device work are missing.
    """
    released = np.zeros(len(graph), bool)
    released[graph.release_task] = True
    shows_launches = np.zeros(len(graph.ranks), bool)
    shows_launches[rank[launch >= 0]] = True
    return released & on_device & (launch < 0) & shows_launches[rank]


def _assign(graph: Graph, measured_start: Int64, by_rank: Lists, launched: NDArray[np.bool_], launch: Int32) -> Int32:
    """Index into graph.steps of every task, int32[n]: by measured start, but launched device tasks by their launch."""
    step = np.full(len(graph), -1, np.int32)
    offset, order = by_rank
    for position, number in enumerate(graph.ranks):
        marks = [i for i, s in enumerate(graph.steps) if s.rank == number]
        if not marks:
            continue
        tasks = order[offset[position] : offset[position + 1]]
        start = np.array([graph.steps[i].start for i in marks], np.int64)
        end = np.array([graph.steps[i].end for i in marks], np.int64)
        time = measured_start[tasks]
        last = np.searchsorted(start, time, side="right") - 1
        inside = (last >= 0) & (time < end[last])
        step[tasks[inside]] = np.array(marks, np.int32)[last[inside]]
    step[launched] = step[launch[launched]]
    return step
