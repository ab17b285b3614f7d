"""Which model, plan and framework a measured job ran, read from its traces.

Degrees come from who talks to whom: neighbours in the pipeline are the peers of point-to-point transfers; a tensor-parallel
group exchanges activations of the size of the residual stream; experts exchange all-to-all; context-parallel ranks pass
keys and values round. Sizes come from shapes, layers and microbatches from counts. Known models of those sizes are
preferred. What the counts leave open (schedule, ZeRO, framework, details of the model) is chosen by comparing what each
candidate's layout would launch with what the ranks launched; the share that agrees is the confidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations

from lumos.analyze.steps import Members
from lumos.cost.cluster import Cluster
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.layout.framework import PROFILES
from lumos.layout.job import Job
from lumos.layout.plan import Plan, PlanError, check
from lumos.layout.signatures import Measured, Signature, measured_work, of_work, stage_work
from lumos.layout.step_time import layout_of
from lumos.model import Experts, Model, load_model, model_names
from lumos.trace.table import Job as Traces

#: Below this share of agreement a trace's blocks are not those that a layout would have.
ENOUGH = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Identified:
    """The job that a trace is of. agreement: share of the device work that its layout accounts for. work: by rank
    (position in the traces), what the rank did in launch order; stage: pipeline stage of each rank."""

    job: Job
    agreement: float
    work: tuple[list[Measured], ...]
    stage: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Counts:
    """What the traces show outright."""

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
    recompute: bool
    experts: Experts | None


def identify(traces: Traces, graph: Graph, owners: Members, cluster: Cluster) -> Identified:
    """Identify the job of `traces` (whose joined graph is `graph`). LumosError with what is missing where it cannot."""
    work = tuple(measured_work(graph, owners, i, t) for i, t in enumerate(traces.traces))
    counts, stages = _counts(traces, work)
    seen = [Counter(m.signature for m in rank) for rank in work]
    best: tuple[float, Job] | None = None
    for job in _candidates(counts, cluster):
        score = _agreement(job, seen, stages)
        if best is None or score > best[0] + 1e-9:
            best = score, job
    if best is None:
        raise LumosError("the trace's plan does not fit together; its ranks, shapes and groups contradict each other")
    return Identified(best[1], best[0], work, tuple(stages))


def _agreement(job: Job, seen: Sequence[Counter[Signature]], stages: Sequence[int]) -> float:
    """Share of the work, of both sides, that agrees."""
    layout = layout_of(job)
    expected = [Counter(of_work(w) for w in stage_work(layout, s)) for s in range(len(layout.stages))]
    both = total = 0
    for rank, stage in zip(seen, stages, strict=True):
        if stage >= len(expected):
            return 0.0
        both += (rank & expected[stage]).total()
        total += max(rank.total(), expected[stage].total())
    return both / total if total else 0.0


def _candidates(c: _Counts, cluster: Cluster) -> Iterator[Job]:
    dp = c.world // (c.tp * c.pp * c.cp)
    schedules = ("interleaved",) if c.vpp > 1 else (("1f1b", "gpipe", "zero-bubble") if c.pp > 1 else ("1f1b",))
    models = _models(c)
    for framework, model, schedule, zero in combinations(PROFILES.values(), models, schedules, (0, 1, 2, 3)):
        plan = Plan(
            seq_len=c.tokens * c.cp // c.batch,
            global_batch=c.microbatches * c.batch * dp,
            micro_batch=c.batch,
            tp=c.tp,
            pp=c.pp,
            vpp=c.vpp,
            cp=c.cp,
            ep=c.ep,
            dp=dp,
            zero=zero,
            sequence_parallel=c.sequence_parallel,
            schedule=schedule,
            recompute="full" if c.recompute else "none",
        )
        try:
            check(plan, model)
        except PlanError:
            continue
        yield Job(model, plan, framework, cluster)


def _models(c: _Counts) -> list[Model]:
    """Known models of the sizes seen, then ones of those sizes made up."""
    known = []
    for name in model_names():
        m = load_model(name)
        same = (m.hidden, m.heads, m.kv_heads, m.head_dim, m.layers) == (c.hidden, c.heads, c.kv_heads, c.head_dim, c.layers)
        mixture = (m.experts is not None) == (c.experts is not None)
        dense = c.experts is not None or m.ffn == c.ffn
        if same and mixture and dense and 0 <= c.vocab - m.vocab < 128 * c.tp + 1:
            known.append(m)
    if known:
        return known
    llama = Model("measured", c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, gated=c.gated, experts=c.experts)
    positions = c.tokens * c.cp // c.batch
    gpt = replace(llama, norm="layer", norm_bias=True, bias=True, positions="learned", max_positions=positions)
    return [gpt, replace(gpt, tied=True), llama, replace(llama, tied=True)]


def _counts(traces: Traces, work: Sequence[list[Measured]]) -> tuple[_Counts, list[int]]:
    world = max((t.world_size or 0 for t in traces.traces), default=0) or len(traces.traces)
    ranks = [t.rank for t in traces.traces]
    stride = _pipeline_stride(work, ranks, world)
    pp = world // stride
    stages = [r // stride for r in ranks]
    by_stage = {s: work[i] for i, s in reversed(list(enumerate(stages)))}
    if sorted(by_stage) != list(range(pp)):
        raise LumosError(f"the traces show stages {sorted(by_stage)} of a pipeline of {pp}; give at least one rank of every stage")
    attention = [m.signature for rank in by_stage.values() for m in rank if m.signature[0] == "attention"]
    if not attention:
        raise LumosError("the trace shows no attention operators with shapes, so its plan cannot be told; record with record_shapes=True")
    forward = Counter(s for s in attention if s[1] == "fwd")
    backward = Counter(s for s in attention if s[1] == "bwd")
    if not backward:
        raise LumosError("the trace has no backward pass, so it is no training step")
    widest = max(forward, key=lambda s: (_number(s[6]), forward[s]))
    _, _, batch, heads, kv_heads, queries, _, head_dim = map(_number, widest)
    tokens = batch * queries
    cp = _size_of(work, "send_recv", peers=False) or 1
    ep = _size_of(work, "all_to_all", peers=False) or 1
    gemms = Counter(tuple(map(_number, m.signature[1:])) for rank in work for m in rank if m.signature[0] == "gemm")
    hidden = _hidden(work, heads * head_dim, tokens)
    tp, sequence_parallel = _tensor(work, tokens * hidden * 2)
    ffn, gated, vocab = _widths(work, by_stage[pp - 1], tokens, hidden, heads, kv_heads, head_dim)
    chunks = cp
    alike = 2 if tokens == hidden else 1  # then the weight gradient has the shape of the forward multiplication
    microbatches = gemms_of(by_stage[pp - 1], (tokens, vocab, hidden)) // alike
    if not microbatches:
        raise LumosError("the trace shows no output projection, so its microbatches cannot be counted")
    layers = sum(_attention(by_stage[s], "bwd") for s in range(pp)) // (microbatches * chunks)
    again = sum(forward.values()) > 1.5 * sum(backward.values())
    vpp = _virtual(by_stage, pp, stride, ranks[stages.index(min(1, pp - 1))], microbatches)
    if not gemms:
        raise LumosError("the trace shows no multiplications with shapes")
    return (
        _Counts(
            world, pp, tp, cp, ep, sequence_parallel, batch, tokens, hidden, heads * tp, kv_heads * tp, head_dim, ffn * tp, gated,
            vocab * tp, layers, microbatches, vpp, again, _experts(work, tokens, tp, ep, hidden, sequence_parallel),
        ),
        stages,
    )  # fmt: skip


def _number(value: str | int) -> int:
    return value if isinstance(value, int) else 0


def gemms_of(rank: Sequence[Measured], shape: tuple[int, int, int]) -> int:
    """How many multiplications of (m, n, k) a rank ran."""
    return sum(m.signature[:4] == ("gemm", *shape) for m in rank)


def _attention(rank: Sequence[Measured], direction: str) -> int:
    return sum(m.signature[:2] == ("attention", direction) for m in rank)


def _pipeline_stride(work: Sequence[list[Measured]], ranks: Sequence[int], world: int) -> int:
    """Ranks of one stage: the distance to the nearest peer of a transfer."""
    distances = {abs(m.peer - rank) for rank, mine in zip(ranks, work, strict=True) for m in mine if m.peer >= 0}
    return min(distances) if distances else world


def _size_of(work: Sequence[list[Measured]], kind: str, peers: bool) -> int:
    """Group size of the collectives of a kind (with or without a peer named); 0 without any."""
    sizes = Counter(m.signature[2] for rank in work for m in rank if m.signature[:2] == ("collective", kind) and (m.peer >= 0) == peers)
    return _number(sizes.most_common(1)[0][0]) if sizes else 0


def _hidden(work: Sequence[list[Measured]], width: int, tokens: int) -> int:
    """Width of the residual stream: what the multiplication before an attention reads."""
    found: Counter[int] = Counter()
    for rank in work:
        last = 0
        for m in rank:
            if m.signature[0] == "gemm" and m.signature[1] == tokens:
                last = _number(m.signature[3])
            elif m.signature[:2] == ("attention", "fwd") and last:
                found[last] += 1
                last = 0
    return found.most_common(1)[0][0] if found else width


def _tensor(work: Sequence[list[Measured]], residual: int) -> tuple[int, bool]:
    """Size of the groups that exchange the residual stream, and whether they gather and scatter it."""
    sizes: Counter[tuple[int, str]] = Counter()
    for rank in work:
        for m in rank:
            near = len(m.ranks) < 2 or m.ranks[1] - m.ranks[0] == 1
            if m.signature[0] == "collective" and m.peer < 0 and m.signature[3] == residual and near:
                sizes[_number(m.signature[2]), str(m.signature[1])] += 1
    exchanging = {k: n for k, n in sizes.items() if k[1] in ("all_gather", "reduce_scatter", "all_reduce")}
    if not exchanging:
        return 1, False
    size, kind = max(exchanging, key=lambda k: exchanging[k])
    return size, kind != "all_reduce"


def _widths(
    work: Sequence[list[Measured]], last: list[Measured], tokens: int, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[int, bool, int]:
    """This rank's feed-forward width, whether it has a gate, and its part of the vocabulary."""
    shapes = Counter(
        (_number(m.signature[2]), _number(m.signature[3]))
        for rank in work
        for m in rank
        if m.signature[0] == "gemm" and m.signature[1] == tokens
    )
    attended = {heads * head_dim, (heads + 2 * kv_heads) * head_dim, kv_heads * head_dim}
    into = {n: c for (n, k), c in shapes.items() if k == hidden}
    wide = Counter({k: c for (n, k), c in shapes.items() if n == hidden and k not in attended and (k in into or 2 * k in into)})
    at_head = Counter(
        _number(m.signature[2]) for m in last if m.signature[0] == "gemm" and m.signature[1] == tokens and m.signature[3] == hidden
    )
    most = max(wide.values(), default=0)
    vocab = max((n for n in at_head if n not in attended), default=0)
    inner = [k for k, c in wide.items() if k != vocab or c == most]
    ffn = max(inner, key=lambda k: wide[k], default=hidden if hidden in into else 0)
    gated = 2 * ffn in into or into.get(ffn, 0) >= 1.9 * shapes.get((hidden, ffn), 1)
    return ffn, gated, vocab


def _virtual(by_stage: dict[int, list[Measured]], pp: int, stride: int, rank: int, microbatches: int) -> int:
    """Chunks of a stage: activations that stage 1 receives from the stage before, by microbatch."""
    if pp == 1:
        return 1
    previous = rank - stride
    received = sum(m.peer == previous and "recv" in m.name for m in by_stage[1])
    return max(1, received // microbatches)


def _experts(work: Sequence[list[Measured]], tokens: int, tp: int, ep: int, hidden: int, sequence_parallel: bool) -> Experts | None:
    """The experts that grouped multiplications show."""
    grouped = Counter(tuple(map(_number, m.signature[1:])) for rank in work for m in rank if m.signature[0] == "grouped")
    down = [g for g in grouped if g[3] == hidden]
    if not down:
        return None
    rows, local, ffn, _ = max(down, key=lambda g: grouped[g])
    slim = -(-tokens // tp) if sequence_parallel else tokens
    return Experts(count=local * ep, per_token=max(1, round(rows / slim)), ffn=ffn)
