"""Turn the settings of a prediction (command-line options or a TOML file) into a job.

Settings that are left open get defaults: dp follows from the number of devices; ZeRO, sequence parallelism and recomputation
are as the framework's profile has them; the other sizes are 1. An unknown key or name is refused with the nearest valid one.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lumos.choices import suggestion
from lumos.cost.cluster import load_cluster
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.model.catalogue import read_model
from lumos.plan.framework import Framework, switch_text, with_switches
from lumos.plan.job import PlannedJob, unknown_window, with_unknowns
from lumos.plan.plan import Plan, PlanError, check_plan, layer_count, layers_of_chunks
from lumos.plan.profiles import Told, named, release_of
from lumos.vocabulary import Precision, Recompute, Schedule, one_of

if TYPE_CHECKING:
    from lumos.model import Model


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that `lumos predict` takes.

    `model`, `cluster`, `gpus`, `global_batch` (sequences) and `seq` (tokens) are required. None means that a setting is open.
    """

    model: str | None = None
    cluster: str | None = None
    gpus: int | None = None
    global_batch: int | None = None
    seq: int | None = None
    micro_batch: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    zero: int | None = None
    shard: int = 0
    sequence_parallel: bool | None = None
    recompute: str | None = None
    recompute_layers: int = -1
    precision: str = Precision.BF16
    schedule: str | None = None
    lora_rank: int = 0
    document: int = 0
    first_layers: int = 0
    last_layers: int = 0
    framework: str = "megatron-core"
    switches: dict[str, str] = {}


#: Settings that say how the job is spread over the devices.
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch")
#: Settings that are fields of `Plan` under the same name.
_PLAN_FIELDS = tuple(field.name for field in fields(Plan) if field.name in Settings.__struct_fields__)


def read_settings(path: str) -> Settings:
    """The settings of a TOML file. Raises LumosError if it cannot be read, UsageError for an unknown key or a wrong value."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); give a TOML file of settings") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LumosError(f"{path}: is not TOML: {error}") from error
    table = {key.replace("-", "_"): value for key, value in table.items()}
    if isinstance(table.get("switches"), dict):
        table["switches"] = {key: switch_text(value) for key, value in table["switches"].items()}
    return settings_from(table, path)


def settings_from(table: dict[str, Any], where: str, *, as_text: bool = False) -> Settings:
    """The settings of a table. as_text: numbers and switches are written as text. Raises UsageError, which begins with `where`, for an
    unknown key or a wrong value."""
    for key in table:
        if key not in Settings.__struct_fields__:
            raise UsageError(f"{where}: key {key!r} is not known{suggestion(key, Settings.__struct_fields__)}")
    try:
        return msgspec.convert(table, Settings, strict=not as_text)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_in_words(str(error), table)}") from error


def _in_words(message: str, table: dict[str, Any]) -> str:
    """msgspec's message, reworded with the file's key and value: "gpus = '8' must be a whole number"."""
    match = re.match(r"Expected `(\w+)[^`]*`.* - at `\$\.(\w+)", message)
    if match is None:
        return message
    kind, key = match.groups()
    words = {"int": "a whole number", "str": "text in quotes", "bool": "true or false", "object": "a table"}
    return f"{key} = {table[key]!r} must be {words.get(kind, kind)}"


def check_needed(settings: Settings) -> None:
    """Raise UsageError if a setting is missing that every job needs."""
    for key in ("model", "cluster", "gpus", "global_batch", "seq"):
        if getattr(settings, key) is None:
            raise UsageError(f"--{key.replace('_', '-')} is needed (or {key} in the file)")


def job_from(s: Settings) -> PlannedJob:
    """The job that the settings describe. Raises UsageError if one is missing or unknown, PlanError if they contradict each other."""
    check_needed(s)
    assert s.model is not None and s.cluster is not None and s.gpus is not None
    (model, read_notes, window), cluster = read_model(s.model), load_cluster(s.cluster)
    cluster.check_size(s.gpus)
    framework, notes = _framework(s)
    plan = plan_from(s, framework)
    check_plan(plan, model)
    _check_effects(s, plan, model)
    job = PlannedJob(model, plan, framework, cluster, (*read_notes, *notes, *_empty_stages(plan, model)))
    return unknown_window(with_unknowns(job, stated(s)), window)


def plan_from(s: Settings, framework: Framework) -> Plan:
    """The plan of settings: sizes that they leave open are 1 but for dp, and what else they do is as the framework has it. Raises PlanError
    if the sizes are not those of the devices."""
    s = msgspec.structs.replace(s, **{key: 1 for key in DEGREES if getattr(s, key) is None and key != "dp"})
    assert s.tp is not None and s.pp is not None and s.cp is not None and s.vpp is not None and s.gpus is not None
    rest = s.tp * s.pp * s.cp
    if rest < 1 or s.gpus % rest:
        raise PlanError(f"plan: gpus ({s.gpus}) must be a multiple of tp · pp · cp ({s.tp} · {s.pp} · {s.cp} = {rest})")
    dp = s.gpus // rest if s.dp is None else s.dp
    if dp * rest != s.gpus:
        raise PlanError(f"plan: tp · pp · cp · dp ({rest} · {dp} = {dp * rest}) must be the {s.gpus} gpus")
    given = {key: getattr(s, key) for key in _PLAN_FIELDS if getattr(s, key) is not None}
    given |= {
        "seq_len": s.seq,
        "dp": dp,
        "zero": s.zero if s.zero is not None else framework.zero,
        "sequence_parallel": s.tp > 1 and (framework.sequence_parallel if s.sequence_parallel is None else s.sequence_parallel),
        "schedule": s.schedule or (Schedule.INTERLEAVED if s.vpp > 1 else Schedule.ONE_F_ONE_B),
        "recompute": s.recompute or framework.recompute,
    }
    return Plan(**given)


def stated(s: Settings) -> set[str]:
    """What settings state that a profile or a plan otherwise leaves open (`lumos.plan.job.with_unknowns`)."""
    given = set(s.switches)
    if s.sequence_parallel is not None:
        given.add("sequence_parallel")
    if release_of(s.framework):
        given.add("release")
    return given


def _empty_stages(plan: Plan, model: Model) -> list[Diagnostic]:
    """That parts of the pipeline have no layer, which is allowed for the ends and seldom meant."""
    sizes = [len(layers) for stage in layers_of_chunks(plan, model) for layers in stage]
    if all(sizes):
        return []
    message = f"{sizes.count(0)} of {len(sizes)} parts of the pipeline have none of the {model.layers} layers: an embedding or a head alone"
    return [Diagnostic("stage-without-layers", message)]


def _check_effects(s: Settings, plan: Plan, model: Model) -> None:
    """Raise PlanError for a setting that would have no effect, or a different one from what its name says."""
    if s.schedule == Schedule.INTERLEAVED and plan.vpp == 1:
        raise PlanError("plan: the interleaved schedule needs vpp above 1; without it, it is 1f1b")
    if s.schedule == Schedule.ONE_F_ONE_B and plan.vpp > 1:
        raise PlanError(f"plan: vpp ({plan.vpp}) makes the schedule interleaved, not 1f1b; leave one of them out")
    most = max(layer_count(chunks) for chunks in layers_of_chunks(plan, model))
    if s.recompute_layers != -1 and plan.recompute is not Recompute.FULL:
        raise PlanError(f"plan: recompute_layers ({s.recompute_layers}) needs recompute full, not {plan.recompute}")
    if not -1 <= s.recompute_layers <= most:
        raise PlanError(f"plan: recompute_layers ({s.recompute_layers}) must be at most the {most} layers of a stage")


def _framework(s: Settings) -> tuple[Framework, tuple[Diagnostic, ...]]:
    chosen = named(s.framework, Told(s.zero, one_of(Precision, s.precision, "precision")))
    return with_switches(chosen.framework, s.switches), chosen.notes
