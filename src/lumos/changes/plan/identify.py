"""Which model, plan and framework a measured job ran, read from its traces.

What the traces show directly is read by `segment.counts`. Known models of those sizes are preferred. What remains open
(schedule, ZeRO, framework, selective recomputation, details of the model) is decided by comparing the work that each
candidate's layout would launch with the work that the ranks launched. The share of the time of the heavy work (multiplications,
attention, collectives) that agrees is the confidence: small kernels, and the names of operators, count for nothing in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product as combinations
from typing import TYPE_CHECKING, NamedTuple

from lumos.analyze.loop.steps import Members, members
from lumos.errors import LumosError
from lumos.graph.one_off import recurring
from lumos.model import Model, load_model, model_names
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan, PlanError, check_plan
from lumos.plan.profiles import known_profiles
from lumos.prediction.step_time import layout_of
from lumos.prediction.tally import Tallies
from lumos.segment.counts import Counts, counts_of
from lumos.segment.segment import Segmentation, segment
from lumos.segment.signatures import Measured, Signature, amount, is_heavy, measured_work, of_work
from lumos.vocabulary import Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.blocks.block import Block
    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.prediction.layout import Layout
    from lumos.trace.table import Job as Traces

#: The least share of agreement with which the layout of the identified plan is used in place of the trace.
ENOUGH_AGREEMENT = 0.9
#: Candidates whose heavy work agrees this nearly as much are told apart by their small work: buckets of gradients differ by less.
_AS_MUCH = 0.03


@dataclass(frozen=True, slots=True, eq=False)
class Identified:
    """The job that was traced. agreement: share of the time of the heavy device work that its layout accounts for. work: for each rank
    (by position in the traces) its device work in launch order. stage: the pipeline stage of each rank."""

    job: PlannedJob
    agreement: float
    work: tuple[list[Measured], ...]
    stage: tuple[int, ...]


def identify(traces: Traces, graph: Graph, owners: Members, cluster: Cluster) -> Identified:
    """Identify the job of `traces`, whose joined graph is `graph`. Raises LumosError that names what is missing."""
    work = tuple(measured_work(graph, owners, i, t) for i, t in enumerate(traces.traces))
    counts, stages = counts_of(traces, work)
    seen = _alike([Counter(m.signature for m in rank) for rank in work], stages)
    expected = _Expected(cluster)
    weights = _Weights(work, graph)
    scored = [(_agreement(expected(job), seen, weights), job) for job in _candidates(counts, cluster)]
    if not scored:
        raise LumosError("the trace's plan does not fit together; its ranks, shapes and groups contradict each other")
    most = max(score.heavy for score, _ in scored)
    every = max(score.every for score, _ in scored if score.heavy > most - _AS_MUCH)
    best = [job for score, job in scored if score.heavy > most - _AS_MUCH and score.every == every]
    job = max(best, key=lambda candidate: _in_order(layout_of(candidate), work, stages)) if len(best) > 1 else best[0]
    return Identified(job, most, work, tuple(stages))


class Identification:
    """The plan of one job, identified on first use and then remembered, so that many what-ifs of the job identify it, and cut it, once."""

    def __init__(self, traces: Traces, graph: Graph) -> None:
        self._traces, self._graph = traces, graph
        self._known: list[tuple[Cluster, Identified | LumosError]] = []

    @cached_property
    def segmentation(self) -> Segmentation:
        """The job cut into layers and passes, without work that happened only once."""
        return segment(recurring(self._graph), self._traces)

    def on(self, cluster: Cluster) -> Identified:
        """The job as it ran on `cluster`. Raises LumosError where it cannot be identified, on every call."""
        result = next((result for known, result in self._known if known == cluster), None)
        if result is None:
            try:
                result = identify(self._traces, self._graph, members(self._graph), cluster)
            except LumosError as error:
                result = error
            self._known.append((cluster, result))
        if isinstance(result, LumosError):
            raise result
        return result


class _Agreement(NamedTuple):
    """How far expected and measured work agree, the more telling first. heavy: share of the time of heavy work. every: share of the
    pieces of all work, which tells candidates apart whose heavy work is the same."""

    heavy: float
    every: float


class _Weights:
    """The time of one piece of heavy work by its signature, ns: the mean as measured, of collectives the shortest, since the others
    waited. Work that was not measured takes time in proportion to its amount, at the rate of the measured work of its class that is
    nearest to it in amount."""

    def __init__(self, work: Sequence[Sequence[Measured]], graph: Graph) -> None:
        times: dict[Signature, list[int]] = defaultdict(list)
        for rank in work:
            for m in rank:
                if is_heavy(m.signature):
                    times[m.signature].append(max(int(graph.duration[m.task]), 1))
        self._known = {s: float(min(t)) if s[0] == "collective" else sum(t) / len(t) for s, t in times.items()}
        self._of_class: dict[Signature, list[tuple[float, float]]] = defaultdict(list)  # amount and time
        for signature, time in self._known.items():
            self._of_class[_class(signature)].append((amount(signature), time))

    def of(self, counts: Counter[Signature]) -> float:
        """The time of all heavy work counted."""
        return sum(self[s] * n for s, n in counts.items() if is_heavy(s))

    def similar(self, a: Counter[Signature], b: Counter[Signature]) -> float:
        """The time of the collectives of one kind and group that both counts have, however their bytes are cut into buckets. The bytes of
        all weights are rarely known exactly: a trace does not show the length of a table of positions."""
        amounts: list[dict[Signature, float]] = []
        for counts in (a, b):
            total: dict[Signature, float] = defaultdict(float)
            for s, n in counts.items():
                if s[0] == "collective":
                    total[_class(s)] += self[s] * n
            amounts.append(total)
        return sum(min(time, amounts[1][s]) for s, time in amounts[0].items() if s in amounts[1])

    def __getitem__(self, signature: Signature) -> float:
        if signature not in self._known:
            size = amount(signature)
            nearest = min(self._of_class.get(_class(signature), ()), key=lambda known: abs(known[0] - size), default=(0.0, 0.0))
            self._known[signature] = size * nearest[1] / nearest[0] if nearest[0] else 0.0
        return self._known[signature]


def _class(signature: Signature) -> Signature:
    """What work shares with work of another amount: its type, for collectives with kind and group."""
    return signature[:3] if signature[0] == "collective" else signature[:1]


class _Alike(NamedTuple):
    """Ranks that launched the same work. stage: their pipeline stage. work: how often each of them launched each signature."""

    stage: int
    work: Counter[Signature]
    ranks: int


def _alike(seen: Sequence[Counter[Signature]], stages: Sequence[int]) -> list[_Alike]:
    """The ranks by stage and work: those that hold the same part of the model, on other data, are alike. seen, stages: by rank."""
    found: dict[tuple[int, frozenset[tuple[Signature, int]]], list[Counter[Signature]]] = {}
    for stage, work in zip(stages, seen, strict=True):
        found.setdefault((stage, frozenset(work.items())), []).append(work)
    return [_Alike(stage, of_ranks[0], len(of_ranks)) for (stage, _), of_ranks in found.items()]


def _agreement(expected: Sequence[Counter[Signature]], seen: Sequence[_Alike], weights: _Weights) -> _Agreement:
    """How far the expected and the measured work agree. expected: by stage. seen: all ranks, those with the same work together."""
    both = total = 0
    heavy_both = heavy_total = 0.0
    for stage, work, ranks in seen:
        if stage >= len(expected):
            return _Agreement(0.0, 0.0)
        shared = work & expected[stage]
        both += ranks * shared.total()
        total += ranks * max(work.total(), expected[stage].total())
        mine, theirs = weights.of(work), weights.of(expected[stage])
        agreeing = weights.of(shared) + weights.similar(work - shared, expected[stage] - shared)
        heavy_both += ranks * min(agreeing, mine, theirs)
        heavy_total += ranks * max(mine, theirs)
    return _Agreement(round(heavy_both / heavy_total, 6) if heavy_total else 0.0, round(both / total, 6) if total else 0.0)


class _Expected:
    """Counts, for each stage of a job, how often its work has each signature. Blocks that candidates share are counted once."""

    def __init__(self, cluster: Cluster) -> None:
        self._tally = Tallies(cluster.node.devices)
        self._of_block: dict[Block, Counter[Signature]] = {}

    def __call__(self, job: PlannedJob) -> list[Counter[Signature]]:
        tally = self._tally(job.model, job.plan, job.framework)
        blocks = [self._signatures(block) for block in tally.blocks]
        by_stage = []
        for runs in tally.runs:
            total: dict[Signature, int] = defaultdict(int)
            for block, count in runs.items():
                for signature, each in blocks[block].items():
                    total[signature] += each * count
            by_stage.append(Counter(total))
        return by_stage

    def _signatures(self, block: Block) -> Counter[Signature]:
        if block not in self._of_block:
            self._of_block[block] = Counter(of_work(op.work) for op in block.ops)
        return self._of_block[block]


def _in_order(layout: Layout, work: Sequence[list[Measured]], stages: Sequence[int]) -> int:
    """How many heavy operations run at the position at which the layout has them, counted among the heavy ones, over the first rank of
    every stage. Schedules that launch the same work differ in this."""
    count = 0
    for stage in range(len(layout.stages)):
        rank = [m.signature for m in work[stages.index(stage)] if is_heavy(m.signature)]
        expected = [s for s in map(of_work, layout.work(stage)) if is_heavy(s)]
        count += sum(a == b for a, b in zip(rank, expected, strict=False))
    return count


def _candidates(c: Counts, cluster: Cluster) -> Iterator[PlannedJob]:
    """All jobs that the counts allow."""
    dp = c.world // (c.tp * c.pp * c.cp)
    schedules: tuple[Schedule, ...] = (Schedule.INTERLEAVED,) if c.vpp > 1 else (Schedule.ONE_F_ONE_B,)
    if c.pp > 1 and c.vpp == 1:
        schedules += (Schedule.GPIPE, Schedule.ZERO_BUBBLE)
    models = _models(c)
    recompute = (Recompute.FULL if c.recompute else Recompute.NONE, Recompute.SELECTIVE)
    for framework, model, schedule, recomputed, turn in combinations(known_profiles().values(), models, schedules, recompute, range(4)):
        zero = (framework.zero + turn) % 4  # the framework's default first: a job of one replica shows no stage
        if recomputed is Recompute.SELECTIVE and not framework.repeats_selectively:
            continue
        try:
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
                recompute=recomputed,
                precision=c.precision,
            )
            check_plan(plan, model)
        except PlanError:
            continue
        yield PlannedJob(model, plan, framework, cluster)


def _models(c: Counts) -> list[Model]:
    """The known models of these sizes, or models made up from the sizes where none is known."""
    known = []
    for name in model_names():
        m = load_model(name)
        same_sizes = (m.hidden, m.heads, m.kv_heads, m.head_dim, m.layers) == (c.hidden, c.heads, c.kv_heads, c.head_dim, c.layers)
        same_experts = (m.experts is not None) == (c.experts is not None)
        same_ffn = c.experts is not None or m.ffn == c.ffn
        if same_sizes and same_experts and same_ffn and 0 <= c.vocab - m.vocab < 128 * c.tp + 1:
            known.append(m)
    if known:
        return known
    llama = Model("measured", c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, gated=c.gated, experts=c.experts)
    positions = c.tokens * c.cp // c.batch
    gpt = replace(llama, norm="layer", norm_bias=True, bias=True, positions="learned", max_positions=positions)
    return [gpt, replace(gpt, tied=True), llama, replace(llama, tied=True)]
