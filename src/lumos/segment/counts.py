"""What the traces of a job show directly about its plan and its model: degrees, sizes, counts.

Degrees are read from the communication: neighbours in the pipeline are the peers of point-to-point transfers; a tensor-parallel
group exchanges activations of the size of the residual stream; expert-parallel ranks exchange all-to-all; context-parallel
ranks pass keys and values round a ring. Sizes are read from the multiplications of forward passes by their position: an
attention's projections precede it, the output projection follows it, then come those into and out of the feed-forward part; the
last multiplication before the first backward pass is the head. Positions decide and not values, so sizes may be equal to each
other. Layers and microbatches are counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from lumos.errors import LumosError
from lumos.model import Experts
from lumos.vocabulary import CollectiveKind, Direction, Phase, Precision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lumos.segment.signatures import Measured
    from lumos.trace.table import Job as Traces

#: How a tensor-parallel group exchanges the residual stream.
_RESIDUAL_EXCHANGES = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True)
class Counts:
    """What the traces show directly. Sizes are those of the whole model, but `batch` and `tokens` those of one microbatch on one rank."""

    world: int
    pp: int
    tp: int
    cp: int
    ep: int
    sequence_parallel: bool
    batch: int
    tokens: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    layers: int
    microbatches: int
    vpp: int
    recompute: bool  # attention runs again in the backward pass
    precision: Precision
    experts: Experts | None


class _Attention(NamedTuple):
    """One attention of one layer on one rank. at: index in the rank's work where it begins. first: it runs in the forward pass and is
    no recomputation. The sizes are this rank's."""

    at: int
    forward: bool
    first: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int


class _Product(NamedTuple):
    """A multiplication [m, k] · [k, n] of a forward pass. at: index in the rank's work."""

    at: int
    m: int
    n: int
    k: int


def counts_of(traces: Traces, work: Sequence[list[Measured]]) -> tuple[Counts, list[int]]:
    """The counts, and the pipeline stage of each rank. work: by rank, in launch order. Raises LumosError that names what is missing."""
    world = max((t.world_size or 0 for t in traces.traces), default=0) or len(traces.traces)
    ranks = [t.rank for t in traces.traces]
    stride = _pipeline_stride(work, ranks, world)
    pp = world // stride
    stages = [r // stride for r in ranks]
    by_stage = {s: work[i] for i, s in reversed(list(enumerate(stages)))}
    if sorted(by_stage) != list(range(pp)):
        raise LumosError(f"the traces show stages {sorted(by_stage)} of a pipeline of {pp}; give at least one rank of every stage")
    attention = {s: _attention(rank) for s, rank in by_stage.items()}
    forward = [a for stage in attention.values() for a in stage if a.forward]
    backward = sum(not a.forward for stage in attention.values() for a in stage)
    if not forward:
        raise LumosError(
            "the trace shows no attention operators with shapes, so its plan cannot be read from it; record with record_shapes=True"
        )
    if not backward:
        raise LumosError("the trace has no backward pass, so it is no training step")
    widest = max(forward, key=lambda a: a.keys)
    tokens, width = widest.batch * widest.queries, widest.heads * widest.head_dim
    products = {s: _products(rank, tokens) for s, rank in by_stage.items()}
    hidden = _hidden(attention, products) or width
    precision = _precision(work)
    tp, sequence_parallel = _tensor(work, tokens * hidden * precision.activation_bytes)
    ffn, gated = _feed_forward(attention, products, hidden)
    vocab, microbatches = _head(by_stage[pp - 1], products[pp - 1], attention[pp - 1], hidden)
    if not microbatches:
        raise LumosError("the trace shows no output projection, so its microbatches cannot be counted")
    cp = _size_of(work, CollectiveKind.SEND_RECEIVE, peers=False) or 1
    ep = _size_of(work, CollectiveKind.ALL_TO_ALL, peers=False) or 1
    return (
        Counts(
            world=world,
            pp=pp,
            tp=tp,
            cp=cp,
            ep=ep,
            sequence_parallel=sequence_parallel,
            batch=widest.batch,
            tokens=tokens,
            hidden=hidden,
            heads=widest.heads * tp,
            kv_heads=widest.kv_heads * tp,
            head_dim=widest.head_dim,
            ffn=ffn * tp,
            gated=gated,
            vocab=vocab * tp,
            layers=backward // (microbatches * cp),
            microbatches=microbatches,
            vpp=_virtual(by_stage, pp, stride, ranks[stages.index(min(1, pp - 1))], microbatches),
            recompute=len(forward) > 1.5 * backward,
            precision=precision,
            experts=_experts(work, tokens, tp, ep, hidden, sequence_parallel),
        ),
        stages,
    )


def _number(value: str | int) -> int:
    return value if isinstance(value, int) else 0


# ---------------------------------------------------------------- attention and multiplications


def _attention(rank: Sequence[Measured]) -> list[_Attention]:
    """Every attention of a rank: operators that compute it as one, or else pairs of batched multiplications."""
    found = [
        _Attention(
            i,
            m.signature[1] == Direction.FORWARD,
            m.signature[1] == Direction.FORWARD and m.phase == Phase.FORWARD,
            *map(_number, m.signature[2:]),
        )
        for i, m in enumerate(rank)
        if m.signature[0] == "attention"
    ]
    return found or _unfused_attention(rank)


def _unfused_attention(rank: Sequence[Measured]) -> list[_Attention]:
    """Attention as batched multiplications: forward the scores and the context, backward the gradients of the scores and of the three
    factors. The number of heads follows from the multiplication before it, whose rows are the rank's tokens."""
    batched = [(i, *map(_number, m.signature[1:])) for i, m in enumerate(rank) if m.signature[0] == "gemm" and m.signature[4] != 1]
    found: list[_Attention] = []
    rows = width = 0
    begin = nth = 0
    while nth < len(batched):
        i, queries, keys, head_dim, batched_heads = batched[nth]
        following = batched[nth + 1 : nth + 4]
        nth += 1
        if keys == head_dim or not following or following[0][1:] != (queries, head_dim, keys, batched_heads):
            continue
        before = [m.signature for m in rank[begin:i] if m.signature[0] == "gemm" and m.signature[4] == 1 and m.phase == Phase.FORWARD]
        if before:
            rows, width = _number(before[-1][1]), _number(before[-1][2])
        begin = i
        batch = max(1, rows // queries)
        heads = batched_heads // batch
        kv_heads = (width // head_dim - heads) // 2
        backward = len(following) == 3 and len({f[1:] for f in following}) == 1
        nth += 3 if backward else 1
        first = not backward and rank[i].phase == Phase.FORWARD
        found.append(_Attention(i, not backward, first, batch, heads, kv_heads if kv_heads > 0 else heads, queries, keys, head_dim))
    return found


def _products(rank: Sequence[Measured], tokens: int) -> list[_Product]:
    """The multiplications of a rank's forward passes over all of its tokens."""
    return [
        _Product(i, *map(_number, m.signature[1:4]))
        for i, m in enumerate(rank)
        if m.phase == Phase.FORWARD and m.signature[0] == "gemm" and m.signature[1] == tokens and m.signature[4] == 1
    ]


def _around(attention: Sequence[_Attention], products: Sequence[_Product]) -> Iterator[tuple[_Product | None, Sequence[_Product]]]:
    """For every attention of the forward passes: the multiplication before it, and those after it up to the next attention."""
    places = [bisect_left(products, a.at, key=lambda p: p.at) for a in attention if a.first]
    for here, following in pairwise([*places, len(products)]):
        yield products[here - 1] if here else None, products[here:following]


# ---------------------------------------------------------------- sizes


def _hidden(attention: dict[int, list[_Attention]], products: dict[int, list[_Product]]) -> int:
    """Width of the residual stream, which the multiplication before an attention reads; 0 where there is none."""
    found = Counter(before.k for s in attention for before, _ in _around(attention[s], products[s]) if before)
    return found.most_common(1)[0][0] if found else 0


def _feed_forward(attention: dict[int, list[_Attention]], products: dict[int, list[_Product]], hidden: int) -> tuple[int, bool]:
    """This rank's feed-forward width and whether it has a gate, from the multiplications after an attention's output projection."""
    found: Counter[tuple[int, bool]] = Counter()
    for s in attention:
        for _, after in _around(attention[s], products[s]):
            into = after[1:2]
            down = next((p for p in after[2:] if p.n == hidden and into[0].n in (p.k, 2 * p.k)), None)
            if down is not None and into[0].k == hidden:
                found[down.k, into[0].n == 2 * down.k or after[2] is not down] += 1
    return found.most_common(1)[0][0] if found else (hidden, False)


def _head(last: Sequence[Measured], products: Sequence[_Product], attention: Sequence[_Attention], hidden: int) -> tuple[int, int]:
    """This rank's part of the vocabulary, and how often the head ran; (0, 0) where there is no head.

    The head is the last multiplication before the first backward pass. Every multiplication of the same size is another run of it,
    unless an attention or the second half of a feed-forward part follows.
    """
    backward = next((i for i, m in enumerate(last) if m.phase == Phase.BACKWARD), len(last))
    before = products[: bisect_left(products, backward, key=lambda p: p.at)]
    if not before:
        return 0, 0
    head = before[-1]
    attended = {before.at for before, _ in _around(attention, products) if before}
    count = 0
    runs = [list(group) for _, group in groupby(products, key=lambda p: (p.n, p.k, p.at in attended))]
    for run, following in pairwise([*runs, []]):
        inner = run[0].at in attended or any(p.n == hidden and run[0].n in (p.k, 2 * p.k) for p in following[:1])
        if (run[0].n, run[0].k) == (head.n, head.k) and not inner:
            count += len(run)
    return head.n, count


def _precision(work: Iterable[Sequence[Measured]]) -> Precision:
    """The precision of most multiplications, but fp8 wherever any is in fp8: attention and head then still use a wider type."""
    found = Counter(m.precision for rank in work for m in rank if m.precision)
    return Precision.FP8 if found["fp8"] else Precision(found.most_common(1)[0][0]) if found else Precision.BF16


# ---------------------------------------------------------------- degrees


def _pipeline_stride(work: Sequence[list[Measured]], ranks: Sequence[int], world: int) -> int:
    """The number of ranks in one stage: the distance to the nearest peer of a transfer; `world` where there are no transfers.

    Raises LumosError where the ranks of the job are no multiple of it.
    """
    distances = {abs(m.peer - rank) for rank, mine in zip(ranks, work, strict=True) for m in mine if 0 <= m.peer != rank}
    stride = min(distances, default=world)
    if world % stride:
        raise LumosError(
            f"the nearest transfer is to the rank {stride} further on, and {world} ranks are no multiple of that: "
            "give the traces of every pipeline stage, with the world size in distributedInfo"
        )
    return stride


def _size_of(work: Sequence[list[Measured]], kind: CollectiveKind, peers: bool) -> int:
    """The usual group size of the collectives of a kind; 0 where there are none. peers: count those that name a peer, else the others."""
    sizes = Counter(m.signature[2] for rank in work for m in rank if m.signature[:2] == ("collective", kind) and (m.peer >= 0) == peers)
    return _number(sizes.most_common(1)[0][0]) if sizes else 0


def _tensor(work: Sequence[list[Measured]], residual: int) -> tuple[int, bool]:
    """Size of the groups that exchange the residual stream, and whether they gather and scatter it (sequence parallelism)."""
    sizes: Counter[tuple[int, CollectiveKind]] = Counter()
    for rank in work:
        for m in rank:
            adjacent = len(m.ranks) < 2 or m.ranks[1] - m.ranks[0] == 1
            if m.signature[0] == "collective" and m.peer < 0 and m.signature[3] == residual and adjacent:
                sizes[_number(m.signature[2]), CollectiveKind(str(m.signature[1]))] += 1
    exchanging = {k: n for k, n in sizes.items() if k[1] in _RESIDUAL_EXCHANGES}
    if not exchanging:
        return 1, False
    size, kind = max(exchanging, key=lambda k: exchanging[k])
    return size, kind is not CollectiveKind.ALL_REDUCE


def _virtual(by_stage: dict[int, list[Measured]], pp: int, stride: int, rank: int, microbatches: int) -> int:
    """Chunks of a stage: how often stage 1 receives from stage 0 in a microbatch. In a pipeline of two stages each precedes and follows
    the other, so stage 1 also receives from stage 0 the gradients of all chunks but the last."""
    if pp == 1:
        return 1
    previous = rank - stride
    received = sum(m.peer == previous and CollectiveKind.in_name(m.name) is CollectiveKind.RECEIVE for m in by_stage[1]) / microbatches
    return max(1, round((received + 1) / 2 if pp == 2 else received))


def _experts(work: Sequence[list[Measured]], tokens: int, tp: int, ep: int, hidden: int, sequence_parallel: bool) -> Experts | None:
    """The experts that grouped multiplications show."""
    grouped = Counter(tuple(map(_number, m.signature[1:])) for rank in work for m in rank if m.signature[0] == "grouped")
    down = [g for g in grouped if g[3] == hidden]
    if not down:
        return None
    rows, local, ffn, _ = max(down, key=lambda g: grouped[g])
    rank_tokens = -(-tokens // tp) if sequence_parallel else tokens
    return Experts(count=local * ep, per_token=max(1, round(rows / rank_tokens)), ffn=ffn)
