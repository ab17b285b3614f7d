"""Predict one step: its time with an interval, where it goes, what bounds it, and the memory it needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.analyze.breakdown import four_way
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.loop.steps import members, step_times
from lumos.blocks.memory import Memory, peak_memory
from lumos.blocks.price import Pricer
from lumos.blocks.work import Attention, Collective, Contention, Gemm, GroupedGemm, RankStream, Work
from lumos.diagnostics import Diagnostic
from lumos.graph.table import Dependency, Graph, Kind
from lumos.plan.schedules import gradient_reduction
from lumos.prediction.assemble import Assembled, assemble
from lumos.prediction.operating import Operating, operating
from lumos.prediction.step_time import Open, PredictedStep, central_time, covering, layout_of, priced_unknowns, questions, time_of
from lumos.result import Shown
from lumos.simulation import simulate
from lumos.units import duration
from lumos.vocabulary import Basis, GradientReduction, Schedule

if TYPE_CHECKING:
    from lumos.plan.job import PlannedJob
    from lumos.prediction.layout import Item, Layout
    from lumos.simulation.timeline import Timeline

#: A step with more tasks is simulated in coarse form, which gives nearly the same answer much sooner.
FINE_TASKS = 100_000
#: The sizes and choices of a plan that an answer names.
_SIZES = ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "micro_batch", "sequence_parallel", "recompute", "schedule")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prediction(Shown):
    """One predicted step. breakdown: seconds of the four parts, mean over stages. critical_path, bound_by: shares of the step.

    granularity: "kernels" for the fine form of the graph, "blocks" for the coarse one.
    """

    job: PlannedJob
    layout: Layout
    timeline: Timeline
    time: PredictedStep
    breakdown: dict[str, float]
    tokens_per_s_per_gpu: float
    model_flops_utilization: float
    memory: Memory
    critical_path: dict[str, float]
    bound_by: dict[str, float]
    granularity: str
    diagnostics: tuple[Diagnostic, ...]
    unknowns: tuple[Open, ...]  # what the configuration leaves open, the most consequential first
    works: tuple[Work | None, ...]  # the work of each task; None for host work
    items: tuple[Item, ...]  # of each task: the item of the layout, or one of its repetitions, that it is part of

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos predict --json`."""
        return {
            "basis": Basis.LATENCY,  # one step, from its first work to its last
            "step_time_s": self.time.time_s,
            "step_time_low_s": self.time.low_s,
            "step_time_high_s": self.time.high_s,
            "breakdown": self.breakdown,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "model_flops_utilization": self.model_flops_utilization,
            "model_tflops_per_gpu": self.model_flops_utilization * self.job.cluster.accelerator.peak(self.job.plan.precision) / 1e12,
            "memory": {field.name: getattr(self.memory, field.name) for field in fields(self.memory) if field.name != "stage"},
            "operating": self.operating._asdict(),
            "critical_path": self.critical_path,
            "bound_by": self.bound_by,
            "granularity": self.granularity,
            "framework": self.job.framework.name,
            "plan": {key: getattr(self.job.plan, key) for key in _SIZES},
            "parameters": self.job.model.parameters,
            "unknowns": [{"code": u.code, "question": u.question, "factors": dict(u.factors)} for u in self.unknowns],
            "diagnostics": [{"code": d.code, "message": d.message} for d in self.diagnostics],
        }

    def described(self) -> str:
        """The step with its interval, and the job, for people."""
        step, low, high = (duration(1e9 * s) for s in (self.time.time_s, self.time.low_s, self.time.high_s))
        return (
            f"{step} a step (80 % interval {low} to {high}), {self.layout.described()}, {self.job.plan.devices} x {self.job.cluster.name}"
        )

    @property
    def operating(self) -> Operating:
        """What the job costs to run, as far as the cluster's file says."""
        return operating(self.job.cluster, self.job.plan.devices, self.tokens_per_s_per_gpu)

    @property
    def collectives(self) -> list[Collective | None]:
        """The collective of every task; None for the rest."""
        return [w if isinstance(w, Collective) else None for w in self.works]


#: Schedules for which no measured steps are published, and what is assumed about them.
UNPROVED_SCHEDULES = {
    Schedule.ZERO_BUBBLE: "its order and its bubble are those published (ZB-H1), split passes hide no tensor-parallel reduction",
    Schedule.DUALPIPE: "its order is that of DeepSeek's implementation, a turn's two passes run one after the other",
}


#: How often gradients are reduced of which a rank keeps only its part, for people.
_REDUCED = {
    GradientReduction.MICROBATCH: "they are reduced after each microbatch; zero 1 reduces them once a step",
    GradientReduction.GROUP: "each virtual stage reduces them after each group of microbatches that it runs one after the other",
    GradientReduction.STEP: "they are reduced once a step, and whole until then",
}


def _of_sharded_gradients(job: PlannedJob) -> list[Diagnostic]:
    """How often the job reduces its gradients, if a rank keeps only its part of them and there is more than one way."""
    plan = job.plan
    if not plan.shards_gradients or plan.microbatches == 1 or plan.dp * plan.cp == 1 or plan.lora_rank:
        return []
    often = gradient_reduction(plan, job.framework)
    other = "" if plan.pp == 1 else " (--switch grad_reduce)"
    return [Diagnostic(f"reduced-each-{often.value}", f"zero 2 keeps a part of the gradients: {_REDUCED[often]}{other}")]


def predict_job(job: PlannedJob, pricer: Pricer | None = None, coarse: bool | None = None) -> Prediction:
    """The step of `job`. coarse: which form of the graph is simulated; None: the fine one up to FINE_TASKS tasks."""
    pricer = pricer or Pricer(job.cluster)
    layout = layout_of(job)
    notes = list(job.assumed)
    if job.plan.schedule in UNPROVED_SCHEDULES:
        missing = f"no measured run of the {job.plan.schedule} schedule was at hand"
        notes.append(Diagnostic("schedule-unproved", f"{missing}: {UNPROVED_SCHEDULES[job.plan.schedule]}"))
    notes += _of_sharded_gradients(job)
    if coarse is None:
        coarse = task_count(layout) > FINE_TASKS
    assembled = assemble(layout, pricer, coarse)
    unknowns = priced_unknowns(job, central_time(job, pricer), pricer) if job.unknowns else []
    notes += questions(unknowns)
    time = covering(time_of(assembled, job, pricer.coefficients), unknowns)
    timeline = simulate(assembled.graph)
    path = max(critical_paths(timeline), key=lambda p: p.duration_ns)
    memory = peak_memory(job)
    if not memory.fits:
        room = (job.cluster.accelerator.usable_bytes or 0) / 1e9
        notes.append(Diagnostic("out-of-memory", f"stage {memory.stage} needs {memory.peak_bytes / 1e9:.1f} GB of {room:.0f}"))
    notes += assembled.graph.diagnostics
    plan = job.plan
    peak = job.cluster.accelerator.peak(plan.precision)
    achieved = job.model.flops_per_token(plan.seq_len // plan.documents) * plan.tokens / (time.time_s * plan.devices)
    by_class, by_bound = shares(assembled.graph, path, layout, pricer)
    return Prediction(
        job=job,
        layout=layout,
        timeline=timeline,
        time=time,
        breakdown=breakdown_of(timeline, assembled),
        tokens_per_s_per_gpu=plan.tokens / (time.time_s * plan.devices),
        model_flops_utilization=achieved / peak,
        memory=memory,
        critical_path=by_class,
        bound_by=by_bound,
        granularity="blocks" if coarse else "kernels",
        diagnostics=tuple(dict.fromkeys(notes)),
        unknowns=tuple(unknowns),
        works=tuple(assembled.work[i] for i in assembled.entry.tolist()),
        items=assembled.items,
    )


def task_count(layout: Layout) -> int:
    """How many tasks the fine form of the graph has."""
    size = [2 * len(block.ops) + 1 for block in layout.blocks]
    return sum(size[item.block] * item.repeat for stage in layout.stages for item in stage)


def breakdown_of(timeline: Timeline, assembled: Assembled) -> dict[str, float]:
    """The four parts of the step in seconds, mean over the stages. A stage's idle time up to the end of the step is `other`.

    In coarse form the communication inside a block is subtracted from the compute of its task. A stage that waits for its
    neighbour (the bubble) is idle: only the transfer itself counts as communication.
    """
    graph = timeline.graph
    arrived = np.where(graph.kind == Kind.COLLECTIVE, timeline.end - graph.duration, timeline.start)
    run, owners = replace(timeline, start=arrived), members(graph)
    parts = np.array(four_way(run, owners, step_times(run, owners).rank_intervals()), np.float64)
    whole = float(timeline.end.max() - timeline.start.min())
    exposed, overlapped, communication = (parts[:, i].mean() for i in range(3))
    shown, covered = assembled.inside.sum(axis=0) / len(parts)
    bare = exposed / max(exposed + overlapped, 1.0)  # share of the blocks' time during which no other communication runs
    values = {
        "exposed_compute_s": exposed - bare * (shown + covered),
        "overlapped_s": overlapped - (1 - bare) * shown + bare * covered,
        "exposed_communication_s": communication + shown,
        "other_s": whole - exposed - overlapped - communication,
    }
    return {key: float(value) * 1e-9 for key, value in values.items()}


def shares(graph: Graph, path: CriticalPath, layout: Layout, pricer: Pricer) -> tuple[dict[str, float], dict[str, float]]:
    """The critical path by kind of work, and by what bounds it, each as fractions of the step."""
    mix = _mix(layout, pricer)
    kinds, limits = Counter[str](), Counter[str]()
    total = max(1, path.duration_ns)
    kind, name = graph.kind.tolist(), graph.name.tolist()
    spent: Counter[tuple[int, bool]] = Counter()
    for link in path.links:
        spent[name[link.task], kind[link.task] in (Kind.OPERATOR, Kind.LAUNCH)] += link.end_ns - link.start_ns
        if link.delay_ns + link.idle_ns:
            launch = link.cause == Dependency.LAUNCH
            kinds["launch latency" if launch else "waiting"] += link.delay_ns + link.idle_ns
            limits["latency" if launch else "waiting"] += link.delay_ns + link.idle_ns
    for (number, on_host), time in spent.items():
        if on_host:
            kinds["host"] += time
            limits["host"] += time
            continue
        for (word, limit), share in mix[graph.names[number]].items():
            kinds[word] += round(time * share)
            limits[limit] += round(time * share)
    return _fractions(kinds, total), _fractions(limits, total)


def _fractions(counter: Counter[str], total: int) -> dict[str, float]:
    return {key: value / total for key, value in counter.most_common() if value}


def _mix(layout: Layout, pricer: Pricer) -> dict[str, dict[tuple[str, str], float]]:
    """For each name of a task (a kernel or a whole block): shares of its time by (kind of work, what bounds it)."""
    times: dict[str, Counter[tuple[str, str]]] = {}
    for block in layout.blocks:
        for op, price in zip(block.ops, pricer([op.work for op in block.ops]), strict=True):
            key = work_class(op.work, op.lane), price.bound.name.lower()
            for name in (op.name, block.name):
                times.setdefault(name, Counter())[key] += max(1, price.times.best)
    return {name: {key: t / counter.total() for key, t in counter.items()} for name, counter in times.items()}


def work_class(work: Work, lane: RankStream) -> str:
    """The kind of work, in words for people."""
    if isinstance(work, Collective):
        names = {RankStream.TENSOR: "tensor-parallel", RankStream.CONTEXT: "context-parallel", RankStream.EXPERT: "expert-parallel"}
        names |= dict.fromkeys((RankStream.DATA, RankStream.GATHER), "data-parallel")
        return f"{names.get(lane, 'pipeline')} communication"
    if isinstance(work, Gemm | GroupedGemm):
        return "multiplications"
    if isinstance(work, Attention):
        return "attention"
    return "contention" if isinstance(work, Contention) else "element-wise"
