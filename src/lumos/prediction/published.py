"""Read rows of published tables of training runs as jobs, by stated rules for spellings and blanks.

Columns: model, layers, hidden, heads, kv_heads, ffn, vocab, seq_len, precision, gpu, n_gpus, gpus_per_node, interconnect,
tp, pp, vpp, cp, ep, dp, zero_or_fsdp, micro_batch, global_batch, recompute, sequence_parallel, framework, year, notes.

Blanks. A row's own dimensions have precedence over those of the model that it names. What neither has is assumed, with a
diagnostic: kv_heads = heads; gate, width of the MLP, vocabulary and head by the number of parameters in the name, and what that leaves
open both ways (`_unnamed`); if the row cuts a model to fewer layers, its leading dense layers shrink in proportion (rounded up);
precision as in the framework's profile, or bf16 where the device has no fp8; parallel sizes 1, dp = devices / (tp · pp · cp), and
where no size is stated and the global batch has fewer sequences than that, the rest of the devices share sequences (cp); micro_batch 1;
vpp such that a virtual stage has one layer for NeMo with pp > 1; ZeRO, recomputation and sequence parallelism as in the framework's
profile. A row is skipped, with the reason, if a number cannot be read, if its device or model is not known, or if its plan breaks a rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lumos.blocks.memory import peak_memory
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.measured_table import positive, whole_number
from lumos.model import Model
from lumos.model.catalogue import find_model, model_names, plain_name
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan, check_plan
from lumos.plan.profiles import Told, choose, is_profiled, release_of, unprofiled, year_of
from lumos.plan.unknowns import (
    LIMITED,
    unknown_model,
    unknown_packing,
    unknown_power,
    unknown_precision,
    unknown_recomputation,
    unknown_virtual_stages,
    unknown_year,
    with_unknowns,
)
from lumos.plan.words import switch_text
from lumos.prediction.interconnect import row_cluster
from lumos.vocabulary import Loss, Precision, Recompute, Schedule

if TYPE_CHECKING:
    from lumos.cost.cluster import Cluster
    from lumos.plan.framework import Framework

PublishedRun = Mapping[str, str]

#: Texts that tables write for a blank.
BLANK = ("", "-", "–", "n/a", "na", "none", "null")

#: Sizes of usual vocabularies, of which a row's number of parameters picks one (Llama 2, Megatron's GPT, Llama 3, Qwen, Nemotron).
VOCABULARIES = (51200, 32000, 50304, 128256, 151936, 256000)
#: The first year of tables whose models mostly have a gate: the year after LLaMA (Touvron et al. 2023, arXiv:2302.13971).
GATED_SINCE = 2024
#: Profiles of NeMo's recipes.
NEMO = ("nemo", "megatron-bridge")
#: Rank of LoRA adapters where a row names none: that of MLPerf's reference (Llama 2 70B LoRA).
LORA_RANK = 16


def job_of(row: PublishedRun, unprofiled_framework: bool = False) -> PlannedJob:
    """The job that a row describes. Raises LumosError with the reason if the row does not determine one.

    unprofiled_framework: treat the row's framework as one of which only the year is known.
    """
    notes: list[Diagnostic] = []
    year, hints = _number(row, "year"), " ".join(row.get(key, "") for key in ("notes", "zero_or_fsdp", "model"))
    told = _told(row)
    framework, why = unprofiled(year, told) if unprofiled_framework else choose(row.get("framework", ""), year, hints, told)
    notes.append(Diagnostic("framework-profile", f"{framework.name}: {why}"))
    model, *others = models_of(row, notes)
    framework = _noted_switches(row, framework, notes)
    plan = _plan_of(row, model, framework, notes)
    name = row.get("gpu", "")
    if not name:
        raise LumosError("the row names no device (column gpu)")
    cluster = row_cluster(name, _number(row, "gpus_per_node"), row.get("interconnect", ""), plan.devices, notes)
    cluster, limited = _powered(cluster, " ".join(row.get(key, "") for key in ("gpu", "interconnect", "notes")), notes)
    if not row.get("precision", "").strip() and plan.precision not in cluster.accelerator.peak_flops:
        plan = replace(plan, precision=Precision.BF16)
    check_plan(plan, model)
    job = unknown_model(_with_unknowns(PlannedJob(model, plan, framework, cluster, tuple(notes)), row), others)
    return unknown_power(job) if limited else job


def _powered(cluster: Cluster, text: str, notes: list[Diagnostic]) -> tuple[Cluster, bool]:
    """The cluster with the power limit of a device of which a text speaks, and whether it speaks of one and does not state it."""
    stated = re.search(r"(?<![\w.])(\d{2,4})\s?W\b", text)
    said, accelerator = stated or re.search(r"power[- ]?(?:limit|cap)\w*", text, re.IGNORECASE), cluster.accelerator
    if said is None or (stated is None and accelerator.power_w is None):
        return cluster, False
    watts = float(stated.group(1)) if stated else round(LIMITED * (accelerator.power_w or 0.0))
    notes.append(Diagnostic("row-power", f"{said.group()!r} is read as a power limit of {watts:g} W a device"))
    return msgspec.structs.replace(cluster, accelerator=msgspec.structs.replace(accelerator, power_w=float(watts))), stated is None


def _told(row: PublishedRun) -> Told:
    """What the row states of its plan that tells something of its framework."""
    anything, precision, sharding = unprofiled().framework, row.get("precision", ""), row.get("zero_or_fsdp", "")
    return Told(
        _sharding(sharding, anything, 1, [])[0] if sharding else None,
        precision_of(precision, anything, []) if precision.strip() else None,
    )


def _with_unknowns(job: PlannedJob, row: PublishedRun) -> PlannedJob:
    """The job with what the row leaves open."""
    stated = {"sequence_parallel"} if row.get("sequence_parallel", "").strip().lower() not in BLANK else set()
    if release_of(" ".join((row.get("framework", ""), row.get("notes", "")))):
        stated.add("release")
    job = with_unknowns(job, stated)
    if (row.get("vpp") or "").strip().lower() in BLANK:
        job = unknown_virtual_stages(job)
    if "finetun" in row.get("notes", "").lower().replace("-", "") and job.framework.name in NEMO:
        job = unknown_packing(job)
    name = row.get("framework", "")
    if _number(row, "year") is None and year_of(name) is None and is_profiled(job.framework):
        job = unknown_year(job, name, row.get("notes", ""))
    if not row.get("precision", "").strip():
        job = unknown_precision(job)
    recompute = row.get("recompute", "").strip().lower()
    if recompute in BLANK and recompute != Recompute.NONE and not peak_memory(job).fits:
        job = unknown_recomputation(job)
    return job


# ---------------------------------------------------------------- model


def models_of(row: PublishedRun, notes: list[Diagnostic]) -> tuple[Model, ...]:
    """The model that the row names, with the row's own dimensions, or one of only those dimensions; behind it the models that the row does
    not tell from it."""
    name = row.get("model", "") or "model"
    layers, hidden, heads = (_number(row, key) for key in ("layers", "hidden", "heads"))
    known = find_model(name) or find_model(re.sub(r"\s*\(.*\)|_padding.*", "", name)) or _known_by_prefix(name, hidden)
    if known is None:
        if layers is None or hidden is None or heads is None:
            raise LumosError(f"model {name!r} is not known and the row has no layers, hidden and heads of its own")
        return _unnamed(row, name, layers, hidden, heads, notes)
    if plain_name(name) != plain_name(known.name):
        notes.append(Diagnostic("named-model", f"model {name!r} is read as {known.name}"))
    changes: dict[str, int] = {}
    for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"):
        value = _number(row, key)
        if value is not None and value != getattr(known, key) and not (key == "ffn" and known.ffn == 0):
            changes[key] = value
    if "heads" in changes and "kv_heads" not in changes:
        changes["kv_heads"] = changes["heads"]
    if known.latent is None and ("heads" in changes or "hidden" in changes):
        changes["head_dim"] = (hidden or known.hidden) // (heads or known.heads)
    if changes.keys() - {"layers", "vocab"}:
        notes.append(Diagnostic("row-dimensions", f"the row's own {', '.join(sorted(changes))} in place of {known.name}'s"))
    model = replace(known, **changes)  # type: ignore[arg-type]
    if model.experts is not None and model.layers < known.layers:  # a model cut to fewer layers keeps the proportion
        first = -(-model.experts.first_dense * model.layers // known.layers)
        model = replace(model, experts=replace(model.experts, first_dense=first))
    if model.positions == "learned":
        model = replace(model, max_positions=max(model.max_positions, _number(row, "seq_len") or 0))
    return (model,)


def _known_by_prefix(name: str, hidden: int | None) -> Model | None:
    """The known model whose name begins `name` ("Mixtral-8x7B-v0.1"), unless the row has another hidden size."""
    text = plain_name(name)
    prefix = max((n for n in model_names() if text.startswith(plain_name(n))), key=len, default=None)
    model = find_model(prefix) if prefix else None
    return model if model is not None and hidden in (None, model.hidden) else None


def _unnamed(row: PublishedRun, name: str, layers: int, hidden: int, heads: int, notes: list[Diagnostic]) -> tuple[Model, ...]:
    """The model of a row's own dimensions, and behind it the models that these do not tell from it.

    The number of parameters in its name decides, if there is one. Otherwise an MLP as wide as four times the model has no gate (two
    matrices of 4 are as large as three of 8/3), and of a model without a width the year decides.
    """
    kv_heads, ffn, vocab, year = (_number(row, key) for key in ("kv_heads", "ffn", "vocab", "year"))
    gate = ffn < 4 * hidden if ffn is not None else (year or GATED_SINCE) >= GATED_SINCE
    widths = {True: ffn or -(-8 * hidden // 3 // 256) * 256, False: ffn or 4 * hidden}
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads or heads, "head_dim": hidden // heads}
    positions = {"positions": "learned", "max_positions": _number(row, "seq_len") or 2048}

    def of(gated: bool, tied: bool, vocabulary: int) -> Model:
        style = {} if gated else {"norm": "layer", "norm_bias": True, "bias": True, **positions}
        fields = {"name": name, **sizes, **style, "gated": gated, "ffn": widths[gated], "tied": tied, "vocab": vocabulary}
        return msgspec.convert(fields, Model)

    vocabularies = VOCABULARIES if vocab is None else (vocab,)
    every = [of(gated, tied, size) for size in vocabularies for gated in (gate, not gate) for tied in (not gated, gated)]
    stated = _parameters(name)
    fitting = [] if stated is None else [m for m in every if abs(m.parameters / stated.parameters - 1) <= stated.rounding]
    if fitting:
        models = tuple(m for m in fitting if m.vocab == fitting[0].vocab)
    else:  # one fact at a time may be otherwise
        models = (*every[:3], *(of(gate, not gate, size) for size in vocabularies[1:4]))
    model = models[0]
    said = f"{stated} in the name" if fitting else "no number of parameters in the name decides"
    for code, blank, text in (("assumed-ffn", ffn, f"MLP width {model.ffn}"), ("assumed-vocab", vocab, f"vocabulary of {model.vocab}")):
        if blank is None:
            notes.append(Diagnostic(code, f"{text} ({said})"))
    kind = f"{'gated' if model.gated else 'ungated'} MLP, {'tied' if model.tied else 'untied'} head"
    notes.append(Diagnostic("assumed-style", f"{kind} ({said}; MLP width {model.ffn}, hidden size {hidden})"))
    return models


class _Stated(NamedTuple):
    """A number of parameters as a name states it, and the share by which it is rounded."""

    parameters: float
    rounding: float

    def __str__(self) -> str:
        return f"{self.parameters / 1e9:g} B parameters"


def _parameters(name: str) -> _Stated | None:
    """The number of parameters that a name states ("1.34B"), unless it is that of the experts of a mixture ("8x7B")."""
    found = re.search(r"(?<![\w.])(\d+(?:\.(\d+))?)\s*([bm])(?![a-z0-9])", name.lower())
    if found is None:
        return None
    unit = 1e9 if found.group(3) == "b" else 1e6
    last = 10.0 ** -len(found.group(2) or "")
    value = float(found.group(1))
    return _Stated(value * unit, max(0.01, 0.5 * last / value)) if value else None


# ---------------------------------------------------------------- plan


def _plan_of(row: PublishedRun, model: Model, framework: Framework, notes: list[Diagnostic]) -> Plan:
    """The row's plan, with its blanks filled."""
    devices = _required(row, "n_gpus")
    tp, pp, vpp, cp, ep = (_number(row, key) or 1 for key in ("tp", "pp", "vpp", "cp", "ep"))
    if pp > 1 and not (row.get("vpp") or "").strip() and framework.name in NEMO and model.layers % pp == 0:
        vpp = model.layers // pp
        notes.append(Diagnostic("assumed-vpp", f"{vpp}: one layer a virtual stage, as NeMo's recipes have it"))
    dp = _number(row, "dp") or devices // (tp * pp * cp)
    if not any(_number(row, key) for key in ("tp", "pp", "cp", "dp")):
        dp = gcd(devices, _required(row, "global_batch"))
        cp = devices // dp
        if cp > 1:
            notes.append(Diagnostic("assumed-cp", f"{cp}: {devices} devices share the sequences of a global batch that {dp} divides"))
    if tp * pp * cp * dp != devices:
        raise LumosError(f"tp · pp · cp · dp = {tp * pp * cp * dp} is not the row's {devices} devices")
    micro_batch = _number(row, "micro_batch") or 1
    global_batch = _required(row, "global_batch")
    zero, shard = _sharding(row.get("zero_or_fsdp", ""), framework, dp * cp, notes)
    recompute, recomputed = _recompute(row.get("recompute", ""), framework)
    text = row.get("notes", "").lower()
    lora = LORA_RANK if "lora" in text else 0
    if lora:
        notes.append(Diagnostic("noted-lora", f"the notes speak of LoRA: adapters of rank {lora} are all that is trained"))
    sequence = _flag(row, "sequence_parallel", framework.sequence_parallel) and tp > 1
    return Plan(
        seq_len=_required(row, "seq_len"),
        global_batch=global_batch,
        micro_batch=micro_batch,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        dp=dp,
        zero=zero,
        shard=0 if shard >= dp * cp else shard,
        sequence_parallel=sequence,
        schedule=_schedule(text, vpp, notes),
        recompute=recompute,
        recompute_layers=recomputed,
        precision=precision_of(row.get("precision", ""), framework, notes),
        lora_rank=lora,
    )


def precision_of(text: str, framework: Framework, notes: list[Diagnostic]) -> Precision:
    """The precision that a table means by a text such as "amp_bf16", "NVFP4" or "FP8 tensorwise"."""
    lower = text.lower()
    for family in (Precision.FP4, Precision.FP8, Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32):
        if family in lower or family.replace("fp", "float") in lower:
            return family
    if lower:
        raise LumosError(f"precision {text!r} is not known; a family is one of fp4, fp8, bf16, fp16, tf32, fp32")
    notes.append(Diagnostic("assumed-precision", f"{framework.precision}, as {framework.name} has it"))
    return framework.precision


def _sharding(text: str, framework: Framework, group: int, notes: list[Diagnostic]) -> tuple[int, int]:
    """The ZeRO stage, and how many devices share a set of shards (0: all), from "zero1 group=8", "FULL_SHARD", "fsdp2_group=64", …"""
    lower = text.lower()
    match = re.search(r"group\s*=\s*(\d+)", lower)
    shard = int(match.group(1)) if match else 0
    if not lower:
        if framework.zero:
            notes.append(Diagnostic("assumed-zero", f"stage {framework.zero}, as {framework.name} has it"))
        return framework.zero, 0
    stage = re.search(r"(?:zero|stage)[ _-]*(\d)", lower)
    if stage:
        return int(stage.group(1)), shard
    if "hybrid" in lower or "hsdp" in lower:
        return 3, shard or min(8, group)
    if "grad_op" in lower:
        return 2, shard
    if "full" in lower or "fsdp" in lower:
        return 3, shard
    if "distributed" in lower:
        return 1, shard
    if lower in ("none", "no", "no_shard", "0") or "ddp" in lower:
        return 0, 0
    raise LumosError(f"zero_or_fsdp {text!r} is not understood; write none, zero1, zero2, zero3, FULL_SHARD or distributed optimizer")


def _recompute(text: str, framework: Framework) -> tuple[Recompute, int]:
    """What is recomputed, and in how many layers of a stage (-1: all), from "full", "block 4 layers", "selective (…)", …"""
    lower = text.strip().lower()
    if lower in BLANK and lower != Recompute.NONE:
        return framework.recompute, -1
    layers = re.search(r"(\d+)\s*layers?", lower)
    if layers:
        count = int(layers.group(1))
        return (Recompute.FULL, count) if count else (Recompute.NONE, -1)
    for kind in Recompute:
        if lower.startswith(kind):
            return kind, -1
    if lower in ("yes", "true", "all", "on"):
        return Recompute.FULL, -1
    if lower in ("no", "false", "off"):
        return Recompute.NONE, -1
    raise LumosError(f"recompute {text!r} is not understood; write none, selective or full")


def _schedule(text: str, vpp: int, notes: list[Diagnostic]) -> Schedule:
    """The schedule that a row's remarks name, else the one that its virtual stages imply."""
    words = ((Schedule.GPIPE, "gpipe"), (Schedule.ZERO_BUBBLE, r"zero.?bubble|\bzbb?\b|zb-h1"), (Schedule.DUALPIPE, "dualpipe"))
    for schedule, word in words:
        if found := re.search(word, text):
            notes.append(Diagnostic("noted-schedule", f"the notes say {found.group()!r}: schedule {schedule}"))
            return schedule
    return Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B


#: What remarks say, and the switches that they set.
_REMARKS: tuple[tuple[str, Mapping[str, object]], ...] = (
    (r"overlap off", {"dp_overlap": False, "gather_overlap": False, "tp_overlap": False, "tp_async": False}),
    (r"\bcef\b|cross-entropy fusion", {"loss": Loss.FUSED}),
    (r"async tp", {"tp_overlap": True}),
    (r"mp mode pure", {"reduce_bytes": 2, "gradient_bytes": 2}),
    # experts of a limited capacity drop tokens, which Megatron Core's all-to-all dispatcher does and DeepEP does not
    (r"token.?drop", {"deep_ep": False, "expert_skew": 1.0}),
    # DeepSpeed's bf16 optimizer accumulates and reduces in fp32 (runtime/bf16_optimizer.py)
    (r"(?:fp32|float32) grad\w*|grad\w*(?: \w+){0,3} in (?:fp32|float32)|bf16 optimizer", {"reduce_bytes": 4, "gradient_bytes": 4}),
)


def _noted_switches(row: PublishedRun, framework: Framework, notes: list[Diagnostic]) -> Framework:
    """The framework with the switches that the row's remarks and precision mention, each of which is said."""
    text = " ".join(row.get(key, "") for key in ("notes", "precision", "zero_or_fsdp", "model")).lower()
    said = [(found.group(), switches) for words, switches in _REMARKS if (found := re.search(words, text))]
    if framework.fp8_gather and (found := re.search(r"row.?wise", text)):
        said.append((found.group(), {"fp8_gather": False, "fp8_rows": True}))
    for words, switches in said:
        changed = {key: value for key, value in switches.items() if getattr(framework, key) != value}
        if changed:
            framework = replace(framework, **changed)  # type: ignore[arg-type]
            listed = ", ".join(f"{key} = {switch_text(value)}" for key, value in changed.items())
            notes.append(Diagnostic("noted-switches", f"the row says {words!r}: {listed}"))
    return framework


# ---------------------------------------------------------------- fields


def _number(row: PublishedRun, key: str) -> int | None:
    text = (row.get(key) or "").strip()
    return None if text.lower() in BLANK else whole_number(text, key)


def _required(row: PublishedRun, key: str) -> int:
    value = _number(row, key)
    if value is None or value < 1:
        raise LumosError(f"{key} is blank; it is needed")
    return value


def _flag(row: PublishedRun, key: str, default: bool) -> bool:
    lower = row.get(key, "").strip().lower()
    if lower in ("yes", "true", "1", "on", "no", "false", "0", "off"):
        return lower in ("yes", "true", "1", "on")
    if lower in BLANK:
        return default
    raise LumosError(f"{key} {lower!r} is not understood; write yes or no")


def published_step(row: PublishedRun) -> float:
    """Seconds of the measured step: `step_time_s`, else from tokens/s per device. Raises LumosError if the row has neither."""
    for key in ("step_time_s", "tokens_per_s_per_gpu"):
        text = (row.get(key) or "").strip()
        if not text:
            continue
        value = positive(text, key)
        if key == "step_time_s":
            return value
        return _required(row, "global_batch") * _required(row, "seq_len") / (value * _required(row, "n_gpus"))
    raise LumosError("the row has neither step_time_s nor tokens_per_s_per_gpu")
