"""The layers of a job without a pipeline, spread over stages.

Every stage is a copy of the recorded rank that runs some of the layers: as many as the others, or one more. Embedding and head stay with
the first and the last. The passes of the step's microbatches run in the order of the schedule. A pass begins when the activations, or their
gradients, have come from the stage that has them, which takes the time of the model of a transfer between two ranks over the stated or
usual link. Its 80 % interval reaches from nothing, for one that is hidden, to twice that, for one that holds its sender as long as its
receiver. Nothing else waits for a message. An optimizer that updates all weights at once takes the
share of its time that the stage has of the weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.change import whole_updates
from lumos.changes.layout.parallel.split import stream_bytes
from lumos.changes.layout.pipeline.messages import PassRun, messages
from lumos.changes.layout.pipeline.multiplied import multiplied
from lumos.changes.layout.pipeline.recorded import Pipeline
from lumos.changes.layout.placed import AddedTimes, times_of
from lumos.changes.layout.prices import exactly
from lumos.changes.settings import counts
from lumos.cost.collective_model import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.plan.schedules import Pass
from lumos.segment.weights import weights
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, Phase, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.cost.cluster import Cluster
    from lumos.trace.table import Job


def pipelined(layout: MeasuredLayout, job: Job, pipeline: Pipeline, cluster: Cluster, ratio: float) -> MeasuredLayout:
    """The layout as a pipeline. ratio: by which other changes made the residual stream larger.

    Raises LumosError where the passes of a step cannot be told, and UsageError where they have fewer layers than the pipeline has chunks.
    """
    recorded = len(layout.ranks)
    _Stage(layout, pipeline, 0, recorded, 0).arranged(layout.ranks[0])  # what cannot be cut is said before anything is copied
    whole = multiplied(layout, pipeline.stages)
    ranks: list[tuple[Instance, ...]] = []
    runs: list[PassRun] = []
    edges: tuple[int, ...] = ()
    for position, items in enumerate(whole.ranks):
        stage = _Stage(whole, pipeline, position, recorded, sum(map(len, ranks)))
        ranks.append(stage.arranged(items))
        runs += stage.runs
        edges = stage.edges
    if not edges:
        raise LumosError("--set pp: the trace has no step with forward and backward passes, so there are none that stages could run")
    nbytes = round(stream_bytes(job.traces[0]) * ratio)
    if not nbytes:
        raise LumosError(
            f"--set pp: the shapes of {job.traces[0].path} do not show how large the activations are that stages would send; record with"
            " record_shapes=True"
        )
    best = times_of(collective(CollectiveKind.SEND_RECEIVE, 2, nbytes, cluster)).best
    time = AddedTimes(best, 0, 2 * best)  # hidden altogether, or holding the sender as long as the receiver
    layers = ", ".join(str(high - low) for low, high in pairwise(edges))
    text = (
        f"pp = {pipeline.stages}: the recording is of no pipeline and shows no transfer; assumed are {layers} layers in its"
        f" {counted(pipeline.places, 'chunk')}, messages of {nbytes / 1e6:,.1f} MB over the links of {cluster.name}"
    )
    words = [f"pp = {pipeline.stages} (measured: 1)"]
    words += [f"vpp = {pipeline.chunks}"] if pipeline.chunks > 1 else []
    out = _shared_updates(replace(whole, ranks=tuple(ranks)), job, pipeline, edges)
    return replace(
        out,
        assumed=(*out.assumed, partial(messages, tuple(runs), pipeline.places, time)),
        shared=out.shared * pipeline.stages,
        changes=(*out.changes, *words, f"schedule = {pipeline.order}"),
        diagnostics=(*out.diagnostics, Diagnostic("stages-assumed", text)),
    )


def wanted_pipeline(settings: Mapping[str, str]) -> Pipeline | None:
    """The pipeline that the settings ask for of a job without one; None where they ask for none.

    Raises LumosError where they ask for chunks or an order, but for no stages.
    """
    asked = [key for key in ("pp", "vpp", "schedule") if key in settings]
    numbers = counts(settings)
    wanted = numbers.get("pp", 1)
    if not asked or (wanted == 1 and numbers.get("vpp", 1) == 1 and "schedule" not in settings):
        return None
    if wanted == 1:
        raise LumosError(f"--set {asked[0]}: the job has no pipeline; ask for one with --set pp=N as well")
    chunks = numbers.get("vpp", 1)
    usual = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
    return Pipeline(wanted, chunks, Schedule(settings.get("schedule", usual)))


class _Stage:
    """What one rank runs of the passes over all layers. recorded: the number of recorded ranks. first: the number of its first instance.
    edges: the first layer of every chunk, and the number of layers; () before a pass was seen."""

    def __init__(self, layout: MeasuredLayout, pipeline: Pipeline, rank: int, recorded: int, first: int) -> None:
        self.layout, self.pipeline, self.rank, self.number = layout, pipeline, rank, first
        self.stage, self.replica = divmod(rank, recorded)
        self.runs: list[PassRun] = []
        self.edges: tuple[int, ...] = ()

    def arranged(self, items: Sequence[Instance]) -> tuple[Instance, ...]:
        """The instances of the rank in the order of the schedule."""
        out: list[Instance] = []
        for step, (_, group) in enumerate(groupby(items, key=lambda i: self.layout.pieces[i.piece].step)):
            out += self._step(step, list(group), len(out))
        return tuple(out)

    def _step(self, step: int, items: list[Instance], before: int) -> list[Instance]:
        passes: dict[bool, list[list[Instance]]] = {False: [], True: []}
        rest: dict[bool, list[Instance]] = {False: [], True: []}
        for key, group in groupby(items, key=self._pass):
            if key is None:
                rest[bool(passes[False])] += group
            else:
                passes[key[0]].append(list(group))
        forward, backward = passes[False], passes[True]
        if not forward or not backward:
            return items
        if len(forward) != len(backward):
            raise LumosError(
                f"--set pp: a step shows {len(forward)} forward and {len(backward)} backward passes, so its microbatches cannot be told"
                " (lumos inspect --blocks)"
            )
        chunked = {False: [self._chunks(p, False) for p in forward], True: [self._chunks(p, True) for p in backward]}
        out = list(rest[False])
        for action in self.pipeline.actions(self.stage, len(forward)):
            is_backward, place = action.step is not Pass.FORWARD, action.chunk * self.pipeline.stages + self.stage
            mine = chunked[is_backward][action.microbatch][place]
            first = self.number + before + len(out)
            out += mine
            if mine:
                self.runs.append(
                    PassRun(self.rank, self.replica, step, is_backward, action.microbatch, place, first, first + len(mine) - 1)
                )
        return [*out, *rest[True]]

    def _pass(self, item: Instance) -> tuple[bool, int] | None:
        """Direction and microbatch of the pass that an instance belongs to; None for none. Recomputation is part of the backward pass."""
        label = self.layout.pieces[item.piece].label
        if label.phase not in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE):
            return None
        return label.phase != Phase.FORWARD or item.thread_of >= 0, label.microbatch

    def _chunks(self, items: list[Instance], backward: bool) -> list[list[Instance]]:
        """The instances of a pass by chunk: those of its layers, and to the first and the last what comes before and after them."""
        layer, layers = self._layers(items)
        places = self.pipeline.places
        if not layers:
            raise LumosError(
                "--set pp: a pass of the recording shows no layers, so none can be spread over stages (lumos inspect --blocks)"
            )
        if layers < places:
            raise UsageError(f"--set pp: {counted(layers, 'layer')} cannot be spread over {counted(places, 'chunk')} of a pipeline")
        edges = tuple(round(i * layers / places) for i in range(places + 1))
        self.edges = edges
        out: list[list[Instance]] = [[] for _ in range(places)]
        for item, nth in zip(items, layer, strict=True):
            at = layers - 1 - nth if backward and nth >= 0 else nth
            at = min(max(at, 0), layers - 1) if nth >= 0 else (layers - 1 if backward else 0)
            out[int(np.searchsorted(edges, at, "right")) - 1].append(item)
        return out

    def _layers(self, items: list[Instance]) -> tuple[list[int], int]:
        """For every instance of a pass how many layers have begun before, less one, and the number of its layers. What lies behind the last
        layer counts as part of it. A layer begins with another label, or with a piece that has run in it already."""
        out, number, previous, ran = [], -1, None, set[int]()
        for item in items:
            layer = self.layout.pieces[item.piece].label.layer
            if layer >= 0 and (layer != previous or item.piece in ran):
                number, previous, ran = number + 1, layer, set()
            ran.add(item.piece)
            out.append(number)
        return out, number + 1


def _shared_updates(layout: MeasuredLayout, job: Job, pipeline: Pipeline, edges: Sequence[int]) -> MeasuredLayout:
    """The layout in which every stage updates its own weights."""
    prices = layout.prices.copy()
    recorded = len(job.traces)
    for position in range(len(layout.ranks)):
        trace, stage = job.traces[position % recorded], position // recorded
        by_layer = weights(layout.segmentation, position, trace)
        inner, outer = sum(n for layer, n in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
        if not inner:
            continue
        own = sum(edges[i + 1] - edges[i] for i in range(stage, pipeline.places, pipeline.stages)) / edges[-1]
        ends = ((stage == 0) + (stage == pipeline.stages - 1)) / 2  # embedding and head are mostly of one size
        prices.multiply(whole_updates(layout, position), exactly((inner * own + outer * ends) / (inner + outer)))
    return replace(layout, prices=prices)
