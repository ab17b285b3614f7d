"""Other sizes of the model in a measured layout: what every task then takes, from the shapes of its operator.

Work whose operator has no shapes, or shapes that do not show the change, keeps its time; its interval reaches to the time in
proportion to the change, and the answer says how much of the passes that is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.activations import in_embedding, in_forward, measured_ranks, of_stream, shared_keys, weights_carried
from lumos.changes.layout.measured_layout import rewriting, shaped_as_recorded
from lumos.changes.layout.prices import exactly
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.reprice import changed_tasks
from lumos.changes.layout.reshaped import after_both
from lumos.changes.layout.sharding.exchanged import exchanged_by_rank
from lumos.changes.settings import SETTINGS
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Kind
from lumos.operators.shaped import shapes_of_weights
from lumos.operators.table import without_work
from lumos.segment.program import axes_of
from lumos.segment.rank import recordings_of
from lumos.segment.sizes import Resized, Sizes, sizes
from lumos.trace.table import excluding, unique
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.operators.table import Shape
    from lumos.segment.program import Shapes
    from lumos.segment.rank import RankRecording
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64, Job, Trace

#: Sizes that may be changed.
SIZE_KEYS = tuple(key for key in SETTINGS if key in Sizes._fields)
#: Share of the work of the passes from which it is said that a change could not reach it.
WORTH_SAYING = 0.02
#: The code of the diagnostic that rows of which nothing says what they follow were taken to follow the tokens.
READ_TWICE = "two-readings"


def resize(layout: MeasuredLayout, job: Job, **wanted: int) -> MeasuredLayout:
    """The layout with other sizes of each rank: any of SIZE_KEYS.

    Sizes are those of the model, of which tensor-parallel ranks hold a part each. The number of heads stays unless given, so a wider
    model has wider heads. The feed-forward width and the vocabulary stay, too. Raises LumosError where the trace does not show a size that
    is to change or tensor-parallel ranks cannot share it equally, UsageError where sizes do not fit together.
    """
    of_rank = sizes_of_rank(layout, job, wanted)
    old = sizes(job.traces[0])
    described = tuple(f"{key} = {value} (measured: {getattr(old, key) * value // of_rank[key]})" for key, value in wanted.items())
    return to_sizes(layout, job, lambda old, trace: resized(old, of_rank, trace), tuple(wanted), described)


def sizes_of_rank(layout: MeasuredLayout, job: Job, wanted: Mapping[str, int]) -> dict[str, int]:
    """The sizes of one rank's part of a model that has the sizes `wanted`: of what tensor-parallel ranks share, each has an equal part.

    Raises LumosError where they cannot share a size equally.
    """
    if not wanted:
        return {}
    ranks, shared = sharing_ranks(layout, job)
    for key, value in wanted.items():
        if key in shared and value % ranks:
            raise LumosError(f"--set {key}={value}: the {ranks} tensor-parallel ranks of the recording cannot share it equally")
    return {key: value // ranks if key in shared else value for key, value in wanted.items()}


def sharing_ranks(layout: MeasuredLayout, job: Job) -> tuple[int, tuple[str, ...]]:
    """How many tensor-parallel ranks the recording has, and of which sizes each holds a part."""
    rows = of_stream(layout, job)
    ranks = measured_ranks(layout, rows) or 1
    return ranks, shared_keys(vocabulary=in_embedding(layout, rows)) if ranks > 1 else ()


def to_sizes(
    layout: MeasuredLayout,
    job: Job,
    choose: Callable[[Sizes, Trace], Sizes],
    keys: Sequence[str],
    described: tuple[str, ...],
    rewritten: MeasuredLayout | None = None,
    *,
    of_weights: bool = True,
) -> MeasuredLayout:
    """The layout with the sizes that `choose` makes of those of each rank. keys: the sizes that change. described: the change in words.
    rewritten: the layout with what else becomes of operators by the same change. of_weights: whether work on all weights without shapes
    follows their number; else the caller says what it takes."""
    segmentation, prices = layout.segmentation, layout.prices.copy()
    exchanges = exchanged_by_rank(layout, job)
    parts = [unique(rank.copies, rank.updates_of_parts) if rank.stage >= 2 else rank.copies[:0] for rank in exchanges]
    of_ranks = [(sizes(trace), choose(sizes(trace), trace)) for trace in job.traces]
    recorded = layout.sizes or tuple(old for old, _ in of_ranks)
    resized_ranks = tuple(after_both(was, *of_rank) for was, of_rank in zip(recorded, of_ranks, strict=True))
    after = replace(rewritten or layout, sizes=resized_ranks)
    twofold, unreached, changed = [parts[0][:0]], [parts[0][:0]], [parts[0][:0]]
    ranks = recordings_of(segmentation, job)
    for rank in ranks:
        position, trace = rank.position, rank.trace
        (old, new), copies = of_ranks[position], exchanges[position].copies
        before, change = (Resized(trace, old, of.sizes[position] if of.sizes else old) for of in (layout, after))
        shapes = axes_of(trace)
        work = rank.work_of(shapes)
        shaped = (work.number >= 0) & ~np.isin(work.tasks, parts[position])
        after = rewriting(after, position, set(work.rows[(work.number >= 0) & ~shaped].tolist()), shaped_as_recorded)
        twofold.append(work.tasks[np.isin(work.number, change.read_twice)])
        changed.append(changed_tasks(layout, after, rank))
        were, are = map(rank.weights, (before, change))
        if of_weights and were != are:
            in_lists = work.like(lambda o: not any(o.shapes) and "TensorList" in o.dtypes)  # of whose tensors the trace has no shape
            shown = work.tasks[shaped & ~in_lists]
            rows = _of_weights(rank, exchanges[position].gathers)
            exchanged = np.full(len(rows), _grown(were, are, None))
            moved = unique(excluding(copies, shown), parts[position][np.isin(parts[position], copies)])
            updated = excluding(unique(_updates(rank, shown), parts[position]), moved)
            prices.multiply(updated, exactly(_grown(were, are, None)))
            for inner, mine in zip((True, False), weights_carried(layout, rows, were), strict=True):
                times = _grown(were, are, inner if exchanges[position].stage >= 2 else None)
                prices.multiply(moved[(segmentation.layer[moved] >= 0) == inner], exactly(times))
                exchanged[mine] = times
            for times in unique(exchanged).tolist():
                after = regroup(after, rows[exchanged == times].tolist(), partial(lambda times, before: (before.of(times),), times))
            changed.append(unique(updated, moved))
        stays = _rightly_unchanged(shapes, change, shapes_of_weights(shapes.counted()))
        same = np.concatenate((copies, work.tasks[shaped & stays[work.number]], *changed))
        left = unchanged_work(rank, same) if new != old else copies[:0]
        prices.reach(left, prod(getattr(new, key) / getattr(old, key) for key in keys))
        unreached.append(left)
    nothing = not segmentation.graph.duration[np.concatenate(changed)].any() and after.exchanges == layout.exchanges
    if nothing and any(old != new for old, new in of_ranks):
        raise LumosError(
            f"--set {', '.join(described)}: no task changed, since no operator with time of its own has shapes that follow it; record with"
            " record_shapes=True around the work, or say what changes with --scale"
        )
    notes = (*_not_reached(ranks, np.concatenate(unreached), described), *_read_twice(np.concatenate(twofold), described))
    return replace(
        after,
        prices=prices,
        changes=(*layout.changes, *described),
        open=layout.open.union(np.concatenate((*unreached, *twofold)).tolist()),
        diagnostics=(*layout.diagnostics, *notes),
    )


def _read_twice(tasks: Int64, described: Sequence[str]) -> tuple[Diagnostic, ...]:
    """The diagnostic that tasks work on rows whose number the script works out itself; () where there are none."""
    if not len(tasks):
        return ()
    text = (
        f"{', '.join(described)}: {counted(len(tasks), 'task')} work on rows that nothing joins to the batch or the sequence, as"
        " experts of a fixed capacity do; they are taken to be as many more as there are tokens, and the interval reaches to as many as"
        " recorded"
    )
    return (Diagnostic(READ_TWICE, text),)


def _grown(were: Mapping[int, int], are: Mapping[int, int], inner: bool | None) -> float:
    """How many times as many values the weights have, which are given by layer: of the layers, of what is outside, or of all (None). Ranks
    that share states exchange the one and the other by themselves."""
    now, was = (sum(n for layer, n in by_layer.items() if inner is None or (layer >= 0) == inner) for by_layer in (are, were))
    return now / was if was else 1.0


def _rightly_unchanged(shapes: Shapes, change: Resized, weights_of: frozenset[Shape]) -> Mask:
    """Which of the operators with shapes are known to be no different under the change."""
    same = [without_work(o.name) or change.rightly_stays(index, weights_of) for index, o in enumerate(shapes.operators)]
    return np.array(same or [False], bool)


def resized(old: Sizes, wanted: dict[str, int], trace: Trace) -> Sizes:
    """The sizes with those wanted. Raises LumosError where one is not known from the trace, UsageError where they do not fit together."""
    for key, value in wanted.items():
        if not getattr(old, key):
            raise LumosError(f"--set {key}: {unknown_size(key, trace)}")
        if value < 1:
            raise UsageError(f"--set {key}={value}: must be at least 1")
    new = old._replace(**wanted)
    if "heads" in wanted and old.kv_heads == old.heads:
        new = new._replace(kv_heads=new.heads)
    if new.heads and ("hidden" in wanted or "heads" in wanted):
        if new.hidden % new.heads:
            keys = ", ".join(f"{key}={wanted[key]}" for key in ("hidden", "heads") if key in wanted)
            raise UsageError(f"--set {keys}: hidden ({new.hidden}) must be a multiple of heads ({new.heads})")
        new = new._replace(head_dim=old.head_dim * new.hidden * old.heads // (old.hidden * new.heads))
    return new


def unknown_size(key: str, trace: Trace) -> str:
    """Why a size is not known, and what to do."""
    if "Input Dims" not in trace.args:
        return f"{trace.path} has no shapes of operators, so it does not show {key}; record with record_shapes=True"
    known = sizes(trace)
    shown = [name for name in SIZE_KEYS if getattr(known, name)]
    return (
        f"the shapes of the operators in {trace.path} do not show {key} of a model; they show {', '.join(shown) or 'no size'}, which can be"
        " changed"
    )


def _updates(rank: RankRecording, shaped: Int64) -> Int64:
    """The kernels of a rank's optimizer that have no shapes, as fused ones. shaped: tasks whose shapes are known."""
    segmentation, graph = rank.segmentation, rank.segmentation.graph
    update = graph.on_device & (graph.kind != Kind.COLLECTIVE) & (segmentation.phase == Phase.OPTIMIZER)
    update[shaped] = False
    kernels: Int64 = rank.tasks[update[rank.tasks]]
    return kernels


def _of_weights(rank: RankRecording, gathers: Int64) -> Int64:
    """The rows of the graph's facts that exchange gradients or weights of a rank. gathers: tasks that gather weights in the passes."""
    segmentation, facts = rank.segmentation, rank.segmentation.graph.collectives
    if facts is None:
        return gathers[:0]
    mine = segmentation.owners.rank[facts.task] == rank.position
    late = np.isin(segmentation.phase[facts.task], (Phase.BACKWARD, Phase.OPTIMIZER)) & ~in_forward(segmentation)  # no activations
    return np.flatnonzero(mine & (late | np.isin(facts.task, gathers)))


def unchanged_work(rank: RankRecording, changed: Int64) -> Int64:
    """The work in the passes of a rank that a change left as it was, apart from the tasks `changed`, which it did not or rightly leaves so.

    On a device its kernels count, on a CPU its operators; and exchanges of activations between all ranks, which no shape describes.
    """
    return excluding(_work(rank), changed)


def _work(rank: RankRecording) -> Int64:
    """The work in the passes of a rank."""
    segmentation, graph, mine = rank.segmentation, rank.segmentation.graph, rank.tasks
    passes = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
    mine = mine[np.isin(segmentation.phase[mine], passes)]
    on_device = bool(graph.on_device[mine].any())
    works = graph.kind == (Kind.KERNEL if on_device else Kind.OPERATOR)
    facts = graph.collectives
    if facts is not None:
        works[facts.task[facts.of_kind(CollectiveKind.ALL_TO_ALL)]] = True
    working: Int64 = mine[works[mine]]
    return working


def _not_reached(ranks: Sequence[RankRecording], tasks: Int64, changes: Sequence[str]) -> tuple[Diagnostic, ...]:
    """The diagnostic that a part of the work of the passes could not be reached; () where it is negligible."""
    duration = ranks[0].segmentation.graph.duration
    total = sum(int(duration[_work(rank)].sum()) for rank in ranks)
    share = int(duration[tasks].sum()) / total if total else 0.0
    if share < WORTH_SAYING:
        return ()
    message = (
        f"{', '.join(changes)}: the shapes do not show what {share:.0%} of the work of the passes becomes; it keeps its time, and the"
        " interval takes it as anything between unchanged and in proportion"
    )
    return (Diagnostic("not-reached", message),)
