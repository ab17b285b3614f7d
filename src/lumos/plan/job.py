"""A training job to predict: model, plan, framework and cluster together, and what its configuration leaves open: the switches of its
profile, how its experts exchange, whether it recomputes. Each open fact lists the job by every answer other than the one that is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lumos.cost.cluster import Cluster
from lumos.errors import LumosError, UsageError
from lumos.model import Model
from lumos.plan.framework import Framework
from lumos.plan.plan import Plan, check_plan
from lumos.plan.profiles import other_years, profile_questions
from lumos.vocabulary import Precision, Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lumos.diagnostics import Diagnostic
    from lumos.model.hugging_face import TokenWindow


class Unknown(NamedTuple):
    """A fact that the configuration leaves open. answers: the job by each answer other than the one assumed, by name.

    code: a stable word for scripts; question: what would settle the fact, in words for people. of_framework: whether the answers are
    habits of a framework, which go together: a fast one is fast in most of them.
    """

    code: str
    question: str
    answers: Mapping[str, PlannedJob]
    of_framework: bool = False


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The subject of one prediction. assumed: which facts the configuration left open, and the values that were assumed; unknowns:
    those whose other answers would change the time."""

    model: Model
    plan: Plan
    framework: Framework
    cluster: Cluster
    assumed: tuple[Diagnostic, ...] = ()
    unknowns: tuple[Unknown, ...] = ()


#: The parts of a job that files of a prediction carry.
_PARTS: Mapping[str, type[Any]] = {"model": Model, "plan": Plan, "framework": Framework, "cluster": Cluster}


def facts_of(job: PlannedJob) -> dict[str, object]:
    """The job as JSON has it, for the files of its prediction: which it is, not what was left open."""
    return {part: msgspec.to_builtins(getattr(job, part)) for part in _PARTS}


def job_from_facts(facts: Mapping[str, object], path: str) -> PlannedJob:
    """The reverse of `facts_of`, from a file at `path`. Raises LumosError where `facts_of` cannot have written it."""
    try:
        job = PlannedJob(**{part: msgspec.convert(facts.get(part), kind) for part, kind in _PARTS.items()})
        check_plan(job.plan, job.model)
        job.cluster.check_size(job.plan.devices)
    except (msgspec.ValidationError, UsageError, LumosError) as error:
        text = f"{path}: what it says of the job that was predicted is no job ({error}); write it again with lumos predict --kineto"
        raise LumosError(text) from error
    return job


#: Rows of the most loaded expert / mean, with capacity limits that drop what exceeds them, and where a router is badly balanced (prior).
EVEN_SKEW, BAD_SKEW = 1.0, 1.5

#: From so many nodes on, links may reach a quarter of their rate together (nanotron's benchmarks on H100, where 64 nodes take longer for a
#: step than 32).
MANY_NODES = 64
#: What the links of n nodes may reach together, as a power of n: half of their rate at 64 nodes, nine tenths at two (prior).
SHARED_LINKS = -1 / 6
#: The most documents that a sequence of a fine-tuning run is taken to hold (prior).
PACKED = 16
#: The share of a device's own power limit to which it is taken to be limited where a source speaks of a limit and does not state it, and
#: what else it may be. The torchtitan reports' H100 are limited to 500 of 700 W.
LIMITED, LIMITED_OTHERWISE = 0.7, (0.85, 0.55)


def with_unknowns(job: PlannedJob, stated: Collection[str] = ()) -> PlannedJob:
    """The job with what it leaves open. stated: switches that were given, which are no longer open; "release" where that is known."""
    of_framework = [
        Unknown(q.code, q.ask, _jobs(job, q.switches, stated), of_framework=True)
        for q in profile_questions(job.framework.name)
        if _asks(q.code, job) and not (q.code == "unknown-release" and "release" in stated)
    ]
    return _open(job, *of_framework, *_of_experts(job, stated), *_of_network(job))


def _open(job: PlannedJob, *facts: Unknown) -> PlannedJob:
    """The job with these facts as open, but for those without any other answer."""
    open_facts = tuple(fact for fact in facts if fact.answers)
    return replace(job, unknowns=(*job.unknowns, *open_facts)) if open_facts else job


def unknown_year(job: PlannedJob, framework: str, notes: str) -> PlannedJob:
    """The job of a framework whose year is not stated, with the profiles of other years as open."""
    answers = {year: replace(job, framework=other) for year, other in other_years(framework, notes).items()}
    return _open(job, Unknown("unknown-year", f"of which year is {framework}? (column year)", answers))


def unknown_window(job: PlannedJob, window: TokenWindow | None) -> PlannedJob:
    """The job of a model of whose layers some see a window of the sequence only. Attention is priced over the whole sequence; the other
    answer is that of every layer in its window, which reads as many keys as packed documents of the length chosen here."""
    plan = job.plan
    if window is None or window.tokens >= plan.seq_len or plan.document:
        return job
    length = min(plan.seq_len, round(2 * window.tokens * (1 - window.tokens / (2 * plan.seq_len))))
    count = "some" if window.layers is None else f"{window.layers} of {job.model.layers}"
    question = f"{count} layers see {window.tokens} tokens only; attention is priced over all {plan.seq_len}."
    answers = {"every layer in its window": replace(job, plan=replace(plan, document=length))}
    return _open(job, Unknown("unpriced-window", question, answers))


def _of_network(job: PlannedJob) -> list[Unknown]:
    """Whether the network holds its rate between as many nodes: what links reach alone is seldom what they reach together, where paths
    are shared and every rank waits for the slowest."""
    node = job.cluster.node
    if job.plan.devices <= node.devices or node.nic_bytes_per_s is None:
        return []
    nodes = job.plan.devices // node.devices
    share = nodes**SHARED_LINKS
    parts = {f"{share:.0%} of the rate": share} | ({"a quarter of the rate": 0.25} if nodes >= MANY_NODES else {})
    answers = {}
    for name, part in parts.items():
        slower = msgspec.structs.replace(node, nic_bytes_per_s=part * node.nic_bytes_per_s)
        answers[name] = replace(job, cluster=msgspec.structs.replace(job.cluster, node=slower))
    question = f"what do the links between {nodes} nodes reach together? (node.nic_bytes_per_s in a cluster's file; nccl-tests)"
    return [Unknown("unknown-network", question, answers)]


def unknown_power(job: PlannedJob) -> PlannedJob:
    """The job on devices that are taken to be limited to `LIMITED` of their own power, since their limit is not stated."""
    accelerator = job.cluster.accelerator
    if accelerator.power_w is None:
        return job
    answers = {}
    for watts in (round(share / LIMITED * accelerator.power_w) for share in LIMITED_OTHERWISE):
        limited = msgspec.structs.replace(accelerator, power_w=float(watts))
        answers[f"{watts} W"] = replace(job, cluster=msgspec.structs.replace(job.cluster, accelerator=limited))
    question = "to what is the power of a device limited? (accelerator.power_w in a cluster's file)"
    return _open(job, Unknown("unknown-power", question, answers))


def unknown_packing(job: PlannedJob) -> PlannedJob:
    """The job of a fine-tuning run, whose examples may be packed into sequences: how long they are is open, down to a sixteenth."""
    plan = job.plan
    if plan.document or plan.cp > 1 or plan.seq_len < PACKED:
        return job
    answers = {"short documents": replace(job, plan=replace(plan, document=plan.seq_len // PACKED))}
    question = "how long are the documents that are packed into a sequence? (--document)"
    return _open(job, Unknown("unknown-packing", question, answers))


def unknown_model(job: PlannedJob, others: Sequence[Model]) -> PlannedJob:
    """The job of a model of which some facts are not stated, with the models that may be meant as well as open."""
    answers = {}
    for model in others:
        gate, head = "gated" if model.gated else "ungated", "tied" if model.tied else "untied"
        answers[f"{gate}, {head}, vocabulary {model.vocab}"] = replace(job, model=model)
    question = "is the MLP gated, the head the embedding, and how large is the vocabulary? (columns ffn, vocab; a known model)"
    return _open(job, Unknown("unknown-model", question, answers))


def unknown_virtual_stages(job: PlannedJob) -> PlannedJob:
    """The job of a pipeline whose virtual stages are not stated, with one layer a virtual stage, or none, as open."""
    plan, layers = job.plan, job.model.layers
    other = layers // plan.pp if plan.vpp == 1 and layers % plan.pp == 0 else 1
    if plan.pp == 1 or plan.schedule not in (Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B) or other == plan.vpp:
        return job
    schedule = Schedule.INTERLEAVED if other > 1 else Schedule.ONE_F_ONE_B
    answers = {f"vpp {other}": replace(job, plan=replace(plan, vpp=other, schedule=schedule))}
    question = "how many virtual stages does a device hold? (--vpp, column vpp)"
    return _open(job, Unknown("unknown-virtual-stages", question, answers))


def unknown_recomputation(job: PlannedJob) -> PlannedJob:
    """The job whose source does not say whether it recomputes, and which needs to, with the kinds of recomputation as open."""
    if job.plan.recompute is not Recompute.NONE:
        return job
    kinds = (Recompute.SELECTIVE, Recompute.FULL) if job.framework.repeats_selectively else (Recompute.FULL,)
    answers = {kind.value: replace(job, plan=replace(job.plan, recompute=kind)) for kind in kinds}
    question = "what is recomputed? Without any recomputation the job would not fit (--recompute, column recompute)"
    return _open(job, Unknown("unknown-recomputation", question, answers))


def unknown_precision(job: PlannedJob) -> PlannedJob:
    """The job whose source does not say its precision, with the others that the accelerator offers as open: 16, 8 and 4 bit."""
    offered = [p for p in (Precision.BF16, Precision.FP8, Precision.FP4) if p in job.cluster.accelerator.peak_flops]
    others = [p for p in offered if p is not job.plan.precision]
    answers = {p.value: replace(job, plan=replace(job.plan, precision=p)) for p in others}
    question = "in which precision does the job compute? (--precision, column precision)"
    return _open(job, Unknown("unknown-precision", question, answers))


def _asks(code: str, job: PlannedJob) -> bool:
    if code == "unknown-reduction":
        return job.plan.shards_gradients and job.plan.pp > 1
    if code == "unknown-release":
        return job.model.experts is not None
    if code == "unknown-selective":
        return job.plan.recompute is Recompute.SELECTIVE
    return code != "unknown-casts" or job.plan.precision.multiplications.quantised


def _of_experts(job: PlannedJob, stated: Collection[str]) -> list[Unknown]:
    if job.model.experts is None:
        return []
    skews = {"even": {"expert_skew": EVEN_SKEW}, "uneven": {"expert_skew": BAD_SKEW}}
    question = "how even is the load of the experts? (--switch expert_skew, rows of the most loaded one over the mean)"
    unknowns = [Unknown("unknown-router", question, _jobs(job, skews, stated))]
    if job.plan.ep > 1:
        ways = {
            "DeepEP" if not job.framework.deep_ep else "all-to-all": {"deep_ep": not job.framework.deep_ep},
            "overlapped" if not job.framework.ep_overlap else "exposed": {"ep_overlap": not job.framework.ep_overlap},
        }
        if job.plan.schedule is Schedule.DUALPIPE:  # which overlaps the exchanges by design
            ways = dict(list(ways.items())[:1])
        question = "how are tokens sent to their experts? (--switch deep_ep, ep_overlap = on or off)"
        unknowns.append(Unknown("unknown-dispatch", question, _jobs(job, ways, stated)))
    return unknowns


def _jobs(job: PlannedJob, answers: Mapping[str, Mapping[str, Any]], stated: Collection[str]) -> dict[str, PlannedJob]:
    """The job by each answer that changes a switch which was not stated."""
    out = {}
    for name, switches in answers.items():
        changed = {key: value for key, value in switches.items() if key not in stated and getattr(job.framework, key) != value}
        if changed:
            other = replace(job, framework=replace(job.framework, **changed))
            plan = {key: changed[key] for key in ("sequence_parallel", "recompute", "precision") if key in changed}
            if "sequence_parallel" in plan:
                plan["sequence_parallel"] = plan["sequence_parallel"] and job.plan.tp > 1
            out[name] = replace(other, plan=replace(job.plan, **plan))
    return out
