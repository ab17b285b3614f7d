"""Changes of a measured layout: other sizes, more or fewer layers, microbatches, recomputation, replicas.

Each function takes a layout and returns one; they compose, and those that touch different things commute. What a trace
cannot support is refused with the reason. Which blocks run how often is decided here; what changed work costs, in
`rescale` (operators) and `exchange` (collectives).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from lumos.analyze.steps import members
from lumos.cost.cluster import Accelerator
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.segment.dimensions import Operator, Resize, Shapes, Sizes, sizes
from lumos.segment.segment import Label
from lumos.segment.weights import weights
from lumos.simulate.durations import Mask
from lumos.trace.table import Int64, Job, Trace
from lumos.vocabulary import Phase, Recompute
from lumos.whatif.exchange import accumulation_ns
from lumos.whatif.measured_layout import Factors, Instance, MeasuredLayout
from lumos.whatif.rescale import Factor, Rescale, core_of, largest_inside, operator_rows
from lumos.whatif.settings import SETTINGS, Way

#: Sizes that may be changed.
SIZE_KEYS = tuple(key for key in SETTINGS if key in Sizes._fields)


# ---------------------------------------------------------------- sizes


def resize(layout: MeasuredLayout, job: Job, accelerator: Accelerator | None, **wanted: int) -> MeasuredLayout:
    """Other sizes per rank: any of SIZE_KEYS. accelerator: of the trace; None for a job on CPUs.

    Heads keep their number unless given, so a wider model has wider heads; feed-forward width and vocabulary keep theirs.
    LumosError where the trace does not show a size that is to change.
    """
    columns = layout.factor.copy(), layout.low.copy(), layout.high.copy()
    found, graph = layout.segmentation, layout.segmentation.graph
    owners = members(graph)
    in_layer = np.array([p.label.layer >= 0 for p in found.pieces], bool)[found.piece]
    update = np.array([p.label.phase == Phase.OPTIMIZER for p in found.pieces], bool)[found.piece]
    for position, trace in enumerate(job.traces):
        old = sizes(trace)
        change = Resize(old, resized(old, wanted, trace))
        tasks, rows = operator_rows(found, position, trace, owners)
        shapes = Shapes(trace)
        rescale = Rescale(change, accelerator, core_of(found, tasks, rows, shapes) if accelerator is None else None)
        shaped = shapes.of_row[rows] >= 0
        _rescaled(columns, graph, tasks[shaped], shapes, rows[shaped], rescale, in_layer, update)
        if accelerator is None:
            inner = largest_inside(trace, rows[~shaped], shapes)
            _rescaled(columns, graph, tasks[~shaped][inner >= 0], shapes, inner[inner >= 0], rescale.around, in_layer, update)
        before, after = (sum(weights(found, position, trace, r).values()) for r in (Resize(old, old), change))
        if before and after != before:
            _multiply(columns, _of_weights(layout, position, tasks[shaped]), graph.duration, (after / before,) * 3, 0.0)
    described = tuple(f"{key} = {value}" for key, value in wanted.items())
    return replace(layout, factor=columns[0], low=columns[1], high=columns[2], changes=(*layout.changes, *described))


def resized(old: Sizes, wanted: dict[str, int], trace: Trace) -> Sizes:
    """The sizes with those wanted. LumosError where one is not known from the trace, UsageError where they do not fit."""
    for key, value in wanted.items():
        if not getattr(old, key):
            raise LumosError(f"{trace.path}: its shapes do not show {key}, so it cannot be changed; record with record_shapes=True")
        if value < 1:
            raise UsageError(f"--set {key}={value}: must be at least 1")
    new = old._replace(**wanted)
    if "heads" in wanted and old.kv_heads == old.heads:
        new = new._replace(kv_heads=new.heads)
    if new.heads and ("hidden" in wanted or "heads" in wanted):
        if new.hidden % new.heads:
            raise UsageError(f"hidden ({new.hidden}) must be a multiple of heads ({new.heads})")
        new = new._replace(head_dim=old.head_dim * new.hidden * old.heads // (old.hidden * new.heads))
    return new


def _multiply(columns: Sequence[Factors], tasks: np.ndarray, duration: np.ndarray, ratios: Sequence[float], fixed: float) -> None:
    """Multiply the factors of tasks; `fixed` ns of their durations do not change."""
    still = np.minimum(fixed / np.maximum(duration[tasks], 1), 1.0)
    for column, ratio in zip(columns, ratios, strict=True):
        column[tasks] *= still + (1 - still) * ratio


def _rescaled(
    columns: Sequence[Factors],
    graph: Graph,
    tasks: Int64,
    shapes: Shapes,
    rows: Int64,
    factor: Callable[[Operator, bool, bool], Factor],
    in_layer: Mask,
    update: Mask,
) -> None:
    """Multiply the factors of `tasks`, whose time goes by the operators in `rows`: by `factor` of the operator, whether it is
    in a layer, and whether it belongs to an update."""
    key = 4 * shapes.of_row[rows].astype(np.int64) + 2 * in_layer[tasks] + update[tasks]
    order = np.argsort(key, kind="stable")
    kinds, first = np.unique(key[order], return_index=True)
    for kind, same in zip(kinds.tolist(), np.split(tasks[order], first)[1:], strict=True):
        f = factor(shapes.operators[kind >> 2], bool(kind & 2), bool(kind & 1))
        if f.ratio != 1.0:
            _multiply(columns, same, graph.duration, (f.ratio, f.low, f.high), f.fixed)


def _of_weights(layout: MeasuredLayout, position: int, shaped: np.ndarray) -> np.ndarray:
    """Tasks of a rank that work on all weights and show no shapes: fused optimizers' kernels, and gradient exchanges.
    shaped: tasks whose shapes are known."""
    graph, found = layout.segmentation.graph, layout.segmentation
    phase = np.array([p.label.phase for p in found.pieces], np.uint8)[found.piece]
    rank = np.array([p.rank for p in found.pieces], np.int64)[found.piece]
    update = graph.on_device & (phase == Phase.OPTIMIZER)
    update[shaped] = False
    exchanged = (graph.kind == Kind.COLLECTIVE) & np.isin(phase, (Phase.BACKWARD, Phase.OPTIMIZER))
    return np.flatnonzero((rank == position) & (update | exchanged))


# ---------------------------------------------------------------- layers


def layers(layout: MeasuredLayout, job: Job, count: int) -> MeasuredLayout:
    """`count` layers instead of those measured. Each new layer is a measured one: of n layers, layer i becomes i · n / count.

    LumosError where the trace shows no layers, or where they are not alike (a convolutional network's).
    """
    found = layout.segmentation
    have = found.layers
    if count < 1:
        raise UsageError(f"--set layers={count}: must be at least 1")
    if not have or found.evidence.get("forward") != "repetition":
        raise LumosError("--set layers: the trace shows no layers that repeat, so none can be added or left out (lumos inspect --blocks)")
    ranks = tuple(_relayered(layout, items, have, count) for items in layout.ranks)
    columns = layout.factor.copy(), layout.low.copy(), layout.high.copy()
    for position, trace in enumerate(job.traces):
        same = Resize(sizes(trace), sizes(trace))
        held = weights(found, position, trace, same)
        outer = held.get(-1, 0)
        inner = sum(v for layer, v in held.items() if layer >= 0)
        if inner:
            ratio = (outer + inner * count / have) / (outer + inner)
            _multiply(columns, _whole_updates(layout, position), found.graph.duration, (ratio,) * 3, 0.0)
    change = f"layers = {count} (measured: {have})"
    return replace(layout, ranks=ranks, factor=columns[0], low=columns[1], high=columns[2], changes=(*layout.changes, change))


def _relayered(layout: MeasuredLayout, items: tuple[Instance, ...], have: int, count: int) -> tuple[Instance, ...]:
    """Every pass over the layers with `count` of them."""
    out: list[Instance] = []
    for key, group in groupby(items, key=lambda i: _pass(layout, i)):
        run = list(group)
        if key is None:
            out += run
            continue
        own: dict[int, list[Instance]] = {}
        for item in run:
            own.setdefault(layout.pieces[item.piece].label.layer, []).append(item)
        order = list(own)
        down = len(order) > 1 and order[0] > order[-1]
        if sorted(order) != list(range(have)):
            raise LumosError(f"--set layers: a pass shows layers {sorted(order)} instead of 0 to {have - 1}: it was cut differently")
        new = [i * have // count for i in range(count)]
        for layer in reversed(new) if down else new:
            out += own[layer]
    return tuple(out)


def _pass(layout: MeasuredLayout, item: Instance) -> tuple[int, ...] | None:
    """What the pieces of one pass over the layers have in common; None outside the layers. Recomputation is part of the
    backward pass."""
    piece = layout.pieces[item.piece]
    label = piece.label
    if label.layer < 0:
        return None
    phase = Phase.BACKWARD if label.phase == Phase.RECOMPUTE else label.phase
    return piece.step, int(phase) if item.beside < 0 else int(Phase.BACKWARD), label.microbatch


def _whole_updates(layout: MeasuredLayout, position: int) -> np.ndarray:
    """Tasks of optimizers that treat all layers' weights at once (those that go layer by layer are repeated instead)."""
    found, graph = layout.segmentation, layout.segmentation.graph
    by_layer = found.evidence.get("optimizer") == "repetition"
    if by_layer:
        return np.empty(0, np.int64)
    mine = np.array([p.rank == position and p.label.phase == Phase.OPTIMIZER for p in found.pieces], bool)[found.piece]
    return np.flatnonzero(mine & (graph.kind != Kind.HOST))


# ---------------------------------------------------------------- microbatches


def microbatches(layout: MeasuredLayout, job: Job, accelerator: Accelerator | None, count: int) -> MeasuredLayout:
    """`count` microbatches a step (gradient accumulation) instead of those measured.

    All but the last run as the measured ones without exchanging gradients, and every one but the first adds its gradients
    to what is there. LumosError where the trace has no backward pass, or a step's passes do not pair up.
    """
    if count < 1:
        raise UsageError(f"--set microbatches={count}: must be at least 1")
    found = layout.segmentation
    if not any(p.label.phase == Phase.BACKWARD for p in found.pieces):
        raise LumosError("--set microbatches: the trace has no backward pass, so a step cannot be told from its microbatches")
    have = _paired(layout)
    adding = [accumulation_ns(layout, position, trace, accelerator) for position, trace in enumerate(job.traces)]
    ranks = []
    for position, items in enumerate(layout.ranks):
        out: list[Instance] = []
        for (_, passes), group in groupby(items, key=lambda i: (layout.pieces[i.piece].step, _is_pass(layout, i))):
            run = list(group)
            out += _repeated(layout, run, have, count, adding[position]) if passes else run
        ranks.append(tuple(out))
    change = f"microbatches = {count} (measured: {have})"
    return replace(layout, ranks=tuple(ranks), changes=(*layout.changes, change))


def _paired(layout: MeasuredLayout) -> int:
    """Microbatches a step. LumosError where a step runs other forward than backward passes (it works ahead for the next one)."""
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
                " so its microbatches cannot be told apart (lumos inspect --blocks)"
            )
        if forward and backward:
            counts.add(len(backward))
    if len(counts) != 1:
        raise LumosError(f"--set microbatches: the steps show {sorted(counts)} microbatches, not one number (lumos inspect --blocks)")
    return counts.pop()


def _is_pass(layout: MeasuredLayout, item: Instance) -> bool:
    return layout.pieces[item.piece].label.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)


def _repeated(layout: MeasuredLayout, run: list[Instance], have: int, count: int, adding: dict[int, int]) -> list[Instance]:
    """The passes of one step, `count` times: the last as the last measured, those before as the first measured ones."""
    by: dict[int, list[Instance]] = {}
    for item in run:
        by.setdefault(layout.pieces[item.piece].label.microbatch, []).append(item)
    if len(by) != have:
        return run  # a step that the window cut
    early = [by[m] for m in range(have - 1)] or [[replace(i, inner=True) for i in by[0]]]
    out: list[Instance] = []
    for m in range(count):
        source = by[have - 1] if m == count - 1 else early[min(m, len(early) - 1)]
        fresh = have == 1 and m > 0
        out += [_accumulating(layout, i, adding) if fresh else i for i in source]
    return out


def _accumulating(layout: MeasuredLayout, item: Instance, adding: dict[int, int]) -> Instance:
    label = layout.pieces[item.piece].label
    if label.phase != Phase.BACKWARD or item.beside >= 0:
        return item
    return replace(item, extra=item.extra + adding.get(label.layer if label.layer >= 0 else -1, 0))


# ---------------------------------------------------------------- recomputation


def recompute(layout: MeasuredLayout, wanted: str) -> MeasuredLayout:
    """ "full": every layer's forward pass runs again before its backward pass, on the thread of the latter. "none": a
    measured recomputation is left out.

    LumosError where the trace has no backward pass or no layers, or the two do not belong together.
    """
    SETTINGS["recompute"].check_for(Way.BLOCKS, wanted)
    found = layout.segmentation
    if not found.layers or not any(p.label.phase == Phase.BACKWARD for p in found.pieces):
        raise LumosError("--set recompute: needs layers and a backward pass in the trace (see lumos inspect --blocks)")
    recomputes = any(p.label.phase == Phase.RECOMPUTE for p in found.pieces)
    if wanted == Recompute.NONE:
        kept = [[i for i in items if layout.pieces[i.piece].label.phase != Phase.RECOMPUTE and i.beside < 0] for items in layout.ranks]
        return replace(layout, ranks=tuple(map(tuple, kept)), changes=(*layout.changes, "recompute = none"))
    if recomputes:
        return replace(layout, changes=(*layout.changes, "recompute = full (as measured)"))
    ranks = tuple(_recomputed(layout, items) for items in layout.ranks)
    if ranks == layout.ranks:
        raise LumosError("--set recompute: no layer's backward pass has its forward pass in the same step (lumos inspect --blocks)")
    return replace(layout, ranks=ranks, changes=(*layout.changes, "recompute = full"))


def _recomputed(layout: MeasuredLayout, items: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """The forward pieces of a layer again before its backward pieces."""
    forward: dict[tuple[int, int, int], list[Instance]] = {}
    for item in items:
        piece = layout.pieces[item.piece]
        if piece.label.phase == Phase.FORWARD and piece.label.layer >= 0:
            known = forward.setdefault((piece.step, piece.label.microbatch, piece.label.layer), [])
            if item.piece not in {i.piece for i in known}:
                known.append(item)
    out: list[Instance] = []
    previous: tuple[Label, int] | None = None
    for item in items:
        piece = layout.pieces[item.piece]
        label = piece.label
        if label.phase == Phase.BACKWARD and label.layer >= 0:
            key = (piece.step, label.microbatch, label.layer)
            if previous is None or previous[0] != label or previous[1] == item.piece:
                out += [replace(i, beside=item.piece, inner=True) for i in forward.get(key, ())]
        previous = (label, item.piece)
        out.append(item)
    return tuple(out)
