"""Read rows of published tables of training runs as jobs, by stated rules for spellings and blanks.

Columns: model, layers, hidden, heads, kv_heads, ffn, vocab, seq_len, precision, gpu, n_gpus, gpus_per_node, interconnect,
tp, pp, vpp, cp, ep, dp, zero_or_fsdp, micro_batch, global_batch, recompute, sequence_parallel, framework, year, notes.

Blanks. A row's own dimensions have precedence over those of the model that it names. What neither has is assumed, with a
diagnostic: kv_heads = heads; ffn = the gated 8/3 hidden (rounded up to 256) or 4 hidden; vocab = that of the model's
family, else 51,200; if the row cuts a model to fewer layers, its leading dense layers shrink in proportion (rounded up);
precision = fp16 where the framework is Megatron-DeepSpeed, else bf16; parallel sizes 1, dp = devices / (tp · pp · cp);
micro_batch 1; vpp such that a virtual stage has one layer for NeMo with pp > 1; ZeRO, recomputation and sequence
parallelism as in the framework's profile. A row is skipped, with the reason, if a number cannot be read, if its device or
model is not known, or if its plan breaks a rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from lumos.cost.cluster import Cluster, load_cluster
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.model import Model
from lumos.model.catalogue import find_model, model_names, plain_name
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan, check_plan
from lumos.plan.profiles import choose
from lumos.vocabulary import Loss, Precision, Recompute, Schedule

if TYPE_CHECKING:
    from lumos.plan.framework import Framework

PublishedRun = Mapping[str, str]

#: Texts that tables write for a blank.
BLANK = ("", "-", "–", "n/a", "na", "none", "null")

#: Families whose MLP is gated (SwiGLU), by how their names begin.
GATED = ("llama", "internlm", "mistral", "mixtral", "qwen", "deepseek", "yi", "baichuan")
#: Sizes of the vocabulary by family, from the models' config.json, for rows that leave it open.
VOCABULARY = {
    "llama2": 32000,
    "llama3": 128256,
    "nemotron": 256000,
    "mixtral": 32000,
    "mistral": 32000,
    "qwen": 151936,
    "gpt3": 51200,
    "gpt": 51200,
}


#: Tokens of an example of SQuAD 1.1. According to NeMo's performance summaries its fine-tuning runs pack such examples into
#: sequences: a paragraph of 117 words, a question of 10 and an answer of 3 (Rajpurkar et al. 2016, arXiv:1606.05250), at
#: 4 tokens for 3 words, and the prompt around them.
SQUAD_TOKENS = 192


def job_of(row: PublishedRun) -> PlannedJob:
    """The job that a row describes. Raises LumosError with the reason if the row does not determine one."""
    notes: list[Diagnostic] = []
    framework, why = choose(row.get("framework", ""), _number(row, "year"), f"{row.get('notes', '')} {row.get('zero_or_fsdp', '')}")
    notes.append(Diagnostic("framework-profile", f"{framework.name}: {why}"))
    model = model_of(row, notes)
    framework = _noted_switches(row, framework)
    plan = _plan_of(row, model, framework, notes)
    cluster = _cluster_of(row, notes)
    check_plan(plan, model)
    return PlannedJob(model, plan, framework, cluster, tuple(notes))


# ---------------------------------------------------------------- model


def model_of(row: PublishedRun, notes: list[Diagnostic]) -> Model:
    """The model that the row names, with the row's own dimensions; or a model of only those dimensions."""
    name = row.get("model", "") or "model"
    layers, hidden, heads = (_number(row, key) for key in ("layers", "hidden", "heads"))
    known = find_model(name) or find_model(re.sub(r"\s*\(.*\)|_padding.*", "", name)) or _known_by_prefix(name, hidden)
    if known is None:
        if layers is None or hidden is None or heads is None:
            raise LumosError(f"model {name!r} is not known and the row has no layers, hidden and heads of its own")
        return _unnamed(row, name, layers, hidden, heads, notes)
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
    return model


def _known_by_prefix(name: str, hidden: int | None) -> Model | None:
    """The known model whose name begins `name` ("Mixtral-8x7B-v0.1"), unless the row has another hidden size."""
    text = plain_name(name)
    prefix = max((n for n in model_names() if text.startswith(plain_name(n))), key=len, default=None)
    model = find_model(prefix) if prefix else None
    return model if model is not None and hidden in (None, model.hidden) else None


def _unnamed(row: PublishedRun, name: str, layers: int, hidden: int, heads: int, notes: list[Diagnostic]) -> Model:
    family = plain_name(name)
    gated = family.startswith(GATED)
    kv_heads, ffn, vocab = (_number(row, key) for key in ("kv_heads", "ffn", "vocab"))
    if ffn is None:
        ffn = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
        notes.append(Diagnostic("assumed-ffn", f"MLP width {ffn}"))
    if vocab is None:
        vocab = next((size for key, size in VOCABULARY.items() if family.startswith(key)), 51200)
        notes.append(Diagnostic("assumed-vocab", f"vocabulary of {vocab}"))
    style = {"gated": True} if gated else {"norm": "layer", "norm_bias": True, "bias": True, "positions": "learned", "tied": True}
    seq_len = _number(row, "seq_len") or 2048
    return msgspec.convert(
        {
            "name": name, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads or heads, "head_dim": hidden // heads,
            "ffn": ffn, "vocab": vocab, "max_positions": 0 if gated else seq_len, **style,
        },
        Model,
    )  # fmt: skip


# ---------------------------------------------------------------- plan


def _plan_of(row: PublishedRun, model: Model, framework: Framework, notes: list[Diagnostic]) -> Plan:
    """The row's plan, with its blanks filled."""
    devices = _required(row, "n_gpus")
    tp, pp, vpp, cp, ep = (_number(row, key) or 1 for key in ("tp", "pp", "vpp", "cp", "ep"))
    if pp > 1 and not (row.get("vpp") or "").strip() and framework.name == "nemo" and model.layers % pp == 0:
        vpp = model.layers // pp
        notes.append(Diagnostic("assumed-vpp", f"{vpp}: one layer a virtual stage, as NeMo's recipes have it"))
    dp = _number(row, "dp") or devices // (tp * pp * cp)
    if tp * pp * cp * dp != devices:
        raise LumosError(f"tp · pp · cp · dp = {tp * pp * cp * dp} is not the row's {devices} devices")
    micro_batch = _number(row, "micro_batch") or 1
    global_batch = _required(row, "global_batch")
    zero, shard = _sharding(row.get("zero_or_fsdp", ""), framework, dp * cp, notes)
    recompute, recomputed = _recompute(row.get("recompute", ""), framework)
    text = row.get("notes", "").lower()
    lora = 16 if "lora" in text else 0
    document = 0
    if "finetun" in text.replace("-", "") and framework.name == "nemo":
        document = SQUAD_TOKENS
        notes.append(Diagnostic("assumed-packing", f"documents of {document} tokens, as NeMo's fine-tuning runs pack SQuAD 1.1"))
    sequence = _flag(row.get("sequence_parallel", ""), framework.sequence_parallel) and tp > 1
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
        schedule=_schedule(text, vpp),
        recompute=recompute,
        recompute_layers=recomputed,
        precision=precision_of(row.get("precision", ""), framework, notes),
        lora_rank=lora,
        document=document if document <= _required(row, "seq_len") else 0,
    )


def precision_of(text: str, framework: Framework, notes: list[Diagnostic]) -> Precision:
    """The precision that a table means by a text such as "amp_bf16" or "FP8 tensorwise"."""
    lower = text.lower()
    for family in (Precision.FP8, Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32):
        if family in lower or family.replace("fp", "float") in lower:
            return family
    if lower:
        raise LumosError(f"precision {text!r} is not known; a family is one of fp8, bf16, fp16, tf32, fp32")
    assumed = Precision.FP16 if framework.name in ("megatron-deepspeed", "megatron-2021") else Precision.BF16
    notes.append(Diagnostic("assumed-precision", assumed))
    return assumed


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
    lower = text.lower()
    if not lower:
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


def _schedule(notes: str, vpp: int) -> Schedule:
    if "gpipe" in notes:
        return Schedule.GPIPE
    if re.search(r"zero.?bubble|\bzbb?\b|zb-h1", notes):
        return Schedule.ZERO_BUBBLE
    if "dualpipe" in notes:
        return Schedule.DUALPIPE
    return Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B


def _noted_switches(row: PublishedRun, framework: Framework) -> Framework:
    """The framework with the switches that the row's remarks and precision mention."""
    text = f"{row.get('notes', '')} {row.get('precision', '')}".lower()
    if "overlap off" in text:
        framework = replace(framework, dp_overlap=False, gather_overlap=False, tp_overlap=False, tp_async=False)
    if "cef" in text or "cross-entropy fusion" in text:
        framework = replace(framework, loss=Loss.FUSED)
    if "async tp" in text:
        framework = replace(framework, tp_overlap=True)
    if framework.fp8_gather and re.search(r"row.?wise", text):
        framework = replace(framework, fp8_gather=False, fp8_rows=True)
    if "mp mode pure" in text:
        framework = replace(framework, reduce_bytes=2, gradient_bytes=2)
    if "mp mode default" in text:
        framework = replace(framework, reduce_bytes=4)
    return framework


# ---------------------------------------------------------------- cluster


def _cluster_of(row: PublishedRun, notes: list[Diagnostic]) -> Cluster:
    """The cluster of the row's device, with the row's node size and network."""
    name = row.get("gpu", "")
    if not name:
        raise LumosError("the row names no device (column gpu)")
    cluster = load_cluster(name)
    per_node = _number(row, "gpus_per_node")
    if per_node is not None and per_node != cluster.node.devices:
        cluster = msgspec.structs.replace(cluster, node=msgspec.structs.replace(cluster.node, devices=per_node))
    rate = network_rate(row.get("interconnect", ""), cluster.node.devices)
    if rate is not None:
        nics, each = rate
        cluster = msgspec.structs.replace(cluster, node=msgspec.structs.replace(cluster.node, nics=nics, nic_bytes_per_s=each))
        notes.append(Diagnostic("row-network", f"{nics} x {each * 8e-9:g} Gb/s a node, as the row says"))
    return cluster


def network_rate(text: str, devices: int) -> tuple[int, float] | None:
    """How many NICs a node has and the bytes/s of each, from a text such as "4x100Gb RoCE" or "1600 Gbps node-node"; None if it
    states no rate."""
    lower = text.lower()
    several = re.search(r"(\d+)\s*x\s*(\d+)\s*gb", lower)
    if several:
        return int(several.group(1)), int(several.group(2)) * 1.25e8
    per_device = re.search(r"(\d+)\s*gb(?:ps|/s|it/s)?[^;,]*per (?:gpu|device)", lower)
    if per_device:
        return devices, int(per_device.group(1)) * 1.25e8
    whole = re.search(r"(\d+)\s*gbps\s*(?:node|inter|network|ib|roce)", lower)
    if whole:
        return devices, int(whole.group(1)) * 1.25e8 / devices
    return None


# ---------------------------------------------------------------- fields


def _number(row: PublishedRun, key: str) -> int | None:
    text = (row.get(key) or "").strip().replace(",", "")
    if text.lower() in BLANK:
        return None
    try:
        value = float(text)
    except ValueError:
        raise LumosError(f"{key} = {text!r} is not a number") from None
    if value != int(value) or value < 0:
        raise LumosError(f"{key} = {text!r} is not a whole number of zero or more")
    return int(value)


def _required(row: PublishedRun, key: str) -> int:
    value = _number(row, key)
    if value is None or value < 1:
        raise LumosError(f"{key} is blank; it is needed")
    return value


def _flag(text: str, default: bool) -> bool:
    lower = text.strip().lower()
    return default if not lower else lower in ("yes", "true", "1", "on")


def published_step(row: PublishedRun) -> float:
    """Seconds of the measured step: `step_time_s`, else from tokens/s per device. Raises LumosError if the row has neither."""
    for key in ("step_time_s", "tokens_per_s_per_gpu"):
        text = (row.get(key) or "").strip()
        if not text:
            continue
        try:
            value = float(text)
        except ValueError:
            raise LumosError(f"{key} = {text!r} is not a number") from None
        if not 0 < value < float("inf"):
            raise LumosError(f"{key} = {text!r} must be positive")
        if key == "step_time_s":
            return value
        return _required(row, "global_batch") * _required(row, "seq_len") / (value * _required(row, "n_gpus"))
    raise LumosError("the row has neither step_time_s nor tokens_per_s_per_gpu")
