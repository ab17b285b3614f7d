"""What-if by plan: the identified job with other settings, arranged and assembled by `predict`'s own assembler.

Groups are placed on the fabric anew; ranks that did not exist do as their peers; the schedule decides the order. Prices
are the measured job's (`calibrated`). The step is the measured one · predicted(new) / predicted(old), so what no layout
shows (jitter, stragglers) stays in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from lumos.blocks.work import Collective, Work
from lumos.cost.cluster import Cluster
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph
from lumos.model import Model
from lumos.plan.job import Job
from lumos.plan.plan import Plan, check
from lumos.predict.predict import Prediction, predict
from lumos.vocabulary import Schedule
from lumos.whatif.calibrated import calibrate
from lumos.whatif.identify import ENOUGH, Identified
from lumos.whatif.settings import ON, SETTINGS, counts

#: Fields of the plan and of the model by the key of --set that names them.
PLAN_FIELDS = {"seq": "seq_len"} | {f.name: f.name for f in fields(Plan) if f.name in SETTINGS}
MODEL_FIELDS = tuple(f.name for f in fields(Model) if f.name in SETTINGS)


class Planned(NamedTuple):
    """Both predictions, with the measured job's prices, and by what to multiply their times."""

    base: Prediction
    changed: Prediction
    factor: float
    scaled: float  # share of the changed step's kernels' time that is not measured


def planned(
    found: Identified,
    graph: Graph,
    measured_s: float,
    settings: Mapping[str, str],
    cluster: Cluster | None,
    altered: Graph,
    slow: Sequence[tuple[int, float]],
) -> Planned:
    """Predict the identified job with `settings`. measured_s: its replayed step.

    altered: `graph` with changed durations, which carry over to the new plan's like work as measured ones do. slow: ranks of the
    new plan whose own work takes a factor longer. A stage's ranks meet in every layer or at the latest with their gradients, so
    the slowest of them stands for them all.

    LumosError where the layout does not account for enough of what the trace shows; PlanError where the plan breaks a rule.
    """
    if found.agreement < ENOUGH:
        raise LumosError(
            f"the layout of the plan that the trace shows accounts for {found.agreement:.1%} of its device work, less than the {ENOUGH:.0%}"
            " that is needed to move it about; the other keys of --set go by the measured blocks"
        )
    job = with_settings(found.job, settings, cluster)
    base = predict(found.job, calibrate(found, graph), coarse=False)
    pricer = calibrate(found, graph, job.cluster, altered)
    changed = predict(job, pricer, coarse=False, slow=_slow_stages(job.plan, slow))
    time = new = 0
    for task, work in enumerate(changed.works):
        if work is not None:
            duration = int(changed.timeline.graph.duration[task])
            time += duration
            new += 0 if pricer.measured(work) and _same_hardware(work, found.job, job) else duration
    return Planned(base, changed, measured_s / base.time.time_s, new / time if time else 0.0)


def _same_hardware(work: Work, old: Job, new: Job) -> bool:
    """Whether the work keeps its measured time: of its like on the same device, link and precision."""
    if isinstance(work, Collective):
        return (old.cluster.node, old.cluster.fabric) == (new.cluster.node, new.cluster.fabric)
    return old.cluster.accelerator == new.cluster.accelerator and old.plan.precision == new.plan.precision


def _slow_stages(plan: Plan, slow: Sequence[tuple[int, float]]) -> dict[int, float]:
    """By stage, the factor of its slowest rank. LumosError where the plan has no such rank."""
    peers = plan.tp * plan.cp * plan.dp
    factors: dict[int, dict[int, float]] = {}
    for rank, factor in slow:
        if rank >= plan.devices:
            raise LumosError(f"--rank-slowdown: the changed job has no rank {rank}; it has {plan.devices} ranks")
        stage = factors.setdefault(rank // peers, {})
        stage[rank] = stage.get(rank, 1.0) * factor
    return {stage: max([*own.values(), *([1.0] if len(own) < peers else [])]) for stage, own in factors.items()}


def with_settings(job: Job, settings: Mapping[str, str], cluster: Cluster | None) -> Job:
    """The job with --set's settings. Microbatches of a replica stay as many unless set, so the global batch follows."""
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
    check(plan, model)
    framework = replace(job.framework, cuda_graphs=settings.get("cuda_graphs") == ON or job.framework.cuda_graphs)
    return replace(job, model=model, plan=plan, framework=framework, cluster=cluster or job.cluster)


def _model(model: Model, counts: Mapping[str, int]) -> Model:
    """Other dimensions. Heads keep their number unless given, so that a wider model has wider heads."""
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
