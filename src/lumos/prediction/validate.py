"""`lumos.validate`: predict every row of tables of published runs, and compare the predictions with the measured steps.

    lumos.validate("runs.csv")

Columns: model, layers, hidden, heads, kv_heads, ffn, vocab, seq_len, precision, gpu, n_gpus, gpus_per_node, interconnect,
tp, pp, vpp, cp, ep, dp, zero_or_fsdp, micro_batch, global_batch, recompute, sequence_parallel, schedule, framework, year, notes;
id, source and switches (KEY=VALUE;KEY=VALUE, of the framework) where there are any.

Blanks. A row's own dimensions have precedence over those of the model that it names. What neither has is assumed, with a
diagnostic: kv_heads = heads; gate, width of the MLP, vocabulary and head by the number of parameters in the name, and what that leaves
open both ways (`_unnamed`); if the row cuts a model to fewer layers, its leading dense layers shrink in proportion (rounded up);
precision as in the framework's profile, or bf16 where the device has no fp8; parallel sizes 1, dp = devices / (tp · pp · cp), and
where no size is stated and the global batch has fewer sequences than that, the rest of the devices share sequences (cp); micro_batch 1;
vpp such that a virtual stage has one layer for NeMo with pp > 1; what is left as `lumos.plan.configuration` fills it. A row is skipped,
with the reason, if a number cannot be read, if its device or model is not known, or if its plan breaks a rule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from lumos.blocks.memory import peak_memory
from lumos.blocks.price import Pricer
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.measured_table import positive, read_rows, table_number, whole_number
from lumos.model import Model
from lumos.model.catalogue import find_model, load_model, model_names, plain_name
from lumos.plan.configuration import DEGREES, Settings, plan_from
from lumos.plan.framework import switch_text, with_switches
from lumos.plan.job import (
    LIMITED,
    PlannedJob,
    unknown_model,
    unknown_packing,
    unknown_power,
    unknown_precision,
    unknown_recomputation,
    unknown_virtual_stages,
    unknown_year,
    with_unknowns,
)
from lumos.plan.plan import check_plan
from lumos.plan.profiles import Told, choose, is_profiled, release_of, unprofiled, year_of
from lumos.plan.words import switches_of
from lumos.prediction.interconnect import row_cluster
from lumos.prediction.predict import predict_job
from lumos.prediction.step_time import open_step_time
from lumos.result import Shown
from lumos.vocabulary import Precision, Recompute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lumos.blocks.price import StepCoefficients
    from lumos.cost.cluster import Cluster
    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan
    from lumos.prediction.step_time import Open, PredictedStep

PublishedRun = Mapping[str, str]

REQUIRED = ("gpu", "n_gpus", "seq_len", "global_batch")
#: All columns that are read.
COLUMNS = (
    *REQUIRED, "id", "source", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "precision", "gpus_per_node",
    "interconnect", "tp", "pp", "vpp", "cp", "ep", "dp", "zero_or_fsdp", "micro_batch", "recompute", "sequence_parallel", "schedule",
    "step_time_s", "tokens_per_s_per_gpu", "framework", "switches", "year", "peak_memory_bytes", "notes",
)  # fmt: skip
#: A group of rows that differ only in the plan is ranked if it has at least this many.
RANKED = 5
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


def read_tables(paths: Sequence[str]) -> Iterator[PublishedRun]:
    """The rows of the tables. Raises LumosError if a file is not a table or lacks a required column."""
    for path in paths:
        columns, rows = read_rows(path)
        missing = [key for key in REQUIRED if key not in columns]
        if missing:
            raise LumosError(f"{path}: line 1: no column {', '.join(missing)}; a table of runs needs {', '.join(REQUIRED)}")
        for column in set(columns) - set(COLUMNS):
            if near := get_close_matches(column, set(COLUMNS) - set(columns), 1, 0.75):
                raise LumosError(f"{path}: line 1: column {column!r} is not read; is {near[0]} meant?")
        yield from ({"id": f"row {i}", "source": path, **row} for i, row in enumerate(rows, 1))


def job_of(row: PublishedRun, unprofiled_framework: bool = False) -> PlannedJob:
    """The job that a row describes. Raises LumosError with the reason if the row does not determine one.

    unprofiled_framework: treat the row's framework as one of which only the year is known.
    """
    notes: list[Diagnostic] = []
    year, hints = _number(row, "year"), " ".join(row.get(key, "") for key in ("notes", "zero_or_fsdp", "model"))
    # what the row states of its plan tells something of its framework
    told = Told(_sharding(row.get("zero_or_fsdp", ""), 1)[0], precision_of(row.get("precision", "")))
    chosen = unprofiled(year, told) if unprofiled_framework else choose(row.get("framework", ""), year, hints, told)
    notes += chosen.notes
    model, *others = models_of(row, notes)
    switches = switches_of(filter(None, row.get("switches", "").split(";")))
    framework = with_switches(_noted_switches(row, chosen.framework, notes), switches)
    plan = _plan_of(row, model, framework, notes)
    name = row.get("gpu", "")
    if not name:
        raise LumosError("the row names no device (column gpu)")
    cluster = row_cluster(name, _number(row, "gpus_per_node"), row.get("interconnect", ""), plan.devices, notes)
    cluster, limited = _powered(cluster, " ".join(row.get(key, "") for key in ("gpu", "interconnect", "notes")), notes)
    if not row.get("precision", "").strip() and plan.precision not in cluster.accelerator.peak_flops:
        plan = replace(plan, precision=Precision.BF16)
    check_plan(plan, model)
    job = unknown_model(_with_unknowns(PlannedJob(model, plan, framework, cluster, tuple(notes)), row, set(switches)), others)
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


def _with_unknowns(job: PlannedJob, row: PublishedRun, stated: set[str]) -> PlannedJob:
    """The job with what the row leaves open. stated: what is not, beside what the row says."""
    if row.get("sequence_parallel", "").strip().lower() not in BLANK:
        stated.add("sequence_parallel")
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
    known = load_model(name) if name.endswith(".json") else find_model(name)
    known = known or find_model(re.sub(r"\s*\(.*\)|_padding.*", "", name)) or _known_by_prefix(name, hidden)
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
    size = re.search(r"(?<![\w.])(\d+(?:\.(\d+))?)\s*([bm])(?![a-z0-9])", name.lower())
    if size is None:
        return None
    unit = 1e9 if size.group(3) == "b" else 1e6
    last = 10.0 ** -len(size.group(2) or "")
    value = float(size.group(1))
    return _Stated(value * unit, max(0.01, 0.5 * last / value)) if value else None


# ---------------------------------------------------------------- plan


def _plan_of(row: PublishedRun, model: Model, framework: Framework, notes: list[Diagnostic]) -> Plan:
    """The row's plan, with its blanks filled."""
    devices, global_batch = _required(row, "n_gpus"), _required(row, "global_batch")
    sizes = {key: _number(row, key) or None for key in DEGREES}
    if not any(sizes[key] for key in ("tp", "pp", "cp", "dp")):
        replicas = gcd(devices, global_batch)
        sizes |= {"dp": replicas, "cp": devices // replicas}
        if replicas < devices:
            said = f"{sizes['cp']}: {devices} devices share the sequences of a global batch that {replicas} divides"
            notes.append(Diagnostic("assumed-cp", said))
    tp, pp, cp, dp = (sizes[key] or 1 for key in ("tp", "pp", "cp", "dp"))
    if pp > 1 and not (row.get("vpp") or "").strip() and framework.name in NEMO and model.layers % pp == 0:
        sizes["vpp"] = model.layers // pp
        notes.append(Diagnostic("assumed-vpp", f"{sizes['vpp']}: one layer a virtual stage, as NeMo's recipes have it"))
    data = dp * cp if sizes["dp"] else devices // (tp * pp)
    zero, shard = _sharding(row.get("zero_or_fsdp", ""), data)
    if zero is None and framework.zero:
        notes.append(Diagnostic("assumed-zero", f"stage {framework.zero}, as {framework.name} has it"))
    precision = precision_of(row.get("precision", ""))
    if precision is None:
        notes.append(Diagnostic("assumed-precision", f"{framework.precision}, as {framework.name} has it"))
    recompute, recomputed = _recompute(row.get("recompute", ""))
    lora = LORA_RANK if "lora" in row.get("notes", "").lower() else 0
    if lora:
        notes.append(Diagnostic("noted-lora", f"the notes speak of LoRA: adapters of rank {lora} are all that is trained"))
    schedule = row.get("schedule", "").strip().lower()
    settings = Settings(
        gpus=devices,
        global_batch=global_batch,
        seq=_required(row, "seq_len"),
        **sizes,  # type: ignore[arg-type]
        zero=zero,
        shard=0 if shard >= data else shard,
        sequence_parallel=_flag(row, "sequence_parallel"),
        recompute=recompute,
        recompute_layers=recomputed,
        precision=precision or framework.precision,
        schedule=None if schedule in BLANK else schedule,
        lora_rank=lora,
    )
    return plan_from(settings, framework)


def precision_of(text: str) -> Precision | None:
    """The precision that a table means by a text such as "amp_bf16", "NVFP4" or "FP8 tensorwise"; None for no text."""
    lower = text.strip().lower()
    for family in (Precision.FP4, Precision.FP8, Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32):
        if family in lower or family.replace("fp", "float") in lower:
            return family
    if lower:
        raise LumosError(f"precision {text!r} is not known; a family is one of fp4, fp8, bf16, fp16, tf32, fp32")
    return None


class _Sharding(NamedTuple):
    """The ZeRO stage, None if it is not stated, and how many devices share a set of shards (0: all)."""

    zero: int | None
    shard: int


def _sharding(text: str, group: int) -> _Sharding:
    """What "zero1 group=8", "FULL_SHARD", "fsdp2_group=64", … mean. group: of how many devices."""
    lower = text.lower()
    match = re.search(r"group\s*=\s*(\d+)", lower)
    shard = int(match.group(1)) if match else 0
    if not lower:
        return _Sharding(None, 0)
    stage = re.search(r"(?:zero|stage)[ _-]*(\d)", lower)
    if stage:
        return _Sharding(int(stage.group(1)), shard)
    if "hybrid" in lower or "hsdp" in lower:
        return _Sharding(3, shard or min(8, group))
    for word, zero in (("grad_op", 2), ("full", 3), ("fsdp", 3), ("distributed", 1)):
        if word in lower:
            return _Sharding(zero, shard)
    if lower in ("none", "no", "no_shard", "0") or "ddp" in lower:
        return _Sharding(0, 0)
    raise LumosError(f"zero_or_fsdp {text!r} is not understood; write none, zero1, zero2, zero3, FULL_SHARD or distributed optimizer")


class _Recomputed(NamedTuple):
    """What is recomputed, None if it is not stated, and in how many layers of a stage (-1: all)."""

    kind: Recompute | None
    layers: int = -1


def _recompute(text: str) -> _Recomputed:
    """What "full", "block 4 layers", "selective (…)", … mean."""
    lower = text.strip().lower()
    if lower in BLANK and lower != Recompute.NONE:
        return _Recomputed(None)
    layers = re.search(r"(\d+)\s*layers?", lower)
    if layers:
        count = int(layers.group(1))
        return _Recomputed(Recompute.FULL, count) if count else _Recomputed(Recompute.NONE)
    for kind in Recompute:
        if lower.startswith(kind):
            return _Recomputed(kind)
    if lower in ("yes", "true", "all", "on"):
        return _Recomputed(Recompute.FULL)
    if lower in ("no", "false", "off"):
        return _Recomputed(Recompute.NONE)
    raise LumosError(f"recompute {text!r} is not understood; write none, selective or full")


#: What remarks say, and the switches that they set.
_REMARKS: tuple[tuple[str, Mapping[str, object]], ...] = (
    (r"overlap off", {"dp_overlap": False, "gather_overlap": False, "tp_overlap": False, "tp_async": False}),
    (r"async tp", {"tp_overlap": True}),
    # experts of a limited capacity drop tokens, which Megatron Core's all-to-all dispatcher does and DeepEP does not
    (r"token.?drop", {"deep_ep": False, "expert_skew": 1.0}),
)


def _noted_switches(row: PublishedRun, framework: Framework, notes: list[Diagnostic]) -> Framework:
    """The framework with the switches that the row's remarks and precision mention, each of which is said."""
    text = " ".join(row.get(key, "") for key in ("notes", "precision", "zero_or_fsdp", "model")).lower()
    said = [(match.group(), switches) for words, switches in _REMARKS if (match := re.search(words, text))]
    if framework.fp8_gather and (match := re.search(r"row.?wise", text)):
        said.append((match.group(), {"fp8_gather": False, "fp8_rows": True}))
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


def _flag(row: PublishedRun, key: str) -> bool | None:
    """Whether a field says yes; None where it says nothing."""
    lower = row.get(key, "").strip().lower()
    if lower in BLANK:
        return None
    if lower in ("yes", "true", "1", "on", "no", "false", "0", "off"):
        return lower in ("yes", "true", "1", "on")
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


# ---------------------------------------------------------------- scores


@dataclass(frozen=True, slots=True)
class Scored:
    """One row with its measured and its predicted step. skipped: why it has no prediction, if it has none."""

    id: str
    source: str
    row: PublishedRun
    measured_s: float = 0.0
    predicted: PredictedStep | None = None
    job: PlannedJob | None = None
    measured_peak_bytes: int | None = None
    peak_bytes: int | None = None
    skipped: str | None = None
    unknowns: tuple[Open, ...] = ()

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        assert self.predicted is not None
        return self.predicted.time_s / self.measured_s - 1


class Pricers:
    """One pricer for each cluster that the rows name."""

    def __init__(self, coefficients: StepCoefficients | None = None) -> None:
        self._coefficients = coefficients
        self._known: dict[bytes, Pricer] = {}

    def of(self, cluster: Cluster) -> Pricer:
        key = msgspec.json.encode(cluster)
        if key not in self._known:
            self._known[key] = Pricer(cluster, self._coefficients)
        return self._known[key]


def score(
    rows: Iterable[PublishedRun],
    coefficients: StepCoefficients | None = None,
    progress: Callable[[int, int], None] | None = None,
    unprofiled_frameworks: bool = False,
) -> list[Scored]:
    """Predict every row; rows that cannot be read are skipped, with the reason. progress: called with (rows done, all rows).
    unprofiled_frameworks: predict as if no framework had a profile."""
    rows = list(rows)
    pricers = Pricers(coefficients)
    out = []
    for i, row in enumerate(rows):
        out.append(_score(row, pricers, unprofiled_frameworks))
        if progress is not None:
            progress(i + 1, len(rows))
    return out


def _score(row: PublishedRun, pricers: Pricers, unprofiled_framework: bool) -> Scored:
    name, source = row.get("id", "?"), row.get("source", "?")
    try:
        measured = published_step(row)
        job = job_of(row, unprofiled_framework)
        predicted, unknowns = open_step_time(job, pricers.of(job.cluster))
        peak = row.get("peak_memory_bytes", "").strip()
        measured_peak = int(table_number(peak, "peak_memory_bytes")) if peak else None
        memory = peak_memory(job).peak_bytes if measured_peak else None
    except LumosError as error:
        return Scored(name, source, row, skipped=str(error))
    return Scored(name, source, row, measured, predicted, job, measured_peak, memory, unknowns=tuple(unknowns))


def explained(scored: Sequence[Scored], count: int) -> list[tuple[Scored, dict[str, float]]]:
    """The `count` rows with the largest errors, each with its predicted critical path by kind of work (shares)."""
    good = [s for s in scored if s.job is not None and s.predicted is not None]
    worst = sorted(good, key=lambda s: -abs(s.error))[:count]
    return [(s, predict_job(s.job, coarse=True).critical_path) for s in worst if s.job is not None]


def summary(scored: Sequence[Scored]) -> dict[str, Any]:
    """The keys of `lumos validate --json`, over all rows and by source."""
    good = [s for s in scored if s.skipped is None]
    return {
        **figures(good),
        "skipped_count": len(scored) - len(good),
        "by_source": {source: figures([s for s in good if s.source == source]) for source in dict.fromkeys(s.source for s in scored)},
        "memory": memory_figures(good),
    }


def figures(scored: Sequence[Scored]) -> dict[str, Any]:
    """Errors over the rows; None for each figure if there are no rows."""
    if not scored:
        keys = ("mean_abs_error", "median_abs_error", "p90_abs_error", "bias", "spearman_within", "interval_coverage")
        return {"scored": 0, **dict.fromkeys(keys)}
    error = np.array([s.error for s in scored])
    size = np.abs(error)
    inside = [s.predicted.low_s <= s.measured_s <= s.predicted.high_s for s in scored if s.predicted is not None]
    return {
        "scored": len(scored),
        "mean_abs_error": float(size.mean()),
        "median_abs_error": float(np.median(size)),
        "p90_abs_error": float(np.quantile(size, 0.9)),
        "bias": float(error.mean()),
        "spearman_within": spearman_within(scored),
        "interval_coverage": float(np.mean(inside)),
    }


def spearman_within(scored: Sequence[Scored]) -> float | None:
    """Mean rank correlation (Spearman), weighted by rows, over groups of equal source, model, device, device count, batch,
    sequence length and precision. None if no group has enough rows."""
    groups: dict[tuple[str, ...], list[Scored]] = {}
    for s in scored:
        key = tuple(s.row.get(k, "") for k in ("source", "model", "gpu", "n_gpus", "global_batch", "seq_len", "precision"))
        groups.setdefault(key, []).append(s)
    total = weight = 0.0
    for members in groups.values():
        if len(members) < RANKED:
            continue
        measured = _ranks(np.array([s.measured_s for s in members]))
        predicted = _ranks(np.array([s.predicted.time_s for s in members if s.predicted is not None]))
        if measured.std() == 0 or predicted.std() == 0:
            continue
        total += len(members) * float(np.corrcoef(measured, predicted)[0, 1])
        weight += len(members)
    return total / weight if weight else None


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values all get the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count) - 1
    mean: np.ndarray = last - (count - 1) / 2
    return mean[inverse]


def memory_figures(scored: Sequence[Scored]) -> dict[str, Any]:
    """Errors of the peak memory, over the rows that publish it."""
    error = np.array([s.peak_bytes / s.measured_peak_bytes - 1 for s in scored if s.peak_bytes and s.measured_peak_bytes])
    if len(error) == 0:
        return {"scored": 0, "mean_abs_error": None, "max_abs_error": None, "bias": None}
    return {
        "scored": len(error),
        "mean_abs_error": float(np.abs(error).mean()),
        "max_abs_error": float(np.abs(error).max()),
        "bias": float(error.mean()),
    }


def rows_of(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """The `rows` of `lumos validate --json`."""
    out: list[dict[str, Any]] = []
    for s in scored:
        if s.skipped is not None or s.predicted is None:
            out.append({"id": s.id, "source": s.source, "skipped": s.skipped})
            continue
        entry = {
            "id": s.id,
            "source": s.source,
            "measured_s": s.measured_s,
            "predicted_s": s.predicted.time_s,
            "low_s": s.predicted.low_s,
            "high_s": s.predicted.high_s,
            "error": s.error,
            "widest_unknown": s.unknowns[0].code if s.unknowns and s.unknowns[0].worth_asking else None,
        }
        if s.peak_bytes and s.measured_peak_bytes:
            entry |= {"measured_peak_bytes": s.measured_peak_bytes, "peak_bytes": s.peak_bytes}
        out.append(entry)
    return out


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Shown):
    """Predictions of measured runs. rows: each run with its prediction, or why it was left out; errors are (predicted − measured) /
    measured."""

    rows: tuple[Scored, ...]

    def to_dict(self) -> dict[str, Any]:
        """The rows, and figures over them: all and by source; the keys of `lumos validate --json`."""
        return {"rows": rows_of(self.rows), **summary(self.rows)}

    def described(self) -> str:
        """How many rows were scored, and their errors."""
        scores = summary(self.rows)
        if not scores["scored"]:
            return f"0 of {len(self.rows)} rows scored"
        errors = f"median error {scores['median_abs_error']:.1%}, 90th percentile {scores['p90_abs_error']:.1%}"
        return f"{scores['scored']} of {len(self.rows)} rows scored, {errors}, {scores['interval_coverage']:.0%} within the interval"


def validate(*tables: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Validation:
    """Predict every row of CSV tables of measured runs; `lumos.prediction.validate` says which columns they have.

    progress(done, total) is called with rows. Raises LumosError where a file is no such table.
    """
    rows = list(read_tables([os.fspath(path) for path in tables]))
    return Validation(tuple(score(rows, progress=progress)))
