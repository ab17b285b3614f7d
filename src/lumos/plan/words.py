"""The settings of a prediction as keyword arguments, typed; `Settings` of `plan.configuration` holds the same with what is left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, cast

from lumos.choices import as_mapping
from lumos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.plan.configuration import Settings


class PlanWords(TypedDict, total=False):
    """Sizes and choices of a parallel plan, and the framework that runs it, in the words of `lumos predict`."""

    micro_batch: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    dp: int
    zero: int
    shard: int
    sequence_parallel: bool
    recompute: str
    recompute_layers: int
    precision: str
    schedule: str
    lora_rank: int
    document: int
    first_layers: int
    last_layers: int
    framework: str
    switches: Mapping[str, object]


class JobWords(PlanWords, total=False):
    """A whole job."""

    model: str
    cluster: str
    gpus: int
    global_batch: int
    seq: int


def with_words(settings: Settings, words: JobWords, where: str) -> Settings:
    """The settings with those that are named. UsageError for an unknown key, naming the nearest, or a value of the wrong type."""
    import msgspec

    from lumos.plan.configuration import settings_from
    from lumos.plan.framework import switch_text

    given = {key: value for key, value in cast("dict[str, object]", dict(words)).items() if value is not None}
    if "switches" in given:
        switches = as_mapping(given["switches"], "switches", "{'dropout': True}")
        given["switches"] = {**settings.switches, **{key: switch_text(value) for key, value in switches.items()}}
    return settings_from({**msgspec.to_builtins(settings), **given}, where)


def switches_of(words: Iterable[str]) -> dict[str, str]:
    """Switches from words KEY=VALUE, as the option `--switch` has them. Raises UsageError for a word that is none."""
    out = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign:
            raise UsageError(f"--switch {word!r} is not KEY=VALUE")
        out[key.strip().replace("-", "_")] = value.strip()
    return out
