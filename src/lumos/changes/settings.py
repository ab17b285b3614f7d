"""The settings that `--set` changes: the one list that the command line, the HTTP API, the explorer and the docs read.

A setting is a whole number or a word of a closed set. Which settings of a job can be changed depends on what its traces show (`Way`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lumos.arguments import MEANINGS
from lumos.choices import nearest
from lumos.errors import LumosError, UsageError
from lumos.model.transformer import LARGEST_SIZE, MOST_LAYERS, MOST_TOKENS
from lumos.vocabulary import Precision, Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Way(StrEnum):
    """On what a change of a job's settings is made."""

    BLOCKS = "measured blocks"
    PREDICTED = "prediction"
    PASSES = "recorded passes"


class SettingKind(StrEnum):
    """What the value of a setting is."""

    COUNT = "whole number"
    WORD = "word"
    SWITCH = "on or off"


ON, OFF = "on", "off"
#: The key of --base that says with which framework a job is written, whose exchanges it then has where the recording shows none.
FRAMEWORK = "framework"

#: A whole number as people write it. `int` takes more: digits of other scripts, underscores, and as many as fill the memory.
_WHOLE = re.compile("[+-]?[0-9]{1,18}")
#: The name of an axis of a recording (`segment.readings`), which can be set as a size can.
AXIS = re.compile(r"[1-9][0-9]{0,17}@[a-z_0-9]{1,80}\.[0-9]{1,9}")
#: So many times what was recorded (`changes.stated`).
RELATIVE = re.compile(r"x([0-9]{1,9}(?:\.[0-9]{1,9})?)")


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of `--set`. values: by the way in which it can be changed, the words that it takes there; () for a whole number.

    least, most: bounds of a whole number. The upper one is what no model and no cluster reaches; a recording bounds it further.
    """

    key: str
    values: Mapping[Way, tuple[str, ...]]
    least: int = 1
    most: int = LARGEST_SIZE

    @property
    def help(self) -> str:
        """What it means."""
        return MEANINGS[self.key].text.partition(":")[0].removesuffix(".") if self.key in MEANINGS else "Positions of an axis"

    @property
    def words(self) -> tuple[str, ...]:
        """All words that it takes in any way; () for a whole number."""
        return tuple(dict.fromkeys(word for words in self.values.values() for word in words))

    @property
    def kind(self) -> SettingKind:
        if not self.words:
            return SettingKind.COUNT
        return SettingKind.SWITCH if set(self.words) == {ON, OFF} else SettingKind.WORD

    def check(self, text: str) -> None:
        """Raise UsageError, with the nearest and all valid values, where no job could take the value."""
        if self.kind is not SettingKind.COUNT:
            if text not in self.words:
                raise UsageError(f"--set {self.key}={text}: {_nearest(text, self.words)}")
            return
        if self.least > 0 and (factor := RELATIVE.fullmatch(text)) and float(factor[1]) > 0:
            return
        value = _whole(self.key, text)
        if value < self.least:
            raise UsageError(f"--set {self.key}={text}: must be at least {self.least}")
        if value > self.most:
            raise UsageError(f"--set {self.key}={text}: must be at most {self.most:,}")

    def check_for(self, way: Way, text: str) -> None:
        """Raise UsageError where a job that is changed in this way does not take the word."""
        words = self.values[way]
        if words and text not in words:
            raise UsageError(f"--set {self.key}={text}: {_nearest(text, words)} for a job that is changed through its {way}")


def _nearest(text: str, words: Iterable[str]) -> str:
    return f"{nearest(text, words)}; valid are {', '.join(words)}".removeprefix("; ")


def _whole(key: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise UsageError(f"--set {key}={text}: not a whole number of at most 18 digits")
    return int(text)


def _count(key: str, *ways: Way, least: int = 1, most: int = LARGEST_SIZE) -> Setting:
    return Setting(key, dict.fromkeys(ways, ()), least, most)


#: Why measured blocks do not show what some words of a setting would change.
_UNMEASURED = {
    "schedule": "it runs the two halves of a backward pass apart, which the recording shows as one",
    "precision": "kernels for this type are not those of the recorded one",
    "recompute": "which parts of a layer the framework would compute again is not in the recording",
}
#: Every setting by its key.
SETTINGS: Mapping[str, Setting] = {
    setting.key: setting
    for setting in (
        _count("seq", Way.BLOCKS, Way.PREDICTED, most=MOST_TOKENS),
        _count("micro_batch", Way.BLOCKS, Way.PREDICTED),
        _count("hidden", Way.BLOCKS, Way.PREDICTED),
        _count("heads", Way.BLOCKS, Way.PREDICTED),
        _count("ffn", Way.BLOCKS, Way.PREDICTED),
        _count("vocab", Way.BLOCKS, Way.PREDICTED),
        _count("layers", Way.BLOCKS, Way.PREDICTED, most=MOST_LAYERS),
        _count("pp", Way.BLOCKS, Way.PREDICTED, Way.PASSES),
        _count("vpp", Way.BLOCKS, Way.PREDICTED, Way.PASSES),
        _count("first_layers", Way.BLOCKS, Way.PREDICTED, most=MOST_LAYERS),
        _count("last_layers", Way.BLOCKS, Way.PREDICTED, most=MOST_LAYERS),
        _count("microbatches", Way.BLOCKS, Way.PREDICTED, Way.PASSES),
        _count("dp", Way.BLOCKS, Way.PREDICTED),
        _count("tp", Way.BLOCKS, Way.PREDICTED),
        _count("cp", Way.BLOCKS, Way.PREDICTED),
        _count("ep", Way.BLOCKS, Way.PREDICTED),
        _count("zero", Way.BLOCKS, Way.PREDICTED, least=0, most=3),
        _count("shard", Way.BLOCKS, Way.PREDICTED),
        Setting(
            "schedule",
            {
                Way.PREDICTED: tuple(Schedule),
                Way.BLOCKS: (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED),
                Way.PASSES: (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED),
            },
        ),
        Setting(
            "precision",
            {Way.BLOCKS: (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16), Way.PREDICTED: tuple(Precision)},
        ),
        Setting(
            "recompute",
            {Way.BLOCKS: (Recompute.FULL, Recompute.NONE), Way.PREDICTED: (Recompute.FULL, Recompute.NONE, Recompute.SELECTIVE)},
        ),
        Setting("cuda_graphs", {Way.BLOCKS: (ON, OFF), Way.PREDICTED: (ON, OFF)}),
    )
}


def keys_for(way: Way) -> tuple[str, ...]:
    """The keys that can be changed in this way."""
    return tuple(key for key, setting in SETTINGS.items() if way in setting.values)


def parse_settings(words: Iterable[str]) -> dict[str, str]:
    """Parse words KEY=VALUE. Raises UsageError, with the nearest, for an unknown key or a value that no job could take, and for two values
    of one key."""
    out: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value.strip():
            raise UsageError(f"--set {word!r}: write KEY=VALUE, for instance layers=8")
        if "=" in value:
            raise UsageError(f"--set {word!r}: holds more than one KEY=VALUE; repeat --set for each")
        setting = known(key.strip().replace("-", "_")).key
        if out.setdefault(setting, value.strip()) != value.strip():
            raise UsageError(f"--set {setting}: given twice, as {out[setting]} and as {value.strip()}; give it once")
    check_settings(out)
    return out


def parse_base(words: Iterable[str]) -> dict[str, str]:
    """Parse words KEY=VALUE that say what was recorded: a whole number, or names of axes joined by +; and the name of its framework. Raises
    UsageError as `parse_settings` does."""
    out: dict[str, str] = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if key == FRAMEWORK and value:
            out[key] = value
            continue
        setting = known(key.replace("-", "_"))
        parts = [part.strip() for part in value.split("+")]
        if not equals or setting.kind is not SettingKind.COUNT or not all(AXIS.fullmatch(part) or _WHOLE.fullmatch(part) for part in parts):
            raise UsageError(f"--base {word}: write KEY=NUMBER, or KEY=NAME with the name of an axis that a question gave")
        if out.setdefault(setting.key, "+".join(parts)) != "+".join(parts):
            raise UsageError(f"--base {setting.key}: given twice, as {out[setting.key]} and as {value}; give it once")
    return out


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise UsageError, with the nearest, for an unknown key or a value that no job could take."""
    for key, text in settings.items():
        known(key).check(text)


def known(key: str) -> Setting:
    """The setting of that key. Raises UsageError, with the nearest and all valid keys, where there is none."""
    if AXIS.fullmatch(key):
        return _count(key, Way.BLOCKS, most=MOST_TOKENS)
    if key not in SETTINGS:
        hint = nearest(key, SETTINGS) or "; a changed script is --before CMD --after CMD"
        raise UsageError(f"--set {key}: not a setting{hint}; valid are {', '.join(SETTINGS)}")
    return SETTINGS[key]


def counts(settings: Mapping[str, str]) -> dict[str, int]:
    """The settings that are whole numbers, as numbers."""
    return {key: _whole(key, text) for key, text in settings.items() if known(key).kind is SettingKind.COUNT}


def check_blocks(settings: Mapping[str, str]) -> None:
    """Raise LumosError, with the reason of each, for words that measured blocks cannot answer."""
    asked = [(key, text) for key, text in settings.items() if (words := known(key).values[Way.BLOCKS]) and text not in words]
    if asked:
        why = "; ".join(f"{key}={text}: {_UNMEASURED[key]}" for key, text in asked)
        raise LumosError(f"--set {why}. Record a job that has it, or ask lumos predict")


def in_words() -> str:
    """The settings and the jobs for which they are valid, in a sentence for the help."""
    blocks = ", ".join(_with_words(SETTINGS[key], Way.BLOCKS) for key in keys_for(Way.BLOCKS))
    more = [
        f"{key}={word}"
        for key, setting in SETTINGS.items()
        for word in setting.values.get(Way.PREDICTED, ())
        if word not in setting.values[Way.BLOCKS]
    ]
    passes = ", ".join(_with_words(SETTINGS[key], Way.PASSES) for key in keys_for(Way.PASSES))
    return f"{blocks}; of what lumos predict wrote also {', '.join(more)}; of recordings of passes {passes}"


def _with_words(setting: Setting, way: Way) -> str:
    words = setting.values[way]
    return f"{setting.key} ({', '.join(words[:-1])} or {words[-1]})" if words else setting.key
