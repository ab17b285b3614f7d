"""The passes of a job on the stages and chunks of a pipeline: of one that was recorded, or of a job that has none.

Every new stage is a copy of a recorded one, of which a job without a pipeline has one: the first of the first, the last of the last, since
these have embedding and head, and those between of those between. It runs the recorded passes in the order of the schedule, each over the
layers of its chunk where its recorded stage has these, and else over as many of those that it has; more are repeated, as where the model
has more layers (`change.layers`). A pass over the chunk that has the embedding, or the head, is only taken whole where the new chunk has it
too. Of the passes of a direction the first and the last that a chunk runs stay, and those between repeat in turn: whichever microbatch is
first, its gradients are added to none.

The recorded messages go, and others take their place: a pass begins when what it needs has come from the stage that has it, which takes
what the recorded messages took once both ends were ready, or where none was recorded the time of the model of a transfer over the stated
or usual link. The 80 % interval of a message reaches from nothing, for one that is hidden, to twice that, for one that holds its sender as
long as its receiver. An optimizer that updates all weights at once takes the share of its time that the stage has of the recorded stage's
weights.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.change import copied, pipeline_stages, whole_updates
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.pipeline.messages import PassRun, messages
from lumos.changes.layout.pipeline.multiplied import of_ranks
from lumos.changes.layout.pipeline.parts import PassParts, carried, like, passes_of_step
from lumos.changes.layout.pipeline.recorded import Pipeline, RecordedStages, recorded_pipeline, steps_of
from lumos.changes.layout.pipeline.unstaged import on_one_rank
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.layout.placed import AddedTimes, add_work, times_of
from lumos.changes.layout.prices import exactly
from lumos.changes.settings import counts
from lumos.cost.collective_model import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.plan.plan import EVEN, Ends, layers_of_places
from lumos.plan.schedules import Pass
from lumos.segment.weights import weights
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
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
    if counts(settings).get("pp") == 1:
        return on_one_rank(layout, job, recorded, settings)
    wanted = wanted_of(settings, recorded)
    return recut(layout, job, recorded, wanted, _recorded_message(layout) if stages > 1 else _modelled_message(job, *link()))


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
    """What the settings make of a recorded pipeline. Chunks stay, unless another order is asked for that has none."""
    numbers, old = counts(settings), recorded.pipeline
    order = Schedule(settings["schedule"]) if "schedule" in settings else None
    chunks = numbers.get("vpp", old.chunks if order in (None, Schedule.INTERLEAVED) else 1)
    if order is None:
        kept = old.order if old.order is not Schedule.INTERLEAVED else Schedule.ONE_F_ONE_B
        order = Schedule.INTERLEAVED if chunks > 1 else kept
    pipeline = Pipeline(numbers.get("pp", old.stages), chunks, order, old.forward_first)
    several = old.stages > 1  # the microbatches of a job without a pipeline are changed before, with what adds up their gradients
    microbatches = numbers.get("microbatches", recorded.microbatches) if several else recorded.microbatches
    return Wanted(pipeline, microbatches, Ends(numbers.get("first_layers", 0), numbers.get("last_layers", 0)))


class _Message(NamedTuple):
    """A message between stages: what it takes, and where that is known from."""

    time: AddedTimes
    source: str


def recut(layout: MeasuredLayout, job: Job, recorded: RecordedStages, wanted: Wanted, message: _Message) -> MeasuredLayout:
    """The layout of the recorded pipeline as the wanted one.

    Raises LumosError where a recorded pass shows no layers, and UsageError where there are fewer layers than chunks.
    """
    cut = _Cut(layout, recorded, wanted)
    whole = of_ranks(layout, [recorded.ranks[stage] for stage in cut.sources])
    ranks: list[tuple[Instance, ...]] = []
    runs: list[PassRun] = []
    for position, items in enumerate(whole.ranks):
        stage, replica = divmod(position, len(recorded.ranks[0]))
        found = cut.arranged(whole, stage, items)
        first = sum(map(len, ranks))
        runs += [run._replace(rank=position, replica=replica, first=run.first + first, last=run.last + first) for run in found.runs]
        ranks.append(tuple(found.items))
    new, old = wanted.pipeline, recorded.pipeline
    out = _shared_updates(replace(whole, ranks=tuple(ranks), dropped=whole.dropped | carried(whole)), job, cut)
    return replace(
        out,
        assumed=(*out.assumed, partial(messages, tuple(runs), new.places, message.time)),
        shared=out.shared * new.stages / old.stages,
        changes=(*out.changes, *_words(recorded, wanted)),
        diagnostics=(*out.diagnostics, *_said(recorded, wanted, cut, message)),
    )


def _words(recorded: RecordedStages, wanted: Wanted) -> Iterable[str]:
    new, old = wanted.pipeline, recorded.pipeline
    named = (
        ("pp", new.stages, old.stages),
        ("vpp", new.chunks, old.chunks),
        ("schedule", new.order, old.order if old.stages > 1 else None),
        ("microbatches", wanted.microbatches, recorded.microbatches),
    )
    stated = [f"{key} = {value}" for key, value in zip(("first_layers", "last_layers"), wanted.ends, strict=True) if value]
    changed = [f"{key} = {value}" + (f" (measured: {before})" if before else "") for key, value, before in named if value != before]
    return [*changed, *stated] or [f"pp = {new.stages} (as measured)"]


def _said(recorded: RecordedStages, wanted: Wanted, cut: _Cut, message: _Message) -> tuple[Diagnostic, ...]:
    """What is assumed where layers are on other stages or chunks than those that were recorded."""
    new, old = wanted.pipeline, recorded.pipeline
    if (new.stages, new.chunks, cut.layers) == (old.stages, old.chunks, cut.shown):
        return ()
    layers = ", ".join(map(str, cut.layers))
    shown = f"is of {counted(old.places, 'chunk')} on {old.stages} stages" if old.stages > 1 else "is of no pipeline"
    alike = ", alike but for the embedding and the head," if old.stages > 1 else ""
    text = (
        f"pp = {new.stages}: the recording {shown}; assumed are {layers} layers in {counted(new.places, 'chunk')}{alike} and messages of"
        f" {message.source}"
    )
    return (Diagnostic("stages-assumed", text),)


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


class _Cut:
    """Which recorded chunk every new one is made of, and how many layers it has. sources: for each new stage the recorded one. layers: of
    every new chunk, in the order of the forward pass. shown: of every recorded one."""

    def __init__(self, layout: MeasuredLayout, recorded: RecordedStages, wanted: Wanted) -> None:
        self.recorded, self.wanted = recorded, wanted
        old, new = recorded.pipeline, wanted.pipeline
        self.sources = _sources(old.stages, new.stages)
        self.shown = self._shown(layout)
        total = sum(self.shown)
        if total < new.places:
            raise UsageError(f"--set pp: {counted(total, 'layer')} cannot be spread over {counted(new.places, 'chunk')} of a pipeline")
        same = (old.stages, old.chunks) == (new.stages, new.chunks) and wanted.ends == EVEN
        self.layers = self.shown if same else layers_of_places(total, new.stages, new.chunks, wanted.ends)

    def _shown(self, layout: MeasuredLayout) -> list[int]:
        """The layers of every recorded chunk."""
        old = self.recorded.pipeline
        out = [0] * old.places
        for stage in range(old.stages):
            position = self.recorded.ranks[stage][0]
            step = next(s for s in steps_of(layout, layout.ranks[position]) if len(s.passes) == self.recorded.passes)
            for (_, chunk, backward), one in passes_of_step(self.recorded, stage, step).items():
                place = chunk * old.stages + stage
                layers = len(PassParts(layout, one.items, backward=backward).layers)
                if not layers or layers != (out[place] or layers):
                    shows = "other layers than another" if layers else "no layers that repeat"
                    raise LumosError(f"--set pp: a pass of stage {stage} shows {shows}, so it cannot be cut anew (lumos inspect --blocks)")
                out[place] = layers
        return out

    def arranged(self, layout: MeasuredLayout, stage: int, items: Sequence[Instance]) -> _Arranged:
        """What a rank of a new stage runs."""
        out = _Arranged([], [])
        for number, step in enumerate(steps_of(layout, items)):
            if len(step.passes) != self.recorded.passes:  # what is outside of steps
                out.items += [*step.before, *(i for one in step.passes for i in one.items), *step.after]
                continue
            passes = passes_of_step(self.recorded, self.sources[stage], step)
            ran: dict[tuple[int, bool], list[int]] = defaultdict(list)  # the microbatches as they ran, by chunk and direction
            for known, chunk, backward in passes:
                ran[chunk, backward].append(known)
            times: Counter[tuple[int, Pass]] = Counter()
            actions = self.wanted.pipeline.actions(stage, self.wanted.microbatches)
            ends = {(a.chunk, a.step): a.microbatch for a in actions}
            out.items += step.before
            for action in actions:
                backward = action.step is not Pass.FORWARD
                place = action.chunk * self.wanted.pipeline.stages + stage
                source = self._source(place, stage)
                of_chunk = ran[source // self.recorded.pipeline.stages, backward]
                number_of_run = times[action.chunk, action.step]
                microbatch = of_chunk[like(number_of_run, self.wanted.microbatches, self.recorded.microbatches)]
                times[action.chunk, action.step] += 1
                one = passes[microbatch, source // self.recorded.pipeline.stages, backward]
                parts = PassParts(layout, one.items, backward=backward)
                mine = parts.of(
                    self._chosen(place, source),
                    lead=source > 0 or place == 0,
                    tail=source < self.recorded.pipeline.places - 1 or place == self.wanted.pipeline.places - 1,
                )
                repeated = of_chunk[-1] == microbatch
                if repeated and ends[action.chunk, action.step] != action.microbatch:
                    mine = [replace(i, inner=True, later=True) for i in mine]
                first = len(out.items)
                out.items += mine
                out.runs.append(PassRun(0, 0, number, backward, action.microbatch, place, first, first + len(mine) - 1))
            out.items += self._after(layout, stage, step.after)
        return out

    def _chosen(self, place: int, source: int) -> Sequence[int]:
        """Which layers of a recorded chunk a new one has: its own where these are among them, else as many."""
        begin, recorded = sum(self.layers[:place]), sum(self.shown[:source])
        if recorded <= begin and begin + self.layers[place] <= recorded + self.shown[source]:
            return range(begin - recorded, begin - recorded + self.layers[place])
        return copied(self.shown[source], self.layers[place])

    def _source(self, place: int, stage: int) -> int:
        """The recorded chunk of which a new one is made: one of the recorded stage, with embedding or head only where it has to be."""
        old, new = self.recorded.pipeline, self.wanted.pipeline
        own = [chunk * old.stages + self.sources[stage] for chunk in range(old.chunks)]
        if place in (0, new.places - 1):
            return own[0] if place == 0 else own[-1]
        plain = [p for p in own if 0 < p < old.places - 1] or own
        return plain[place // new.stages % len(plain)]

    def _after(self, layout: MeasuredLayout, stage: int, items: Sequence[Instance]) -> list[Instance]:
        """What follows the passes, where it repeats by layers for as many as the stage has."""
        out: list[Instance] = []
        for by_layer, group in groupby(items, key=lambda i: layout.pieces[i.piece].label.layer >= 0):
            part = list(group)
            if by_layer:
                layers = [list(g) for _, g in groupby(part, key=lambda i: layout.pieces[i.piece].label.layer)]
                old = self.of_stage(self.shown, self.sources[stage], self.recorded.pipeline)
                wanted = round(len(layers) * self.of_stage(self.layers, stage, self.wanted.pipeline) / old)
                part = [i for nth in copied(len(layers), max(wanted, 1)) for i in layers[nth]]
            out += part
        return out

    @staticmethod
    def of_stage(layers: Sequence[int], stage: int, pipeline: Pipeline) -> int:
        """The layers of all chunks of a stage."""
        return sum(layers[stage :: pipeline.stages])


def _sources(old: int, new: int) -> list[int]:
    """For each of `new` stages the one of `old` of which it is a copy."""
    if old == new:
        return list(range(new))
    middle = (
        [1 + (i - 1) * (old - 2) // max(new - 2, 1) for i in range(1, new - 1)]
        if old > 2
        else [(old - 1) * int(2 * i >= new) for i in range(1, new - 1)]
    )
    return [0, *middle, old - 1]


def _shared_updates(layout: MeasuredLayout, job: Job, cut: _Cut) -> MeasuredLayout:
    """The layout in which every stage updates its own weights. Embedding and head are taken for as large as each other."""
    prices = layout.prices.copy()
    old, new = cut.recorded.pipeline, cut.wanted.pipeline
    for position, recorded in enumerate(layout.recorded):
        stage, trace = position // len(cut.recorded.ranks[0]), job.traces[recorded]
        source = cut.sources[stage]
        by_layer = weights(layout.segmentation, position, trace)
        inner, outer = sum(n for layer, n in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
        if not inner:
            continue
        own = cut.of_stage(cut.layers, stage, new) / cut.of_stage(cut.shown, source, old)
        ends, shown = (stage == 0) + (stage == new.stages - 1), (source == 0) + (source == old.stages - 1)
        share = ends / shown if shown else 1.0
        prices.multiply(whole_updates(layout, position), exactly((inner * own + outer * share) / (inner + outer)))
    return replace(layout, prices=prices)
