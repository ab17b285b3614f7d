"""What-ifs of the plan: the identified job with other settings, assembled as `predict` assembles a job.

Process groups are placed on the fabric again, new ranks do the same work as their peers, and the schedule decides the order.
TaskPrices are those of the measured job (`calibrated`). The step is measured · predicted(new) / predicted(old), so effects that a
layout does not show (jitter, stragglers) keep their proportion of the step.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.blocks.work import Collective, Work
from lumos.changes.plan.calibrated import calibrated_pricer
from lumos.changes.plan.identify import ENOUGH_AGREEMENT, Identified
from lumos.changes.settings import ON, SETTINGS, counts
from lumos.errors import LumosError, UsageError
from lumos.model import Model
from lumos.plan.plan import Plan, check_plan
from lumos.prediction.predict import Prediction, predict_job
from lumos.prediction.step_time import PredictedStep
from lumos.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.plan.job import PlannedJob

#: Fields of the plan and of the model by the key of --set that names them.
PLAN_FIELDS = {"seq": "seq_len"} | {f.name: f.name for f in fields(Plan) if f.name in SETTINGS}
MODEL_FIELDS = tuple(f.name for f in fields(Model) if f.name in SETTINGS)


class Planned(NamedTuple):
    """Both predictions with the measured job's prices. factor: by which their times are multiplied. scaled: share of the changed step's
    kernel time that is not measured."""

    base: Prediction
    changed: Prediction
    factor: float
    scaled: float


def planned(
    identified: Identified,
    graph: Graph,
    measured_s: float,
    settings: Mapping[str, str],
    cluster: Cluster | None,
    altered: Graph,
    slow: Sequence[tuple[int, float]],
) -> Planned:
    """Predict the identified job with `settings`. measured_s: its replayed step.

    altered: `graph` with changed durations, which are used for the same work of the new plan in place of the measured ones. slow:
    ranks of the new plan whose own work takes a factor longer. The ranks of a stage wait for each other in every layer, or at the
    latest when they exchange gradients, so a stage is as slow as its slowest rank.

    Raises LumosError where the layout accounts for too little of the trace, PlanError where the plan breaks a rule.
    """
    if identified.agreement < ENOUGH_AGREEMENT:
        raise LumosError(
            f"the layout of the plan that the trace shows accounts for {identified.agreement:.1%} of its device work, less than the"
            f" {ENOUGH_AGREEMENT:.0%} that a change of the plan needs; settings that the measured blocks support can still be changed"
        )
    job = with_settings(identified.job, settings, cluster)
    base = predict_job(identified.job, calibrated_pricer(identified, graph), coarse=False)
    pricer = calibrated_pricer(identified, graph, job.cluster, altered)
    changed = predict_job(job, pricer, coarse=False, slow=_slow_stages(job.plan, slow))
    time = scaled_time = 0
    for task, work in enumerate(changed.works):
        if work is not None:
            duration = int(changed.timeline.graph.duration[task])
            time += duration
            scaled_time += 0 if pricer.measured(work) and _same_hardware(work, identified.job, job) else duration
    return Planned(base, changed, measured_s / base.time.time_s, scaled_time / time if time else 0.0)


def between(likely: Planned, fast: Planned, slow: Planned) -> Planned:
    """The predictions with an interval that is wider by those with a faster and a slower host."""
    time = likely.changed.time
    low, high = (end.changed.time.time_s / time.time_s for end in (fast, slow))
    wider = PredictedStep(time.time_s, time.low_s * min(low, 1.0), time.high_s * max(high, 1.0))
    return likely._replace(changed=replace(likely.changed, time=wider))


def _same_hardware(work: Work, old: PlannedJob, new: PlannedJob) -> bool:
    """Whether work of the new job keeps the time measured for equal work: device, link and precision are the same."""
    if isinstance(work, Collective):
        return (old.cluster.node, old.cluster.fabric) == (new.cluster.node, new.cluster.fabric)
    return old.cluster.accelerator == new.cluster.accelerator and old.plan.precision == new.plan.precision


def _slow_stages(plan: Plan, slow: Sequence[tuple[int, float]]) -> dict[int, float]:
    """By stage, the factor of its slowest rank. Raises LumosError where the plan has no such rank."""
    stage_ranks = plan.tp * plan.cp * plan.dp
    factors: dict[int, dict[int, float]] = {}
    for rank, factor in slow:
        if rank >= plan.devices:
            raise LumosError(f"--rank-slowdown: the changed job has no rank {rank}; it has {plan.devices} ranks")
        stage = factors.setdefault(rank // stage_ranks, {})
        stage[rank] = stage.get(rank, 1.0) * factor
    return {stage: max([*by_rank.values(), *([1.0] if len(by_rank) < stage_ranks else [])]) for stage, by_rank in factors.items()}


def with_settings(job: PlannedJob, settings: Mapping[str, str], cluster: Cluster | None) -> PlannedJob:
    """The job with the settings of --set. The number of microbatches of a replica stays unless set, so the global batch follows from it."""
    numbers = counts(settings)
    values: dict[str, Any] = {**settings, **numbers}
    model = _model(job.model, {key: numbers[key] for key in MODEL_FIELDS if key in numbers})
    changes = {field: values[key] for key, field in PLAN_FIELDS.items() if key in values}
    plan = replace(job.plan, **changes)
    plan = replace(plan, global_batch=numbers.get("microbatches", job.plan.microbatches) * plan.dp * plan.micro_batch)
    if "schedule" not in changes and (plan.vpp > 1) != (job.plan.vpp > 1):
        plan = replace(plan, schedule=Schedule.INTERLEAVED if plan.vpp > 1 else Schedule.ONE_F_ONE_B)
    sequence = job.plan.sequence_parallel if job.plan.tp > 1 else job.framework.sequence_parallel
    plan = replace(plan, sequence_parallel=plan.tp > 1 and sequence)
    check_plan(plan, model)
    framework = replace(job.framework, cuda_graphs=settings.get("cuda_graphs") == ON or job.framework.cuda_graphs)
    return replace(job, model=model, plan=plan, framework=framework, cluster=cluster or job.cluster)


def _model(model: Model, counts: Mapping[str, int]) -> Model:
    """The model with other dimensions. The number of heads stays unless given, so a wider model has wider heads."""
    if not counts:
        return model
    new = replace(model, **counts)  # type: ignore[arg-type]
    if "heads" in counts and model.kv_heads == model.heads:
        new = replace(new, kv_heads=new.heads)
    if "hidden" in counts or "heads" in counts:
        if new.hidden % new.heads:
            raise UsageError(f"hidden ({new.hidden}) must be a multiple of heads ({new.heads})")
        new = replace(new, head_dim=model.head_dim * new.hidden * model.heads // (model.hidden * new.heads))
    return new
