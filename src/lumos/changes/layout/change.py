"""Changes of a measured layout: more or fewer layers, and microbatches.

Each function takes a layout and returns one. They compose, and those that change different things commute. A change that the
trace does not support is refused with the reason. This module decides which blocks run how often; `reprice` decides what changed
operators cost, and `exchange` what changed collectives and more replicas cost.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.accumulate import accumulation
from lumos.changes.layout.activations import in_forward, weights_carried
from lumos.changes.layout.measured_layout import NOTHING, Extra
from lumos.changes.layout.pipeline.recorded import recorded_pipeline
from lumos.changes.layout.prices import TaskPrices, exactly
from lumos.changes.layout.sharding.exchanged import REDUCER, exchanged_by_rank
from lumos.changes.ranges import inside
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Kind
from lumos.segment.pass_layers import RECURRENT, REPETITION
from lumos.segment.rank import recordings_of
from lumos.trace.table import excluding, unique
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.sharding.exchanged import Exchanged
    from lumos.cost.cluster import Accelerator
    from lumos.graph.table import Graph
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Int64, Job

#: What operators and kernels are called that update lists of weights.
_LISTS = re.compile(r"_foreach_|_fused_|multi_tensor")
#: What DistributedDataParallel and FSDP2 do around an exchange of gradients, and only where there is one.
_BUCKETS = re.compile(rf"{REDUCER}|FSDP::post_backward_r(educe|s_wait)")

#: The phases of a microbatch's passes.
_OF_PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)

# ---------------------------------------------------------------- layers


def layers(layout: MeasuredLayout, job: Job, count: int) -> MeasuredLayout:
    """The layout with `count` layers, which are copies of the measured ones (`copied`). Of several stacks that have as many layers as each
    other (an encoder's and a decoder's), each has `count` then, which is how the configurations of such models count; stacks of different
    numbers have `count` layers together, and keep their proportion.

    Raises LumosError where the trace shows no layers, or layers that are not alike (as those of a convolutional network), and where the
    stacks cannot keep their proportion.
    """
    segmentation = layout.segmentation
    measured, stages = segmentation.layers, pipeline_stages(segmentation.graph, job)
    if count < 1:
        raise UsageError(f"--set layers={count}: must be at least 1")
    if stages > 1:
        stages *= _chunks(layout, job, stages)
        if count % stages:
            raise LumosError(
                f"--set layers={count}: must be a multiple of the {stages} pipeline stages or chunks, each of which has as many"
            )
        count //= stages
    if not measured or segmentation.evidence.get("forward") not in (REPETITION, RECURRENT):
        raise LumosError("--set layers: the trace shows no layers that repeat, so none can be added or left out (lumos inspect --blocks)")
    stacks = segmentation.stacks
    alike = len(stacks) if len(set(stacks)) == 1 else 1
    count *= alike
    if any(stack * count % measured for stack in stacks):
        parts = " + ".join(map(str, stacks))
        raise LumosError(f"--set layers={count}: the model has stacks of {parts} = {measured} layers, which cannot keep their proportion")
    new = [
        first + i for first, stack in zip(accumulate((0, *stacks)), stacks, strict=False) for i in copied(stack, stack * count // measured)
    ]
    ranks = tuple(_relayered(layout, items, new) for items in layout.ranks)
    prices = layout.prices.copy()
    for rank, exchanged in zip(recordings_of(segmentation, job), exchanged_by_rank(layout, job), strict=True):
        _more_updates(prices, layout, rank, exchanged, new)
    change = f"layers = {count // alike * stages} (measured: {recorded_layers(layout, job)})"
    if alike > 1:
        change += f" in each of {alike} stacks"
    return replace(layout, ranks=ranks, prices=prices, changes=(*layout.changes, change))


def recorded_layers(layout: MeasuredLayout, job: Job) -> int:
    """How many layers the recorded model has: of equal stacks each, and of a pipeline all stages and chunks together."""
    stacks, stages = layout.segmentation.stacks, pipeline_stages(layout.segmentation.graph, job)
    chunks = _chunks(layout, job, stages) if stages > 1 else 1
    return layout.segmentation.layers // (len(stacks) if len(set(stacks)) == 1 else 1) * stages * chunks


def _more_updates(
    prices: TaskPrices, layout: MeasuredLayout, rank: RankRecording, exchanged: Exchanged, layers_of: Sequence[int]
) -> None:
    """Let an update of all weights at once be that of the weights of other layers, in place: what works on their values takes time in
    proportion to these; what prepares that on the CPU, with the Python between, in proportion to how many weights there are, where the
    trace shows it. The interval reaches to a Python that does not depend on them. layers_of: the new layers, by their measured numbers."""
    segmentation, graph = layout.segmentation, layout.segmentation.graph
    values = rank.weights()
    updates = excluding(whole_updates(layout, rank.position), _of_outside(layout, exchanged, values))
    tensors = Counter(gradient.layer for gradient in rank.gradients) or values
    works = graph.on_device if graph.on_device.any() else graph.kind == Kind.OPERATOR
    between = np.flatnonzero((graph.kind == Kind.HOST) & np.isin(segmentation.piece, segmentation.piece[updates]))
    for tasks, by_layer in ((updates[works[updates]], values), (updates[~works[updates]], tensors), (between, tensors)):
        if any(layer >= 0 for layer in by_layer):
            times = (by_layer.get(-1, 0) + sum(by_layer.get(layer, 0) for layer in layers_of)) / sum(by_layer.values())
            prices.multiply(tasks, exactly(times))
            if tasks is between:
                prices.reach(tasks, 1 / times)


def _of_outside(layout: MeasuredLayout, exchanged: Exchanged, by_layer: Mapping[int, int]) -> Int64:
    """The tasks by which replicas exchange what is outside the layers by itself, with the copies around them. by_layer: weights."""
    facts, none = layout.segmentation.graph.collectives, exchanged.gradients[:0]
    rows = none if facts is None else facts.rows_of(exchanged.gradients)
    rows = rows[weights_carried(layout, rows, by_layer)[1]]
    return none if facts is None or not len(rows) else unique(facts.task[rows].astype(np.int64), exchanged.copies)


def pipeline_stages(graph: Graph, job: Job) -> int:
    """The stages of the job's pipeline: its ranks over the distance to the nearest peer of a transfer; 1 without transfers."""
    facts = graph.collectives
    if facts is None:
        return 1
    rank = np.array([p.rank for p in graph.processors], np.int64)[graph.processor[facts.task]]
    distance = np.abs(facts.peer - rank)[facts.peer >= 0]
    distance = distance[distance > 0]
    return max(job.world // int(distance.min()), 1) if len(distance) else 1


def _chunks(layout: MeasuredLayout, job: Job, stages: int) -> int:
    """How many chunks of layers each stage of the job's pipeline has: 1 where the order of its passes does not say it."""
    try:
        return recorded_pipeline(layout, job, stages).pipeline.chunks
    except LumosError:
        return 1


def copied(measured: int, count: int) -> list[int]:
    """Of which measured layer of a stack each of `count` layers is a copy. The last stays the last, since what ends a stack may be a part
    of it, and the first stays the first, since what later layers take over from it may be; those between repeat in equal parts."""
    if count == 1 or measured == 1:
        return [measured - 1] * count
    if measured == 2:
        return [0] * (count - 1) + [1]
    return [0, *(1 + i * (measured - 2) // (count - 2) for i in range(count - 2)), measured - 1]


def _relayered(layout: MeasuredLayout, items: tuple[Instance, ...], wanted: Sequence[int]) -> tuple[Instance, ...]:
    """The instances of a rank in which every pass runs over the layers `wanted`, by their measured numbers."""
    out: list[Instance] = []
    for key, group in groupby(items, key=lambda i: _pass(layout, i)):
        one_pass = list(group)
        if key is None:
            out += one_pass
            continue
        of_layer: dict[int, list[Instance]] = {}
        for item in one_pass:
            of_layer.setdefault(layout.pieces[item.piece].label.layer, []).append(item)
        order = list(of_layer)
        descending = len(order) > 1 and order[0] > order[-1]
        if not _is_whole(sorted(order), layout.segmentation.stacks):
            most = layout.segmentation.layers - 1
            raise LumosError(f"--set layers: a pass shows layers {sorted(order)} instead of 0 to {most}: it was cut differently")
        new = [layer for layer in wanted if layer in of_layer]
        for layer in reversed(new) if descending else new:
            out += of_layer[layer]
    return tuple(out)


def _is_whole(layers: list[int], stacks: tuple[int, ...]) -> bool:
    """Whether ascending layers are all layers of one stack, or of several that follow each other."""
    edges = [0, *accumulate(stacks)]
    return bool(layers) and layers == list(range(layers[0], layers[-1] + 1)) and {layers[0], layers[-1] + 1} <= set(edges)


def _pass(layout: MeasuredLayout, item: Instance) -> tuple[int, ...] | None:
    """The step, direction and microbatch that the pieces of one pass over the layers share; None outside the layers. Recomputation
    is part of the backward pass."""
    piece = layout.pieces[item.piece]
    label = piece.label
    if label.layer < 0:
        return None
    phase = Phase.BACKWARD if label.phase == Phase.RECOMPUTE else label.phase
    return piece.step, int(phase) if item.thread_of < 0 else int(Phase.BACKWARD), label.microbatch


def whole_updates(layout: MeasuredLayout, position: int) -> Int64:
    """Tasks of a rank's optimizer if it updates all layers at once. One that updates layer by layer is repeated instead. Where something
    else is done to every layer before (a pipeline's schedule divides the gradients), the tasks are those outside the layers, if they update
    lists of weights and nothing in the layers does."""
    segmentation, graph = layout.segmentation, layout.segmentation.graph
    of_optimizer = (segmentation.owners.rank == position) & (segmentation.phase == Phase.OPTIMIZER)
    if segmentation.evidence.get("optimizer") == "repetition":
        in_layer, of_lists = segmentation.layer >= 0, graph.named(_LISTS.search)
        if (of_optimizer & in_layer & of_lists).any():
            return np.empty(0, np.int64)
        works = of_lists | ~graph.on_device if (of_optimizer & of_lists & graph.on_device).any() else np.zeros(len(graph), bool)
        of_optimizer &= works & ~in_layer
    return np.flatnonzero(of_optimizer & (graph.kind != Kind.HOST))


# ---------------------------------------------------------------- microbatches


def microbatches(
    layout: MeasuredLayout, job: Job, accelerator: Accelerator | None, count: int, shaped: Job | None = None
) -> MeasuredLayout:
    """The layout with `count` microbatches in a step (gradient accumulation). shaped: the traces with the shapes that the changed job has;
    None where they are the recorded ones.

    All but the last run without exchanging gradients, and all but the first add their gradients to those that are there. Raises
    LumosError where the trace has no backward pass, or a step has other forward than backward passes.
    """
    if count < 1:
        raise UsageError(f"--set microbatches={count}: must be at least 1")
    segmentation = layout.segmentation
    if not any(p.label.phase == Phase.BACKWARD for p in segmentation.pieces):
        raise LumosError("--set microbatches: the trace has no backward pass, so it is unknown which passes form a step")
    measured = recorded_microbatches(layout)
    pairs = zip(*(recordings_of(segmentation, traces_of) for traces_of in (job, shaped or job)), strict=True)
    added = [accumulation(rank, accelerator, after=after) for rank, after in pairs]
    last = layout.last | set(np.flatnonzero(inside(segmentation.graph, job, _BUCKETS.match)).tolist())
    working, exchanging = _working(segmentation), _exchanging(segmentation, last)
    ranks = []
    for position, items in enumerate(layout.ranks):
        out: list[Instance] = []
        pieces = layout.pieces
        for (_, passes), group in groupby(items, key=lambda i: (pieces[i.piece].step, pieces[i.piece].label.phase in _OF_PASSES)):
            of_step = list(group)
            out += _repeated(layout, of_step, measured, count, added[position], working, exchanging) if passes else of_step
        ranks.append(tuple(out))
    if count != measured and tuple(ranks) == layout.ranks:
        raise LumosError(
            f"--set microbatches={count}: a step of the recording shows {measured} microbatches, but not one after the other: updates of"
            " the weights lie between their passes, so it holds several steps; mark each (profiler.step() in the loop) and record again"
        )
    change = f"microbatches = {count} (measured: {measured})"
    return replace(layout, ranks=tuple(ranks), last=last, changes=(*layout.changes, change))


def recorded_microbatches(layout: MeasuredLayout) -> int:
    """The number of microbatches in a step. Raises LumosError where a step has other forward than backward passes (because it already
    runs passes of the next step), or where the steps differ."""
    passes: dict[tuple[int, int], dict[Phase, set[int]]] = {}
    for p in layout.pieces:
        if p.label.phase in (Phase.FORWARD, Phase.BACKWARD):
            passes.setdefault((p.rank, p.step), {}).setdefault(p.label.phase, set()).add(p.label.microbatch)
    counts = set()
    for (rank, _), seen in passes.items():
        forward, backward = seen.get(Phase.FORWARD, set()), seen.get(Phase.BACKWARD, set())
        if forward and backward and forward != backward:
            raise LumosError(
                f"--set microbatches: a step of rank position {rank} shows {len(forward)} forward and {len(backward)} backward passes,"
                " so its microbatches cannot be counted (lumos inspect --blocks)"
            )
        if forward and backward:
            counts.add(len(backward))
    if len(counts) != 1:
        raise LumosError(f"--set microbatches: the steps show {sorted(counts)} microbatches, not one number (lumos inspect --blocks)")
    return counts.pop()


def _working(segmentation: Segmentation) -> set[int]:
    """The pieces that compute: with a kernel, or with an operator where the trace has no device."""
    graph = segmentation.graph
    computes = graph.kind == (Kind.KERNEL if graph.on_device.any() else Kind.OPERATOR)
    return set(unique(segmentation.piece[computes]).tolist())


def _exchanging(segmentation: Segmentation, last: frozenset[int]) -> set[int]:
    """The pieces that exchange gradients, or copy them for that. last: tasks that do so beside the collectives."""
    facts = segmentation.graph.collectives
    exchanges = facts.task[~in_forward(segmentation)].tolist() if facts is not None else []
    return set(segmentation.piece[[*exchanges, *last]].tolist())


def _repeated(
    layout: MeasuredLayout,
    of_step: list[Instance],
    measured: int,
    count: int,
    added: dict[int, Extra],
    working: set[int],
    exchanging: set[int],
) -> list[Instance]:
    """The passes of one step for `count` microbatches: the first and the last as recorded, those between as the last recorded one that
    exchanges nothing. working: the pieces that compute. exchanging: those that exchange gradients."""
    by_microbatch: dict[int, list[Instance]] = {}
    for item in of_step:
        by_microbatch.setdefault(layout.pieces[item.piece].label.microbatch, []).append(item)
    if len(by_microbatch) != measured:
        return of_step  # the window cut this step
    early = [by_microbatch[m] for m in range(measured - 1)] or [[replace(i, inner=True) for i in by_microbatch[0]]]
    if measured == 2 and not any(item.piece in exchanging for item in by_microbatch[1]):
        early.append(by_microbatch[1])  # it shows how gradients are added to earlier ones
    out: list[Instance] = []
    for m in range(count):
        number = measured - 1 if m == count - 1 else min(m, len(early) - 1)
        source = by_microbatch[number] if m == count - 1 else early[number]
        out += _accumulating(layout, source, added, working) if number == 0 and m > 0 else source  # the first one had nothing to add to
    return out


def _accumulating(layout: MeasuredLayout, items: list[Instance], added: dict[int, Extra], working: set[int]) -> list[Instance]:
    """The instances of the first microbatch as a later one, of which each layer adds its gradients at the end of its backward pass."""
    out = [replace(item, later=True) for item in items]
    last: dict[int, int] = {}
    for i, item in enumerate(items):
        label = layout.pieces[item.piece].label
        if label.phase == Phase.BACKWARD and item.thread_of < 0 and item.piece in working:
            last[label.layer] = i
    for layer, i in last.items():
        out[i] = replace(out[i], extra=out[i].extra + added.get(layer, NOTHING))
    return out
