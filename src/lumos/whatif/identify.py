"""Which model, plan and framework a measured job ran, read from its traces.

What the traces show outright is read by `counts`. Known models of those sizes are preferred. What the counts leave open
(schedule, ZeRO, framework, selective recomputation, details of the model) is chosen by comparing what each candidate's
layout would launch with what the ranks launched; the share that agrees is the confidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations

from lumos.analyze.steps import Members, members
from lumos.blocks.block import Block
from lumos.cost.cluster import Cluster
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.model import Model, load_model, model_names
from lumos.plan.job import Job
from lumos.plan.plan import Plan, PlanError, check
from lumos.plan.profiles import profiles
from lumos.predict.layout import Layout
from lumos.predict.step_time import layout_of
from lumos.predict.tally import Tallies
from lumos.segment.counts import Counts, counts_of
from lumos.segment.signatures import Measured, Signature, measured_work, of_work
from lumos.trace.table import Job as Traces
from lumos.vocabulary import Recompute, Schedule

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


def identify(traces: Traces, graph: Graph, owners: Members, cluster: Cluster) -> Identified:
    """Identify the job of `traces` (whose joined graph is `graph`). LumosError with what is missing where it cannot."""
    work = tuple(measured_work(graph, owners, i, t) for i, t in enumerate(traces.traces))
    counts, stages = counts_of(traces, work)
    seen = [Counter(m.signature for m in rank) for rank in work]
    expected = _Expected(cluster)
    scored = [(_agreement(expected(job), seen, stages), job) for job in _candidates(counts, cluster)]
    if not scored:
        raise LumosError("the trace's plan does not fit together; its ranks, shapes and groups contradict each other")
    most = max(score for score, _ in scored)
    alike = [job for score, job in scored if score > most - 1e-9]
    job = max(alike, key=lambda candidate: _in_order(layout_of(candidate), work, stages)) if len(alike) > 1 else alike[0]
    return Identified(job, most, work, tuple(stages))


class Identification:
    """The plan of one job, identified when first asked for and then kept: many what-ifs of a job need it once."""

    def __init__(self, traces: Traces, graph: Graph) -> None:
        self._traces, self._graph = traces, graph
        self._known: list[tuple[Cluster, Identified | LumosError]] = []

    def on(self, cluster: Cluster) -> Identified:
        """The job as it ran on `cluster`. LumosError where it cannot be identified, every time it is asked for."""
        found = next((found for known, found in self._known if known == cluster), None)
        if found is None:
            try:
                found = identify(self._traces, self._graph, members(self._graph), cluster)
            except LumosError as error:
                found = error
            self._known.append((cluster, found))
        if isinstance(found, LumosError):
            raise found
        return found


def _agreement(expected: Sequence[Counter[Signature]], seen: Sequence[Counter[Signature]], stages: Sequence[int]) -> float:
    """Share of the work, of both sides, that agrees. expected: by stage; seen: by rank, whose stages `stages` are."""
    both = total = 0
    for rank, stage in zip(seen, stages, strict=True):
        if stage >= len(expected):
            return 0.0
        both += (rank & expected[stage]).total()
        total += max(rank.total(), expected[stage].total())
    return both / total if total else 0.0


class _Expected:
    """By stage, how often the work of a job has each signature. Most blocks are the same for many candidates, and looked at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._tally = Tallies(cluster.node.devices)
        self._of_block: dict[Block, Counter[Signature]] = {}

    def __call__(self, job: Job) -> list[Counter[Signature]]:
        tally = self._tally(job.model, job.plan, job.framework)
        blocks = [self._signatures(block) for block in tally.blocks]
        found = []
        for runs in tally.runs:
            total: dict[Signature, int] = defaultdict(int)
            for block, count in runs.items():
                for signature, each in blocks[block].items():
                    total[signature] += each * count
            found.append(Counter(total))
        return found

    def _signatures(self, block: Block) -> Counter[Signature]:
        if block not in self._of_block:
            self._of_block[block] = Counter(of_work(op.work) for op in block.ops)
        return self._of_block[block]


def _in_order(layout: Layout, work: Sequence[list[Measured]], stages: Sequence[int]) -> int:
    """How much of the first rank's work of every stage stands where the layout has it: what tells schedules apart."""
    found = 0
    for stage in range(len(layout.stages)):
        rank = work[stages.index(stage)]
        found += sum(m.signature == of_work(w) for m, w in zip(rank, layout.work(stage), strict=False))
    return found


def _candidates(c: Counts, cluster: Cluster) -> Iterator[Job]:
    dp = c.world // (c.tp * c.pp * c.cp)
    schedules: tuple[Schedule, ...] = (Schedule.INTERLEAVED,) if c.vpp > 1 else (Schedule.ONE_F_ONE_B,)
    if c.pp > 1 and c.vpp == 1:
        schedules += (Schedule.GPIPE, Schedule.ZERO_BUBBLE)
    models = _models(c)
    recompute = (Recompute.FULL if c.recompute else Recompute.NONE, Recompute.SELECTIVE)
    for framework, model, schedule, again, turn in combinations(profiles().values(), models, schedules, recompute, range(4)):
        zero = (framework.zero + turn) % 4  # its own first, for one replica does not show any
        if again is Recompute.SELECTIVE and not framework.repeats_selectively:
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
                recompute=again,
                precision=c.precision,
            )
            check(plan, model)
        except PlanError:
            continue
        yield Job(model, plan, framework, cluster)


def _models(c: Counts) -> list[Model]:
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
