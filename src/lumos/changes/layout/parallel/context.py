"""Ranks that share the sequences of a replica (context parallelism).

A rank has an equal part of every sequence, so all work on tokens is that of the shorter sequence. Its queries attend to the keys and values
of all ranks, one part after the other, so attention takes as often as long as there are ranks. Gradients are summed over these ranks too,
like over replicas.

Of a job recorded without such ranks the exchanges are assumed, as PyTorch's `context_parallel` makes them: keys and values are gathered
while a rank attends to its own, what it found for each part is merged in fp32, and in the backward pass the gradients of keys and values go
around the ring, at every step in fp32 together with those of the rank. At the low end of the interval exchanges are hidden and results are
merged by the attention's own kernels, as in Transformer Engine; at the high end nothing is hidden and merging takes twice as long.

Of a job recorded with such ranks the exchanges are those of attention's keys and values, by their bytes, and what follows each attention
up to the next multiplication is merging.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.measured_layout import GroupExchange, rewriting
from lumos.changes.layout.placed import AddedTimes, Addition, anchors
from lumos.changes.layout.prices import TaskPrices, exactly
from lumos.changes.layout.regroup import regroup
from lumos.changes.layout.reprice import changed_tasks
from lumos.changes.layout.rescale import holding
from lumos.changes.layout.resize import resized, sizes_of_rank, to_sizes, unknown_size
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.operators.shaped import attention_of, is_attention, positions_first, product
from lumos.segment.rank import recordings_of
from lumos.segment.sizes import sizes
from lumos.trace.table import excluding
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout, Rewrite
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import OperatorTask, RankRecording
    from lumos.segment.sizes import Sizes
    from lumos.trace.table import Int64, Job

#: Bytes that merging in fp32 reads and writes for every element of a rank's output of 16 bits: once, and for every further part in the
#: forward pass, for every part in the backward pass; and kernels that it launches for each. Counted in PyTorch 2.13's
#: `_templated_ring_attention` and `_templated_ring_attention_backward`, as means of its two ways to share causal attention. Forward: 6 to
#: widen the first part and 6 to narrow the result; of a further part 8 to join its keys and values, and 38, or 27 where half of the queries
#: attend. Backward: 12 to clear the gradients, 18 to narrow them, 20 to add those of keys and values to a cleared one and 10 those of
#: queries, and 16 to join what goes around; of a further part 8, 16, and 20 and 13, or 26 and 10.
FORWARD_ONCE, FORWARD_PART = 12.0, 40.5
BACKWARD_ONCE, BACKWARD_PART = 17.5, 58.5
FORWARD_KERNELS, BACKWARD_KERNELS = 10, 9
#: Kinds of collectives by which keys and values go to the other ranks.
_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND, CollectiveKind.RECEIVE)


#: Sizes that say how many tokens a rank has.
_OF_TOKENS = ("seq", "micro_batch")


class _Call(NamedTuple):
    """A call of attention. operator: with its shapes. row: of it. tasks: of the measured graph. keys, outputs: elements of the keys and of
    the result. width: bytes of each."""

    operator: ShapedOperator
    row: int
    tasks: tuple[int, ...]
    piece: int
    backward: bool
    keys: int
    outputs: int
    width: int


def sequence_ranks(layout: MeasuredLayout, job: Job) -> int:
    """By how many ranks the sequences of the recording are shared; 1 where by none: as many as attend in parts in every layer, if they also
    exchange keys and values."""
    first = recordings_of(layout.segmentation, job)[0]
    calls = _calls(first)
    by_piece: dict[int, int] = {}
    for call in calls:
        if not call.backward:
            by_piece[call.piece] = by_piece.get(call.piece, 0) + 1
    parts = int(np.median(list(by_piece.values()))) if by_piece else 1
    return parts if parts > 1 and len(_exchanges(first, calls, parts)) else 1


def context_parallel(
    layout: MeasuredLayout,
    job: Job,
    rates: Rates | None,
    wanted: Mapping[str, int],
    ranks: tuple[int, int],
) -> MeasuredLayout:
    """The layout with other sizes, and another number of ranks that share the sequences. wanted: sizes of the model. ranks: how many shared
    them in the recording, and how many are to.

    Raises UsageError where the sequences cannot be shared equally, and LumosError where attention, the device or its links are not known.
    """
    measured, count = ranks
    if rates is None:
        raise LumosError("--set cp: the device or its links are not known; describe them with --base-cluster FILE.toml or NAME")
    old = sizes(job.traces[0])
    if not old.seq:
        raise LumosError(f"--set cp: ranks share the sequences of a model, but {unknown_size('seq', job.traces[0])}")
    whole = wanted.get("seq", old.seq * measured)
    if whole % (2 * count if count > 1 else 1):
        raise UsageError(f"--set cp={count}: sequences of {whole} tokens cannot be shared equally; they must be a multiple of {2 * count}")
    of_model = {**wanted, "seq": whole}
    of_rank = {**sizes_of_rank(layout, job, of_model), "seq": whole // count}
    described = [
        f"{key} = {value} (measured: {getattr(old, key) * (measured if key == 'seq' else value // of_rank[key])})"
        for key, value in of_model.items()
        if key in wanted
    ]
    described += [f"cp = {count} (measured: {measured})"] if count != measured else []
    ranks_recorded = recordings_of(layout.segmentation, job)
    calls = [_calls(rank) for rank in ranks_recorded]
    if not any(calls):
        raise LumosError(f"--set cp: {job.traces[0].path} shows no attention with shapes; record with record_shapes=True")
    ratio = of_rank["seq"] * of_rank.get("micro_batch", old.micro_batch) / (old.seq * old.micro_batch)
    of_part = old._replace(**{key: value for key, value in of_rank.items() if key in _OF_TOKENS})
    of_parts = _attending(layout, job, partial(_of_parts, _becoming(old, of_part))) if measured > 1 else layout
    out = to_sizes(
        layout, job, lambda own, trace: resized(own, of_rank, trace), tuple(of_rank), tuple(described), of_parts
    )
    prices = out.prices.copy()
    for rank, attending in zip(ranks_recorded, calls, strict=True):
        if measured > 1:
            out = _rerouted(out, prices, layout, rank, attending, ranks, ratio)
        prices.multiply([task for call in attending for task in call.tasks], exactly(count / measured))
    out = replace(out, prices=prices, shared=out.shared * (count if "seq" in wanted else count / measured))
    if measured > 1 or count == 1:
        return out
    of_task = {call.tasks[-1]: call for attending in calls for call in attending}
    text = (
        f"cp = {count}: the recording has whole sequences on every rank and shows no exchange of keys and values; assumed are gathers of"
        f" them in every layer, results merged in fp32, and a ring of their gradients, as in PyTorch's context_parallel, over the links of"
        f" {rates.cluster.name}"
    )
    return replace(
        out,
        assumed=(*out.assumed, partial(_assumed, of_task, count, ratio, rates)),
        diagnostics=(*out.diagnostics, Diagnostic("sequence-assumed", text)),
    )


def to_all_keys(layout: MeasuredLayout, job: Job, ranks: tuple[int, int]) -> MeasuredLayout:
    """The layout, once it is priced, in which a call of attention has the keys and values of all the calls that it stands for. ranks: how
    many shared the sequences, and how many are to."""
    return _attending(layout, job, partial(_to_all_keys, Fraction(ranks[1], ranks[0]))) if ranks[0] != ranks[1] else layout


def _attending(layout: MeasuredLayout, job: Job, rewrite: Rewrite) -> MeasuredLayout:
    """The layout in which the calls of attention in the layers become what `rewrite` makes of them."""
    for rank in recordings_of(layout.segmentation, job):
        rows = holding(rank.trace, [call.row for call in _calls(rank)], is_attention)
        layout = rewriting(layout, rank.position, rows, rewrite)
    return layout


def _calls(rank: RankRecording) -> list[_Call]:
    """The calls of attention in the layers of a rank, in order."""
    segmentation = rank.segmentation
    by_row: dict[int, list[OperatorTask]] = {}
    for attending in rank.work.in_order(lambda o: attention_of(o.name, o.shapes)):
        by_row.setdefault(attending.row, []).append(attending)
    out = []
    for row, of_row in by_row.items():
        o, mine = of_row[0].operator, [attending.task for attending in of_row]
        a, piece = attention_of(o.name, o.shapes), int(segmentation.piece[mine[0]])
        if a is None or segmentation.pieces[piece].label.layer < 0:
            continue
        width = 4 if "float" in o.dtypes[:2] else 2
        keys, outputs = a.batch * a.kv_heads * a.keys * a.width, a.batch * a.heads * a.queries * a.width
        out.append(_Call(o, row, tuple(mine), piece, "backward" in o.name, keys, outputs, width))
    return out


def _exchanges(rank: RankRecording, calls: Sequence[_Call], ranks: int) -> Int64:
    """The rows of the graph's facts by which a rank exchanges keys and values, or their gradients, in the layers."""
    graph = rank.segmentation.graph
    facts = graph.collectives
    if facts is None or facts.size is None or not calls:
        return np.empty(0, np.int64)
    usual = [kind in _KINDS for kind in facts.kinds]
    nbytes = [times * call.keys * width for call in calls for times in (1, 2) for width in (2, 4)]
    in_layer = rank.segmentation.layer[facts.task] >= 0
    mine = (graph.position_of_task[facts.task] == rank.position) & in_layer & (facts.size == ranks)
    return np.flatnonzero(mine & np.array(usual, bool)[facts.kind] & np.isin(facts.nbytes, nbytes))


def _rerouted(
    after: MeasuredLayout, prices: TaskPrices, layout: MeasuredLayout, rank: RankRecording, calls: Sequence[_Call],
    ranks: tuple[int, int], ratio: float,
) -> MeasuredLayout:  # fmt: skip
    """The layout `after` other sizes whose exchanges of keys and values are those among other ranks; how often they and merging are done is
    changed in place. ratio: of a rank's tokens to recorded ones."""
    graph, (measured, count) = layout.segmentation.graph, ranks
    changed = changed_tasks(layout, after, rank)
    facts, rows = graph.collectives, _exchanges(rank, calls, measured)
    assert facts is not None
    gathers = rows[facts.of_kind(CollectiveKind.ALL_GATHER)[rows]]
    after = regroup(after, gathers.tolist(), lambda before: (before.of(ratio * count / measured, count),))
    messages = excluding(rows, gathers)
    after = regroup(
        after,
        messages.tolist(),
        lambda before: (before.of(ratio, 2 if count > 1 else 1),),
        read_as=lambda exchange: GroupExchange(CollectiveKind.SEND_RECEIVE, 2, exchange.nbytes),
    )
    backward = layout.segmentation.phase[facts.task[messages]] == Phase.BACKWARD
    parts = {False: (count - 1) / (measured - 1), True: count / measured if count > 1 else 0.0}
    for late, times in parts.items():
        prices.multiply(facts.task[messages[backward == late]].tolist(), exactly(times))
    for late, tasks in _merging(rank, calls):
        of_halves = excluding(tasks[graph.on_device[tasks]], changed)
        prices.multiply(of_halves, exactly(ratio))
        prices.multiply(tasks, exactly(parts[late]))
    return after


def _becoming(old: Sizes, new: Sizes) -> tuple[Mapping[int, int], ...]:
    """What becomes of the sizes of tensors of attention, by their axis: of a batch, and of a part of a sequence or, as causal attention is
    shared equally, half of one."""
    lengths = {old.seq: new.seq, old.seq // 2: new.seq // 2}
    return {old.micro_batch: new.micro_batch}, lengths, lengths, {}


def _of_parts(becomes: Sequence[Mapping[int, int]], recorded: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """A call of attention on other parts of the sequences. becomes: as `_becoming` gives it."""
    out = [
        tuple(of.get(a, b) for of, a, b in zip(becomes, was, now, strict=True)) if len(was) == 4 else now
        for was, now in zip(recorded.shapes, o.shapes, strict=True)
    ]
    return o._replace(shapes=tuple(out))


def _to_all_keys(more: Fraction, _: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """A call of attention whose keys and values stand for those of `more` times as many ranks."""
    wide = [i for i, s in enumerate(o.shapes) if len(s) == 4][int("backward" in o.name) :]
    out, at = list(o.shapes), 1 if positions_first(o.name) else 2
    for i in wide[1:3]:
        out[i] = (*out[i][:at], int(out[i][at] * more), *out[i][at + 1 :])
    return o._replace(shapes=tuple(out))


def _merging(rank: RankRecording, calls: Sequence[_Call]) -> Iterator[tuple[bool, Int64]]:
    """For every layer's pass whether it is a backward one, and its tasks between the first attention and the next multiplication but
    attention and collectives."""
    owners, products = rank.segmentation.owners, np.sort(rank.work.of(product))
    graph = owners.graph
    attends = np.array([task for call in calls for task in call.tasks], np.int64)
    kept = np.zeros(len(graph), bool)
    kept[attends] = True
    if graph.collectives is not None:
        kept[graph.collectives.task] = True
    by_piece: dict[int, list[_Call]] = {}
    for call in calls:
        by_piece.setdefault(call.piece, []).append(call)
    for of_piece in by_piece.values():
        first, last = of_piece[0].tasks[0], of_piece[-1].tasks[-1]
        behind = products[np.searchsorted(products, last, "right") :]
        behind = behind[graph.processor[behind] == graph.processor[last]][:1]
        if not len(behind):
            continue
        mine = [_between(graph.processor, first, int(behind[0]))]
        calls_of = owners.launch[first], owners.launch[int(behind[0])]
        if min(calls_of) >= 0 and graph.processor[calls_of[0]] == graph.processor[calls_of[1]]:
            mine.append(_between(graph.processor, int(calls_of[0]), int(calls_of[1])))
        inside = np.concatenate(mine)
        yield of_piece[0].backward, inside[~kept[inside]]


def _between(processor: np.ndarray, first: int, end: int) -> Int64:
    """The tasks behind one and before another on their processor."""
    inside = np.arange(first + 1, end, dtype=np.int64)
    same: Int64 = inside[processor[first + 1 : end] == processor[first]]
    return same


def _assumed(calls: Mapping[int, _Call], ranks: int, ratio: float, rates: Rates, placed: Placed) -> Iterator[Addition]:
    """The exchanges and the merging after every copy of a call of attention. calls: by the last task of each. ratio: of a rank's tokens to
    those of the recording."""
    for at in anchors(placed, calls):
        call, lane = calls[at.recorded], "assumed exchange of keys"
        keys, outputs = round(call.keys * ratio), call.outputs * ratio
        part = int(placed.graph.duration[at.task]) // ranks
        times, merging, kernels = _times(call.backward, 2 * keys * call.width, outputs, ranks, part, rates)
        name = f"exchange of {'gradients of ' if call.backward else ''}keys and values (assumed)"
        yield at.addition(name, lane, times, exchanges=ranks + 1 if call.backward else 1)
        yield at.addition("merging of parts of attention (assumed)", lane, merging, kernels=kernels, exchanges=0)


def _times(backward: bool, nbytes: int, outputs: float, ranks: int, part: int, rates: Rates) -> tuple[AddedTimes, AddedTimes, int]:
    """What the exchange takes that attention to one part, of `part` ns, does not hide; what merging takes; and how many kernels. nbytes: of
    a rank's keys and values. outputs: elements of a rank's result."""
    gather = rates.exchange(CollectiveKind.ALL_GATHER, ranks, nbytes * ranks)
    best, high = max(gather.best - part, 0), gather.high
    if backward:
        hop = rates.exchange(CollectiveKind.SEND_RECEIVE, 2, 2 * nbytes)  # in fp32
        best, high = best + hop.best + (ranks - 1) * max(hop.best - part, 0), high + ranks * hop.high
    element_bytes = BACKWARD_ONCE + BACKWARD_PART * ranks if backward else FORWARD_ONCE + FORWARD_PART * (ranks - 1)
    merged = rates.passing(round(outputs * element_bytes)).best
    kernels = BACKWARD_KERNELS * ranks if backward else FORWARD_KERNELS * (ranks - 1)
    return AddedTimes(best, 0, high), AddedTimes(merged, 0, 2 * merged), kernels
