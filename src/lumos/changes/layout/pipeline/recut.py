"""The passes of a job on the stages and chunks of a pipeline: of one that was recorded, or of a job that has none; with one stage, all on
one rank.

A rank of a new stage is made of the recorded ones that have its layers, and runs the recorded passes in the order of the schedule, each
over the layers of its chunk. A pass begins with what comes before the layers of the recorded chunk that has its first one, and ends with
what comes behind those of the one that has its last; embedding and head only where the new chunk has them too. What a rank does before its
passes and behind them is that of the recorded stage that it stands in place of: the first of the first, the last of the last, and those
between of those between; beside that every recorded stage updates the weights of its layers. Of the passes of a direction the first and the
last that a chunk runs stay, and those between repeat in turn: whichever microbatch is first, its gradients are added to none.

The recorded messages go, and others take their place: a pass begins when what it needs has come from the stage that has it, which takes
what the recorded messages took once both ends were ready, or where none was recorded the time of the model of a transfer over the stated
or usual link. The 80 % interval of a message reaches from nothing, for one that is hidden, to twice that, for one that holds its sender as
long as its receiver. An optimizer that updates all weights at once takes the share of its time that the stage has of the recorded stage's
weights. On one stage a rank still divides the gradients by the microbatches where the recorded schedule does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.change import copied, pipeline_stages, whole_updates
from lumos.changes.layout.measured_layout import MadeOf, measured_layout
from lumos.changes.layout.pipeline.recorded import (
    PassParts,
    PassRun,
    Pipeline,
    RecordedStages,
    carried,
    like,
    messages,
    passes_of_step,
    recorded_pipeline,
    steps_of,
)
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.layout.placed import AddedTimes, add_work, times_of
from lumos.changes.settings import counts
from lumos.cost.collective_model import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.plan.plan import EVEN, Ends, layers_of_places
from lumos.plan.schedules import Pass
from lumos.segment.rank import recordings_of
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, Phase, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.pipeline.recorded import OnePass, StepOfRank
    from lumos.changes.layout.placed import Placed
    from lumos.cost.cluster import Cluster
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Job


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pipeline that a recorded one is to become, its microbatches, and the layers of its ends where they are stated.

    Raises UsageError where these do not fit together.
    """

    pipeline: Pipeline
    microbatches: int
    ends: Ends = EVEN

    def __post_init__(self) -> None:
        if self.pipeline.chunks > 1 and self.microbatches % self.pipeline.stages:
            raise UsageError(
                f"--set microbatches={self.microbatches}: an interleaved pipeline of {self.pipeline.stages} stages needs a multiple of them"
            )


#: The settings that are those of a pipeline.
PIPELINE_KEYS = ("pp", "vpp", "schedule", "first_layers", "last_layers")


def cut_anew(settings: Mapping[str, str], stages: int) -> bool:
    """Whether the settings ask for another pipeline than that of a recording of so many stages. Raises LumosError where they ask for chunks
    or an order, but for no stages, of a job that has none."""
    asked = [key for key in PIPELINE_KEYS if key in settings]
    if stages > 1:
        return bool(asked) or "microbatches" in settings
    numbers = counts(settings)
    if numbers.get("pp", 1) > 1:
        return True
    alone = next((key for key in asked if key not in ("pp", "vpp") or numbers[key] > 1), None)
    if alone is not None:
        raise LumosError(f"--set {alone}: the job has no pipeline; ask for one with --set pp=N as well")
    return False


def recut_as(
    layout: MeasuredLayout, job: Job, settings: Mapping[str, str], stages: int, link: Callable[[], tuple[Cluster, int]]
) -> MeasuredLayout:
    """The layout of a recording of so many stages as the pipeline that the settings ask for. link: over which links, and how many bytes,
    the stages of a job that has no pipeline would send.

    Raises LumosError and UsageError as `recut` and `recorded_pipeline` do.
    """
    recorded = recorded_pipeline(layout, job, stages)
    wanted = wanted_of(settings, recorded)
    if wanted.pipeline.stages == 1:
        message = _Message(AddedTimes(0, 0, 0), "nothing")
    else:
        message = _recorded_message(layout) if stages > 1 else _modelled_message(job, *link())
    return recut(layout, job, recorded, wanted, message)


def as_recorded_cut(segmentation: Segmentation, job: Job, settings: Mapping[str, str]) -> Placed | None:
    """The recorded pipeline cut by the same rules into what it was recorded as; None where the settings do not ask for another.

    What its step takes, other than that of the recording, is what the rules leave out.
    """
    layout = measured_layout(segmentation)
    stages = pipeline_stages(segmentation.graph, job)
    if stages == 1 or not cut_anew(settings, stages):
        return None
    recorded = recorded_pipeline(layout, job, stages)
    same = recut(layout, job, recorded, Wanted(recorded.pipeline, recorded.microbatches), _recorded_message(layout))
    placed = assemble_pieces(same)
    for assumed in same.assumed:
        placed = add_work(placed, tuple(assumed(placed)))
    return placed


def wanted_of(settings: Mapping[str, str], recorded: RecordedStages) -> Wanted:
    """What the settings make of a recorded pipeline. Chunks stay, unless another order is asked for that has none.

    Raises UsageError where they ask for several chunks or an order of one stage, which has neither."""
    numbers, old = counts(settings), recorded.pipeline
    several = old.stages > 1  # the microbatches of a job without a pipeline are changed before, with what adds up their gradients
    microbatches = numbers.get("microbatches", recorded.microbatches) if several else recorded.microbatches
    if numbers.get("pp") == 1:
        if numbers.get("vpp", 1) > 1 or {"schedule", "first_layers", "last_layers"} & settings.keys():
            raise UsageError(
                "--set pp=1: one stage has no order of passes, no chunks and no ends; leave out schedule, vpp, first_layers and last_layers"
            )
        return Wanted(Pipeline(1, 1, Schedule.ONE_F_ONE_B), microbatches)
    order = Schedule(settings["schedule"]) if "schedule" in settings else None
    chunks = numbers.get("vpp", old.chunks if order in (None, Schedule.INTERLEAVED) else 1)
    if order is None:
        kept = old.order if old.order is not Schedule.INTERLEAVED else Schedule.ONE_F_ONE_B
        order = Schedule.INTERLEAVED if chunks > 1 else kept
    pipeline = Pipeline(numbers.get("pp", old.stages), chunks, order, old.forward_first)
    return Wanted(pipeline, microbatches, Ends(numbers.get("first_layers", 0), numbers.get("last_layers", 0)))


class _Message(NamedTuple):
    """A message between stages: what it takes, and where that is known from."""

    time: AddedTimes
    source: str


def recut(layout: MeasuredLayout, job: Job, recorded: RecordedStages, wanted: Wanted, message: _Message) -> MeasuredLayout:
    """The layout of the recorded pipeline as the wanted one.

    Raises LumosError where a recorded pass shows no layers, and UsageError where there are fewer layers than chunks.
    """
    cut = _Cut(layout, recorded, wanted, job)
    new, old = wanted.pipeline, recorded.pipeline
    made: list[MadeOf] = []
    ranks: list[tuple[Instance, ...]] = []
    runs: list[PassRun] = []
    for stage in range(new.stages):
        for replica in range(len(recorded.ranks[0])):
            arranged = cut.arranged(stage, replica)
            first = sum(map(len, ranks))
            runs += [run._replace(rank=len(ranks), first=run.first + first, last=run.last + first) for run in arranged.runs]
            ranks.append(tuple(arranged.items))
            made.append(MadeOf(tuple(recorded.ranks[origin][replica] for origin in cut.made_of(stage)), stage))
    updates = np.concatenate([whole_updates(layout, position) for position in range(len(layout.ranks))])
    return replace(
        layout,
        ranks=tuple(ranks),
        made=tuple(made),
        updates=frozenset(updates.tolist()),
        dropped=layout.dropped | carried(layout),
        assumed=(*layout.assumed, partial(messages, tuple(runs), new.places, message.time)),
        shared=layout.shared * new.stages / old.stages,
        changes=(*layout.changes, *_words(recorded, wanted)),
        diagnostics=(*layout.diagnostics, *_said(recorded, wanted, cut, message)),
    )


def _words(recorded: RecordedStages, wanted: Wanted) -> Iterable[str]:
    new, old = wanted.pipeline, recorded.pipeline
    named = (
        ("pp", new.stages, old.stages),
        ("vpp", new.chunks, old.chunks),
        ("schedule", new.order if new.stages > 1 else None, old.order if old.stages > 1 else None),
        ("microbatches", wanted.microbatches, recorded.microbatches),
    )
    stated = [f"{key} = {value}" for key, value in zip(("first_layers", "last_layers"), wanted.ends, strict=True) if value]
    changed = [
        f"{key} = {value}" + (f" (measured: {before})" if before else "") for key, value, before in named if value and value != before
    ]
    return [*changed, *stated] or [f"pp = {new.stages} (as measured)"]


def _said(recorded: RecordedStages, wanted: Wanted, cut: _Cut, message: _Message) -> tuple[Diagnostic, ...]:
    """What is assumed where layers are on other stages or chunks than those that were recorded."""
    new, old = wanted.pipeline, recorded.pipeline
    if (new.stages, new.chunks, cut.layers) == (old.stages, old.chunks, cut.shown):
        return ()
    shown = f"is of {counted(old.places, 'chunk')} on {old.stages} stages" if old.stages > 1 else "is of no pipeline"
    if new.stages == 1:
        assumed = "that one rank runs their layers one after the other, each microbatch forward and backward before the next"
        return (Diagnostic("stages-assumed", f"pp = 1: the recording {shown}; assumed is {assumed}"),)
    layers = ", ".join(map(str, cut.layers))
    text = f"pp = {new.stages}: the recording {shown}; assumed are {layers} layers in {counted(new.places, 'chunk')} and messages of"
    return (Diagnostic("stages-assumed", f"{text} {message.source}"),)


def _recorded_message(layout: MeasuredLayout) -> _Message:
    """What a message takes: the median of those whose other end is known, with the changes of sizes so far."""
    graph = layout.segmentation.graph
    tasks = np.array(sorted(carried(layout)), np.int64)
    met = tasks[np.isin(tasks, graph.rendezvous_task)]
    if not len(met):
        raise LumosError("--set: no message between the stages of the recording shows both of its ends, so none says how long one takes")
    best = round(float(np.median(layout.prices.ns[met])))
    return _Message(AddedTimes(best, 0, 2 * best), f"{best / 1e3:,.1f} µs, as recorded")


def _modelled_message(job: Job, cluster: Cluster, nbytes: int) -> _Message:
    """What the model of a transfer between two ranks has for a message of so many bytes."""
    if not nbytes:
        raise LumosError(
            f"--set pp: the shapes of {job.traces[0].path} do not show how large the activations are that stages would send; record with"
            " record_shapes=True"
        )
    best = times_of(collective(CollectiveKind.SEND_RECEIVE, 2, nbytes, cluster)).best
    return _Message(AddedTimes(best, 0, 2 * best), f"{nbytes / 1e6:,.1f} MB over the links of {cluster.name}")


@dataclass(slots=True)
class _Arranged:
    """The instances of a rank, and its passes over chunks, whose instances are counted from the rank's first."""

    items: list[Instance]
    runs: list[PassRun]


class _Source(NamedTuple):
    """Layers of a new chunk that follow one another in a recorded one. place: of that among all. layers: by their numbers in it."""

    place: int
    layers: range


class _Cut:
    """Of which recorded layers every new chunk is made. layers: how many every new chunk has, in the order of the forward pass. shown: how
    many every recorded one has. sources: for every new chunk where its layers were recorded. stands_for: for each new stage the recorded
    one in whose place it stands."""

    def __init__(self, layout: MeasuredLayout, recorded: RecordedStages, wanted: Wanted, job: Job) -> None:
        self.layout, self.recorded, self.wanted, self.job = layout, recorded, wanted, job
        old, new = recorded.pipeline, wanted.pipeline
        self.names = [step.name for step in layout.segmentation.owners.steps]
        self.steps = [[*steps_of(layout, items)] for items in layout.ranks]
        self.shown, whole = self._shown()
        total = sum(self.shown)
        if total < new.places or (whole and total % new.places):
            parts = f"{counted(total, 'stage')}, whose passes show no layers that repeat," if whole else counted(total, "layer")
            raise UsageError(f"--set pp: {parts} cannot be spread over {counted(new.places, 'chunk')} of a pipeline")
        same = (old.stages, old.chunks) == (new.stages, new.chunks) and wanted.ends == EVEN
        self.layers = self.shown if same else layers_of_places(total, new.stages, new.chunks, wanted.ends)
        ends = [*accumulate(self.layers)]
        self.sources = [self._sources(end - size, end) for end, size in zip(ends, self.layers, strict=True)]
        self.stands_for = _stands_for(old.stages, new.stages)

    def _shown(self) -> tuple[list[int], bool]:
        """The layers of every recorded chunk, and whether it is one as a whole since no pass shows any."""
        old, alike = self.recorded.pipeline, set[bool]()
        out = [0] * old.places
        for stage in range(old.stages):
            step = next(s for s in self.steps[self.recorded.ranks[stage][0]] if len(s.passes) == self.recorded.passes)
            for (_, chunk, backward), one in passes_of_step(self.recorded, stage, step).items():
                number = chunk * old.stages + stage
                parts = PassParts(self.layout, one.items, backward=backward)
                layers = len(parts.layers)
                alike.add(parts.whole)
                if len(alike) > 1 or layers != (out[number] or layers):
                    shows = "other layers than another, so it cannot be cut anew (lumos inspect --blocks)"
                    raise LumosError(f"--set pp: a pass of stage {stage} shows {shows}")
                out[number] = layers
        return out, alike == {True}

    def _sources(self, begin: int, end: int) -> list[_Source]:
        """Where the layers `begin` to `end` of the model were recorded."""
        out, first = [], 0
        for number, size in enumerate(self.shown):
            inside = range(max(begin - first, 0), min(end - first, size))
            out += [_Source(number, inside)] if len(inside) else []
            first += size
        return out

    def of_stage(self, stage: int) -> Counter[int]:
        """How many layers of each recorded stage a new one has."""
        out: Counter[int] = Counter()
        for sources in self.sources[stage :: self.wanted.pipeline.stages]:
            for source in sources:
                out[source.place % self.recorded.pipeline.stages] += len(source.layers)
        return out

    def made_of(self, stage: int) -> list[int]:
        """The recorded stages of which a new one is made; what a rank alone has is that of the one in whose place it stands."""
        return list(dict.fromkeys([self.stands_for[stage], *sorted(self.of_stage(stage))]))

    def arranged(self, stage: int, replica: int) -> _Arranged:
        """What a rank of a new stage runs. A step that is not whole on all recorded stages that it is made of stays as it is."""
        out = _Arranged([], [])
        made_of = self.made_of(stage)
        own, *others = ([*self.steps[self.recorded.ranks[origin][replica]]] for origin in made_of)
        by_name = [{self._name(step): step for step in steps} for steps in others]
        for number, step in enumerate(own):
            same_step = [step, *(named.get(self._name(step)) for named in by_name)]
            steps = {origin: one for origin, one in zip(made_of, same_step, strict=True) if one and len(one.passes) == self.recorded.passes}
            out.items += step.before
            if len(steps) < len(made_of):
                out.items += [*(i for one in step.passes for i in one.items), *step.after]
                continue
            passes = {origin: passes_of_step(self.recorded, origin, one) for origin, one in steps.items()}
            for run, items in self._passes(stage, passes):
                first = len(out.items)
                out.items += items
                out.runs.append(run._replace(replica=replica, step=number, first=first, last=len(out.items) - 1))
            for origin, one in steps.items():
                out.items += self._after(stage, origin, self.recorded.ranks[origin][replica], one.after)
        return out

    def _name(self, step: StepOfRank) -> str:
        """The name of a step of a rank; "" outside of all steps."""
        item = next(iter([*step.before, *(i for one in step.passes for i in one.items), *step.after]))
        number = self.layout.pieces[item.piece].step
        return self.names[number] if number >= 0 else ""

    def _passes(
        self, stage: int, passes: Mapping[int, Mapping[tuple[int, int, bool], OnePass]]
    ) -> Iterator[tuple[PassRun, list[Instance]]]:
        """The passes of a step of a new stage, in their order. passes: the recorded ones, by recorded stage."""
        wanted, old = self.wanted, self.recorded
        ran: dict[tuple[int, bool], list[int]] = defaultdict(list)  # the microbatches as they ran, by recorded chunk and direction
        for origin, of_stage in passes.items():
            for microbatch, chunk, backward in of_stage:
                ran[chunk * old.pipeline.stages + origin, backward].append(microbatch)
        actions = wanted.pipeline.actions(stage, wanted.microbatches)
        final = {(a.chunk, a.step): a.microbatch for a in actions}
        times: Counter[tuple[int, Pass]] = Counter()
        last = old.pipeline.places - 1
        for action in actions:
            backward = action.step is not Pass.FORWARD
            nth = like(times[action.chunk, action.step], wanted.microbatches, old.microbatches)
            times[action.chunk, action.step] += 1
            number = action.chunk * wanted.pipeline.stages + stage
            repeated = nth == old.microbatches - 1 and final[action.chunk, action.step] != action.microbatch
            items: list[Instance] = []
            for source in reversed(self.sources[number]) if backward else self.sources[number]:
                chunk, origin = divmod(source.place, old.pipeline.stages)
                one = passes[origin][ran[source.place, backward][nth], chunk, backward]
                lead = source is self.sources[number][0] and (source.place > 0 or number == 0)
                tail = source is self.sources[number][-1] and (source.place < last or number == wanted.pipeline.places - 1)
                items += PassParts(self.layout, one.items, backward=backward).of(source.layers, lead=lead, tail=tail)
            if repeated:
                items = [replace(i, inner=True, later=True) for i in items]
            yield PassRun(0, 0, 0, backward, action.microbatch, number, 0, 0), items

    def _after(self, stage: int, recorded: int, position: int, items: Sequence[Instance]) -> Iterator[Instance]:
        """What follows the passes of a new stage of what a recorded one, at a position, does there: updates of the layers that it has of
        it, and all else only of the stage in whose place it stands."""
        has = self.of_stage(stage)[recorded] / sum(self.shown[recorded :: self.recorded.pipeline.stages])
        share, standing = self._share(stage, recorded, position, has), recorded == self.stands_for[stage]
        label = [self.layout.pieces[item.piece].label for item in items]
        for in_layer, group in groupby(range(len(items)), key=lambda i: label[i].layer >= 0):
            part = [i for i in group if standing or label[i].phase == Phase.OPTIMIZER]
            if in_layer and part:
                layers = [list(g) for _, g in groupby(part, key=lambda i: label[i].layer)]
                count = max(round(len(layers) * has), 1) if has else 0
                part = [i for nth in copied(len(layers), count) for i in layers[nth]] if count else []
            yield from (replace(items[i], share=share) for i in part)

    def _share(self, stage: int, recorded: int, position: int, has: float) -> float:
        """The share of the weights of a recorded stage that a new one has. has: that of its layers. Embedding and head are taken for as
        large as each other."""
        by_layer = recordings_of(self.layout.segmentation, self.job)[position].weights()
        inner, outer = sum(n for layer, n in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
        if not inner:
            return 1.0
        ends = [(recorded == 0, stage == 0), (recorded == self.recorded.pipeline.stages - 1, stage == self.wanted.pipeline.stages - 1)]
        shown = sum(there for there, _ in ends)
        kept = sum(there and here for there, here in ends) / shown if shown else 1.0
        return (inner * has + outer * kept) / (inner + outer)


def _stands_for(old: int, new: int) -> list[int]:
    """For each of `new` stages the one of `old` in whose place it stands."""
    if old == new:
        return list(range(new))
    middle = (
        [1 + (i - 1) * (old - 2) // max(new - 2, 1) for i in range(1, new - 1)]
        if old > 2
        else [(old - 1) * int(2 * i >= new) for i in range(1, new - 1)]
    )
    return [0, *middle, old - 1][:new]
