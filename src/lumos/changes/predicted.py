"""What-ifs of a job that `lumos predict` wrote: its files say what was predicted, so the changed job is predicted as well.

A prediction is made anew for both jobs, and the step is recorded · predicted(new) / predicted(old): jitter that was written into the
files keeps its share of the step. Nothing is read off rows that the files state.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

from lumos.analyze.loop.noise import NEAR
from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.changes.answer import Answer, Contribution, Outcome, Parts, PeakMemory, Provenance, largest
from lumos.changes.durations import Durations
from lumos.changes.settings import ON, SETTINGS, counts
from lumos.errors import LumosError, UsageError
from lumos.model import Model
from lumos.plan.job import PlannedJob, job_from_facts
from lumos.plan.plan import Plan, check_plan
from lumos.prediction.predict import Prediction, predict_job
from lumos.prediction.step_time import PredictedStep
from lumos.trace.table import PREDICTED, origin_of
from lumos.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.changes.changes import Changes
    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.trace.table import Job
    from lumos.vocabulary import Basis

#: Fields of the plan and of the model by the key of --set that names them.
PLAN_FIELDS = {"seq": "seq_len"} | {f.name: f.name for f in fields(Plan) if f.name in SETTINGS}
MODEL_FIELDS = tuple(f.name for f in fields(Model) if f.name in SETTINGS)


def predicted_job(job: Job) -> PlannedJob | None:
    """The job that was predicted, by what its files say; None for any other job.

    Raises LumosError where files say what no prediction writes, or are of several predictions.
    """
    origins = [origin_of(trace) for trace in job.traces]
    said = [origin.job if origin is not None else {} for origin in origins]
    if not any(said):
        if any(origin is not None and origin.what == PREDICTED for origin in origins):
            raise LumosError(f"{job.traces[0].path}: does not say which job was predicted; write it again with lumos predict --kineto")
        return None
    other = next((trace for trace, facts in zip(job.traces, said, strict=True) if facts != said[0]), None)
    if other is not None:
        raise LumosError(f"{other.path} is of another prediction than {job.traces[0].path}; give the files of one")
    return job_from_facts(said[0], job.traces[0].path)


def setting_of(job: PlannedJob, key: str) -> int:
    """The number that a predicted job has of a setting; 0 for what is no number of it."""
    model, plan = job.model, job.plan
    known = {key: getattr(model, key) for key in ("hidden", "heads", "ffn", "vocab", "layers")}
    known |= {key: getattr(plan, key) for key in ("micro_batch", "microbatches", "pp", "vpp", "dp", "tp", "cp", "ep")}
    return plan.seq_len if key == "seq" else known.get(key, 0)


def predicted_anew(before: PlannedJob, job: Job, graph: Graph, changes: Changes) -> Answer:
    """The answer of a change of settings or hardware. before: what was predicted.

    Raises PlanError where the plan breaks a rule, LumosError for durations that change as well, and where the files' step is not that
    of the prediction.
    """
    if changes.durations != Durations() or changes.host_factor is not None:
        raise LumosError(
            "the files are of a prediction, which is made anew for --set, --cluster and --network: write that with --kineto FOLDER, and"
            " change durations of what it writes"
        )
    after = with_settings(before, changes.settings, changes.machine(job, graph).target(before.cluster))
    base, changed = (predict_job(planned, coarse=False) for planned in (before, after))
    loop = steady(members(graph), repeat=changes.repeat or None)
    factor = loop.step_time_ns * 1e-9 / base.time.time_s
    if abs(factor - 1) > NEAR:
        raise LumosError(
            f"{job.traces[0].path}: its step is {factor - 1:+.1%} off what is predicted of the job that it names, so it was changed since,"
            " or another release wrote it; write it again with lumos predict --kineto"
        )
    old, new = _outcome(base, loop.basis, factor, is_base=True), _outcome(changed, loop.basis, factor, is_base=False)
    classes = (
        (name, *(side.critical_path.get(name, 0.0) * side.step_time_s for side in (old, new)))
        for name in dict.fromkeys([*old.critical_path, *new.critical_path])
    )
    return Answer(
        new,
        old,
        None,
        (*(f"{key} = {value}" for key, value in changes.settings.items()), *changes.hardware_words),
        largest(list(starmap(Contribution, classes))),
        Provenance(0.0, 0.0, 1.0),
        tuple(dict.fromkeys((*graph.diagnostics, *changed.diagnostics))),
        job=replace(changed, time=PredictedStep(new.step_time_s, new.step_time_low_s, new.step_time_high_s)),
    )


def with_settings(job: PlannedJob, settings: Mapping[str, str], cluster: Cluster | None = None) -> PlannedJob:
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


def _model(model: Model, numbers: Mapping[str, int]) -> Model:
    """The model with other dimensions. The number of heads stays unless given, so a wider model has wider heads."""
    if not numbers:
        return model
    new = replace(model, **numbers)  # type: ignore[arg-type]
    if "heads" in numbers and model.kv_heads == model.heads:
        new = replace(new, kv_heads=new.heads)
    if "hidden" in numbers or "heads" in numbers:
        if new.hidden % new.heads:
            raise UsageError(f"hidden ({new.hidden}) must be a multiple of heads ({new.heads})")
        new = replace(new, head_dim=model.head_dim * new.hidden * model.heads // (model.hidden * new.heads))
    return new


def _outcome(p: Prediction, basis: Basis, factor: float, *, is_base: bool) -> Outcome:
    """A prediction as an outcome. factor: on its times. is_base: its files were written, so its time has no interval."""
    time = p.time.time_s * factor
    low, high = (time, time) if is_base else (p.time.low_s * factor, p.time.high_s * factor)
    total = sum(p.breakdown.values())
    m = p.memory
    return Outcome(
        basis=basis,
        step_time_s=time,
        step_time_low_s=low,
        step_time_high_s=high,
        breakdown=Parts(**{key: value / total * time for key, value in p.breakdown.items()}),
        tokens_per_s_per_gpu=p.tokens_per_s_per_gpu / factor,
        model_flops_utilization=p.model_flops_utilization / factor,
        memory=PeakMemory(m.parameters_bytes, m.gradients_bytes, m.optimizer_bytes, m.activations_bytes, m.peak_bytes, m.fits),
        critical_path=p.critical_path,
    )
