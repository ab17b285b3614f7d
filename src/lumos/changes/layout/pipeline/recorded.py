"""The pipeline of a recording: its stages, the chunks of each, its microbatches, the order of their passes, and messages between stages.

Stages are the ranks that send each other messages, the outermost dimension of the job's ranks, as frameworks number them by default. A step
of every rank shows its forward and backward passes in their order. The schedule is the one that has passes of the same directions in the
same order on all stages. Of several chunks every backward pass also has to be that of the forward pass to which autograd links it, in
traces with such links.

Between every two passes of a microbatch over neighbouring chunks there are a send and a receive. A pass begins when the activations, or
their gradients, have come from the stage that has them. Nothing else waits for a message.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.changes.layout.placed import AddedTimes, Addition, on_busiest
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Kind
from lumos.plan.schedules import Action, Pass, schedule
from lumos.segment.segment import LINKS
from lumos.units import count as counted
from lumos.vocabulary import Phase, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.trace.table import Job

#: The orders of passes that can be arranged of whole backward passes.
STAGE_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline: stages, chunks of each, and the order of their passes. forward_first: whether an interleaved one with as many
    microbatches as stages runs all forward passes first. Raises UsageError where order and chunks do not fit together."""

    stages: int
    chunks: int
    order: Schedule
    forward_first: bool = False

    def __post_init__(self) -> None:
        if (self.chunks > 1) != (self.order is Schedule.INTERLEAVED):
            raise UsageError(f"schedule {self.order} cannot be used with vpp={self.chunks}: several chunks need the interleaved one")
        if self.order not in STAGE_SCHEDULES:
            raise LumosError(
                f"--set schedule={self.order}: the recording shows backward passes as a whole; valid are {', '.join(STAGE_SCHEDULES)}"
            )

    @property
    def places(self) -> int:
        """The chunks of all stages."""
        return self.stages * self.chunks

    def actions(self, stage: int, microbatches: int) -> list[Action]:
        """The passes of a stage in their order."""
        ordered = schedule(self.order, stage, self.stages, microbatches, self.chunks)
        if self.order is Schedule.INTERLEAVED and microbatches == self.stages and not self.forward_first:
            return _alternating(ordered, (self.chunks - 1) * self.stages + 2 * (self.stages - 1 - stage))
        return ordered


def _alternating(actions: Sequence[Action], ahead: int) -> list[Action]:
    """The passes of a stage with a backward pass after each forward pass beyond the first `ahead`.

    Megatron-LM used to run all forward passes of an interleaved pipeline first where it has as many microbatches as stages, and
    `plan.schedules` does. Its current versions (core/pipeline_parallel/schedules.py) and PyTorch's
    `ScheduleInterleaved1F1B` do not: they run ahead by as much as with more microbatches.
    """
    forward = [a for a in actions if a.step is Pass.FORWARD]
    backward = [a for a in actions if a.step is not Pass.FORWARD]
    late = forward[ahead:]
    pairs = [action for both in zip(late, backward, strict=False) for action in both]
    return [*forward[:ahead], *pairs, *backward[len(late) :]]


@dataclass(frozen=True, slots=True)
class RecordedStages:
    """The pipeline of a recording, and its microbatches. ranks: for each stage the positions of its ranks, which are its replicas or share
    its work."""

    pipeline: Pipeline
    microbatches: int
    ranks: tuple[tuple[int, ...], ...]

    @property
    def passes(self) -> int:
        """How many passes, forward and backward, each stage runs in a whole step."""
        return 2 * self.microbatches * self.pipeline.chunks


class OnePass(NamedTuple):
    """One pass of a rank over one of its chunks. number: that of the forward pass that it is, or whose gradients it computes."""

    backward: bool
    number: int
    items: list[Instance]


class StepOfRank(NamedTuple):
    """What a rank runs in a step: before its passes, in each of them, and afterwards."""

    before: list[Instance]
    passes: list[OnePass]
    after: list[Instance]


def steps_of(layout: MeasuredLayout, items: Sequence[Instance]) -> Iterator[StepOfRank]:
    """The steps of a rank. Recomputation is part of the backward pass; what does not belong to a pass and comes after the first one comes
    after all."""
    for _, group in groupby(items, key=lambda i: layout.pieces[i.piece].step):
        out, known = StepOfRank([], [], []), dict[tuple[bool, int], OnePass]()
        previous: tuple[bool, int] | None = None
        for item in group:
            label = layout.pieces[item.piece].label
            if label.phase not in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE):
                (out.after if out.passes else out.before).append(item)
                continue
            key = label.phase != Phase.FORWARD or item.thread_of >= 0, label.microbatch
            if key not in known or (key != previous and item.piece in {i.piece for i in known[key].items}):  # the same runs again
                known[key] = OnePass(*key, [])
                out.passes.append(known[key])
            known[key].items.append(item)
            previous = key
        yield out


def recorded_pipeline(layout: MeasuredLayout, job: Job, stages: int) -> RecordedStages:
    """The pipeline of a recording whose messages go through that many stages.

    Raises LumosError where ranks are missing, and where no known schedule has the recorded passes.
    """
    ranks = _ranks_of_stages(layout, job, stages)
    shown = [_passes_of_stage(layout, own[0]) for own in ranks]
    passes = len(shown[0]) // 2
    linked = layout.segmentation.evidence.get("backward") == LINKS
    fitting = [
        RecordedStages(candidate, passes // candidate.chunks, ranks)
        for candidate in _candidates(stages, passes)
        if all(_fits(candidate, stage, seen, linked=linked) for stage, seen in enumerate(shown))
    ]
    if not fitting and stages == 1:
        raise LumosError(
            f"--set pp: a step runs its {passes} microbatches neither one after the other nor first all of them forward, so they"
            " cannot be spread over stages (lumos inspect --blocks)"
        )
    if not fitting:
        raise LumosError(
            f"--set: the recording is of a pipeline of {stages} stages, but the order of its passes is that of no schedule that Lumos knows"
            f" ({', '.join(STAGE_SCHEDULES)}), so it cannot be cut anew (lumos inspect --blocks); ask lumos predict"
        )
    return fitting[0]


def _ranks_of_stages(layout: MeasuredLayout, job: Job, stages: int) -> tuple[tuple[int, ...], ...]:
    """For each stage the positions of its ranks: for that of a job without a pipeline those of all."""
    if stages == 1:
        return (tuple(range(len(layout.ranks))),)
    numbers, world = layout.segmentation.graph.ranks, job.world
    of_stage = world // stages
    out = tuple(tuple(i for i, rank in enumerate(numbers) if rank // of_stage == stage) for stage in range(stages))
    if len({len(own) for own in out}) > 1 or not out[0]:
        raise LumosError(
            f"--set: the traces are {counted(len(numbers), 'rank')} of {world} in a pipeline of {stages} stages, not equally many of every"
            " stage; give the traces of the others too"
        )
    return out


def _passes_of_stage(layout: MeasuredLayout, position: int) -> list[tuple[bool, int]]:
    """The passes of a step of a rank: whether each is a backward one, and the number of its forward pass.

    Raises LumosError where steps differ, or show other forward than backward passes.
    """
    shown = [[(p.backward, p.number) for p in step.passes] for step in steps_of(layout, layout.ranks[position])]
    orders = {tuple(passes) for passes in shown if len({backward for backward, _ in passes}) == 2}
    rank = layout.segmentation.graph.ranks[position]
    if not orders:
        raise LumosError(f"--set pp: rank {rank} has no step with forward and backward passes, so there are none that stages could run")
    if len(orders) != 1:
        raise LumosError(f"--set: the steps of rank {rank} show passes in {len(orders)} orders, so its pipeline cannot be cut anew")
    (passes,) = orders
    if 2 * sum(backward for backward, _ in passes) != len(passes):
        raise LumosError(f"--set: a step of rank {rank} shows other forward than backward passes (lumos inspect --blocks)")
    return list(passes)


def _candidates(stages: int, passes: int) -> Iterator[Pipeline]:
    yield Pipeline(stages, 1, Schedule.ONE_F_ONE_B)
    yield Pipeline(stages, 1, Schedule.GPIPE)
    if stages == 1:
        return
    for chunks in range(2, passes + 1):
        if passes % chunks == 0 and passes // chunks % stages == 0:
            yield Pipeline(stages, chunks, Schedule.INTERLEAVED)
            if passes // chunks == stages:
                yield Pipeline(stages, chunks, Schedule.INTERLEAVED, forward_first=True)


def _fits(candidate: Pipeline, stage: int, seen: Sequence[tuple[bool, int]], *, linked: bool) -> bool:
    """Whether a stage would run the passes in the order in which they were seen. linked: whether it is known of which forward pass each
    backward pass is. Without chunks their directions say it: PyTorch's GPipe runs backward passes in the order of the forward passes, and
    the published one the other way round, which takes as long."""
    actions = candidate.actions(stage, len(seen) // 2 // candidate.chunks)
    if candidate.chunks == 1 or not linked:
        return [a.step is not Pass.FORWARD for a in actions] == [backward for backward, _ in seen]
    forward = {(a.microbatch, a.chunk): n for n, a in enumerate(a for a in actions if a.step is Pass.FORWARD)}
    wanted = [(a.step is not Pass.FORWARD, forward[a.microbatch, a.chunk]) for a in actions]
    return wanted == list(seen)


# ---------------------------------------------------------------- what a pass consists of


def carried(layout: MeasuredLayout) -> frozenset[int]:
    """The tasks that carry messages between stages."""
    facts = layout.segmentation.graph.collectives
    if facts is None:
        return frozenset()
    transfers = np.array([kind.is_transfer for kind in facts.kinds], bool)
    return frozenset(facts.task[transfers[facts.kind]].tolist())


def passes_of_step(recorded: RecordedStages, stage: int, step: StepOfRank) -> dict[tuple[int, int, bool], OnePass]:
    """The passes of a whole recorded step of a stage by microbatch, chunk and direction."""
    actions = recorded.pipeline.actions(stage, recorded.microbatches)
    return {
        (a.microbatch, a.chunk, a.step is not Pass.FORWARD): one
        for a, one in zip(actions, step.passes, strict=True)
    }


def like(microbatch: int, count: int, recorded: int) -> int:
    """The recorded microbatch of which a new one is a copy: the first and the last stay, and those between repeat in turn. count: how many
    there are now; recorded: how many there were."""
    last = recorded - 1
    if microbatch == 0:
        return 0
    return last if microbatch == count - 1 or last < 2 else 1 + (microbatch - 1) % (last - 1)


class PassParts:
    """The instances of a pass: before its layers, in each of them, and after them, in the order in which they ran. What lies between layers
    belongs to the one before it. A pass that shows none that repeat is one as a whole."""

    def __init__(self, layout: MeasuredLayout, items: Sequence[Instance], *, backward: bool) -> None:
        self.backward = backward
        numbers = [layout.pieces[item.piece].label.layer for item in items]
        inside = [i for i, number in enumerate(numbers) if number >= 0]
        self.whole = not inside
        low, high = (inside[0], inside[-1] + 1) if inside else (len(items), len(items))
        self.start, self.end = ([], []) if self.whole else (list(items[:low]), list(items[high:]))
        self.layers: list[list[Instance]] = [list(items)] if self.whole and items else []
        previous, ran = -1, set[int]()
        for item, number in zip(items[low:high], numbers[low:high], strict=True):
            if number >= 0 and (number != previous or item.piece in ran):  # another layer, or the same one again
                self.layers.append([])
                previous, ran = number, set()
            ran.add(item.piece)
            self.layers[-1].append(item)

    def of(self, chosen: Sequence[int], *, lead: bool, tail: bool) -> list[Instance]:
        """The pass over the layers `chosen`, by their numbers in the order of the forward pass. lead, tail: whether with what that does
        before and after them."""
        first, last = (tail, lead) if self.backward else (lead, tail)
        inner = [self.layers[len(self.layers) - 1 - n] for n in reversed(chosen)] if self.backward else [self.layers[n] for n in chosen]
        return [*(self.start if first else ()), *(i for layer in inner for i in layer), *(self.end if last else ())]


class PassRun(NamedTuple):
    """A pass of one microbatch over one chunk. place: the chunk's among all, in the order of the forward pass. first, last: instances of
    the layout, numbered through over its ranks."""

    rank: int
    replica: int
    step: int
    backward: bool
    microbatch: int
    place: int
    first: int
    last: int


def messages(runs: Sequence[PassRun], places: int, time: AddedTimes, placed: Placed) -> Iterator[Addition]:
    """A send and a receive between every two passes of a microbatch over neighbouring chunks, each rank's in the order of its passes."""
    ends = _ends(placed, runs)
    known = {(r.replica, r.step, r.backward, r.microbatch, r.place): i for i, r in enumerate(runs)}
    meetings: dict[tuple[int, int], int] = defaultdict(lambda: len(meetings))
    for i, run in enumerate(runs):
        ahead = -1 if run.backward else 1
        for sends, neighbour in ((False, run.place - ahead), (True, run.place + ahead)):
            other = known.get((run.replica, run.step, run.backward, run.microbatch, neighbour)) if 0 <= neighbour < places else None
            if other is None or runs[other].rank == run.rank:
                continue
            what = "gradients" if run.backward else "activations"
            name = f"{'send' if sends else 'receive'} of {what} (assumed)"
            meets = meetings[(i, other) if sends else (other, i)]
            first, last = ends[i]
            after, before = ((last,), ()) if sends else ((), (first,))
            yield Addition(name, run.rank, name, time, after, before, run.last if sends else run.first, meets=meets)


def _ends(placed: Placed, runs: Sequence[PassRun]) -> list[tuple[int, int]]:
    """The first and the last task of every pass that computes, on the device where the job has one. They are those that one thread runs or
    launches, the one of most of them, on the stream of most of them: what another thread does after the pass, as a schedule that divides
    gradients, no message waits for, nor what another stream does beside it, as gathers of parameters.

    Raises LumosError where a pass has no such task.
    """
    graph = placed.graph
    works = np.flatnonzero(graph.kind == (Kind.KERNEL if graph.on_device.any() else Kind.OPERATOR))
    works = works[placed.source[works] >= 0]
    works = works[np.argsort(placed.instance[works], kind="stable")]
    instance = placed.instance[works]
    launch = members(graph).launch[works]
    thread = graph.processor[np.where(launch >= 0, launch, works)]
    out = []
    for run in runs:
        mine = slice(int(np.searchsorted(instance, run.first, "left")), int(np.searchsorted(instance, run.last, "right")))
        if mine.start == mine.stop:
            raise LumosError("--set pp: a pass of the recording has no work on its device, so its stages cannot be told")
        own = on_busiest(graph, works[mine][thread[mine] == np.bincount(thread[mine]).argmax()])
        out.append((int(own[0]), int(own[-1])))
    return out
