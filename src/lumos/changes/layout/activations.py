"""The exchanges of activations in a measured job: collectives inside the passes that move what runs through the model, not its gradients.

Tensor-parallel ranks exchange the residual stream, expert-parallel ones its tokens, in every layer. Such exchanges are in the forward
pass, and in the backward pass with the same kind, group and bytes; what is exchanged in the backward pass alone is gradients. Exchanges
of weights (FSDP's gathers) are in both too: they count here where a pass is repeated, for they would be repeated with it, but their
bytes do not follow the batch.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.changes.layout.regroup import recorded_exchange, regroup
from lumos.graph.lists import numbered
from lumos.segment.sizes import sizes
from lumos.trace.table import excluding, unique
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from lumos.changes.layout.measured_layout import GroupExchange, MeasuredLayout
    from lumos.graph.table import Collectives
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Int64, Job

#: Bytes of one value of the residual stream.
WIDTHS = (2, 4)
#: Share by which gathered weights may be more than those of the layer, so that all ranks have equally many.
PADDED = 0.02
#: How tensor-parallel ranks exchange the residual stream.
_OF_STREAM = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
#: Sizes on which the bytes of the residual stream depend.
STREAM_KEYS = ("micro_batch", "seq", "hidden")


def in_forward(segmentation: Segmentation) -> NDArray[np.bool_]:
    """Which collectives (by row of the graph's facts) are exchanges of forward passes, or the same in a backward pass."""
    facts = segmentation.graph.collectives
    if facts is None:
        return np.empty(0, bool)
    phase = segmentation.phase[facts.task]
    key = numbered(facts.kind, facts.ranks, facts.group, facts.nbytes)
    forward = np.isin(phase, (Phase.FORWARD, Phase.RECOMPUTE))
    return forward | np.isin(key, key[forward])


def of_stream(layout: MeasuredLayout, job: Job) -> Int64:
    """The rows of the graph's facts that exchange activations: the residual stream, whole or in the parts that ranks gather and scatter,
    what the head makes of it (`of_head`), messages between stages, and all exchanges of tokens between experts."""
    return unique(_moving(layout, job), of_head(layout, job))


def of_head(layout: MeasuredLayout, job: Job) -> Int64:
    """The rows of the graph's facts that gather the results of a head of which every rank has a part of the vocabulary. That is done in the
    groups that exchange the residual stream; gathered weights, which may have as many bytes, are not."""
    graph = layout.segmentation.graph
    facts, stream = graph.collectives, _moving(layout, job)
    if facts is None or facts.size is None or not len(stream):
        return np.empty(0, np.int64)
    reduced = stream[facts.of_kind(*_OF_STREAM)[stream]]
    within = (
        facts.of_kind(CollectiveKind.ALL_GATHER)
        & (facts.size == measured_ranks(layout, stream))
        & np.isin(facts.group, facts.group[reduced])
        & in_forward(layout.segmentation)
    )
    rank = graph.position_of_task[facts.task]
    out = []
    for position, trace in enumerate(job.traces):
        s = sizes(trace)
        results = [width * s.micro_batch * s.seq * s.vocab for width in WIDTHS]
        out.append(np.flatnonzero(within & (rank == position) & (facts.nbytes > 0) & np.isin(facts.nbytes, results)))
    return excluding(np.concatenate(out), stream)


def _moving(layout: MeasuredLayout, job: Job) -> Int64:
    """The rows of the graph's facts that exchange the residual stream, messages and exchanges of tokens."""
    graph = layout.segmentation.graph
    facts = graph.collectives
    if facts is None:
        return np.empty(0, np.int64)
    rank = graph.position_of_task[facts.task]
    inside = in_forward(layout.segmentation)
    elements = [s.micro_batch * s.seq * s.hidden for s in map(sizes, job.traces)]  # of the stream, 0 where unknown
    chosen = [i for i in np.flatnonzero(inside).tolist() if _moves_stream(facts, i, elements[int(rank[i])])]
    return np.array(chosen, np.int64)


def gathered(layout: MeasuredLayout, position: int, by_layer: Mapping[int, int], stream: Int64) -> Int64:
    """The tasks of a rank that gather the weights of a layer in the passes (FSDP): all-gathers of as many values as a layer has weights.

    by_layer: the number of weights of each layer. What is gathered may be longer by a few values, so that it can be shared equally.
    stream: the rows of the graph's facts that exchange activations (`of_stream`).
    """
    graph = layout.segmentation.graph
    facts = graph.collectives
    if facts is None or facts.size is None:
        return np.empty(0, np.int64)
    mine = facts.of_kind(CollectiveKind.ALL_GATHER) & (facts.size > 1) & in_forward(layout.segmentation)
    mine &= graph.position_of_task[facts.task] == position
    mine[stream] = False
    return np.sort(facts.task[mine & _as_many(facts.nbytes * facts.size, by_layer.values())]).astype(np.int64)


def weights_carried(layout: MeasuredLayout, rows: Int64, by_layer: Mapping[int, int]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which exchanges, by the rows of the graph's facts, have as many values as a layer has weights, and which as all outside the layers:
    what is gathered is called ahead, and what is scattered behind. by_layer: as of `gathered`."""
    facts = layout.segmentation.graph.collectives
    nbytes = np.array([recorded_exchange(facts, row).nbytes for row in rows.tolist()] if facts is not None else [], np.float64)
    return _as_many(nbytes, (n for layer, n in by_layer.items() if layer >= 0)), _as_many(nbytes, [by_layer.get(-1, 0)])


def _as_many(nbytes: NDArray[Any], counts: Iterable[int]) -> NDArray[np.bool_]:
    """Which exchanges have as many values as one of the counts; a few more are padding."""
    known = np.array([width * count for count in set(counts) if count for width in WIDTHS] or [1], np.float64)
    return np.asarray((np.abs(nbytes[:, None] / known - 1) < PADDED).any(axis=1))


def measured_ranks(layout: MeasuredLayout, rows: Int64) -> int:
    """The usual size of the groups that exchange the residual stream; 0 where none does. rows: of `of_stream`."""
    facts = layout.segmentation.graph.collectives
    return 0 if facts is None else facts.usual_size(rows[facts.of_kind(*_OF_STREAM)[rows]])


def in_embedding(layout: MeasuredLayout, rows: Int64) -> bool:
    """Whether the ranks exchange the residual stream before the first layer, because they share the vocabulary too. Messages between the
    stages of a pipeline, which arrive there as well, say nothing of it."""
    facts, segmentation = layout.segmentation.graph.collectives, layout.segmentation
    if facts is None:
        return False
    rows = rows[facts.of_kind(*_OF_STREAM)[rows]]
    parts = {segmentation.pieces[p].label.name for p in unique(segmentation.piece[facts.task[rows]]).tolist()}
    return "embedding" in parts


def shared_keys(*, vocabulary: bool) -> tuple[str, ...]:
    """The sizes of a model of which tensor-parallel ranks hold a part each. vocabulary: whether they share that, too."""
    return ("heads", "kv_heads", "ffn", *(("vocab",) if vocabulary else ()))


def stream_ratio(job: Job, wanted: Mapping[str, int]) -> float:
    """By what the bytes of the residual stream are multiplied under other sizes."""
    old = sizes(job.traces[0])._asdict()
    return float(prod(wanted[key] / old[key] for key in STREAM_KEYS if key in wanted and old[key]))


def _head_ratio(job: Job, wanted: Mapping[str, int], ranks: int) -> float:
    """By what the bytes of a head's results are multiplied under other sizes. ranks: that share the vocabulary."""
    old = sizes(job.traces[0])._asdict()
    old["vocab"] *= max(ranks, 1)
    return float(prod(wanted[key] / old[key] for key in ("micro_batch", "seq", "vocab") if key in wanted and old[key]))


def _moves_stream(facts: Collectives, row: int, elements: int) -> bool:
    kind, nbytes = facts.kinds[facts.kind[row]], int(facts.nbytes[row])
    if kind is CollectiveKind.ALL_TO_ALL:
        return True
    if kind.is_transfer:
        return nbytes > 0
    ranks = int(facts.size[row]) if facts.size is not None else 1
    whole = kind.buffer_bytes(nbytes, max(ranks, 1)) if nbytes > 0 else 0
    return elements > 0 and whole in [width * elements for width in WIDTHS]


def exchanged(layout: MeasuredLayout, job: Job, wanted: Mapping[str, int], ranks: Mapping[int, int]) -> MeasuredLayout:
    """The layout whose exchanges of activations are those of other sizes, between groups of other sizes.

    wanted: sizes of the model. ranks: the new size by the old size of a group; other groups stay. A group of one exchanges nothing.
    """
    rows = of_stream(layout, job)
    if not len(rows):
        return layout
    results, tensor_ranks = of_head(layout, job), measured_ranks(layout, rows)

    def become(times: float, before: GroupExchange) -> tuple[GroupExchange, ...]:
        return (before.of(times, before.ranks if before.kind.is_transfer else ranks.get(before.ranks, before.ranks)),)

    layout = regroup(layout, excluding(rows, results).tolist(), partial(become, stream_ratio(job, wanted)))
    return regroup(layout, results.tolist(), partial(become, _head_ratio(job, wanted, tensor_ranks)))
