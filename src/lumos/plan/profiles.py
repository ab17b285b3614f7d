"""The profiles of known frameworks, and which profile a framework's name and year stand for.

`data/frameworks.toml` holds them, each value with its source; its header describes the format.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from lumos.choices import nearest
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.plan.framework import SWITCHES, Framework
from lumos.vocabulary import Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA = Path(__file__).parent / "data" / "frameworks.toml"
EVIDENCE = Path(__file__).parent / "data" / "evidence.json"
#: The year that is assumed for a framework if none is given.
_RECENT = 2024
#: The first year that profiles tell from others.
_FIRST = 2020
#: A release as NVIDIA numbers containers and what is shipped in them: two digits of the year, two of the month.
_RELEASE = re.compile(r"\b2\d\.(?:0[1-9]|1[0-2])\b")
#: A year by itself or as the first two digits of a release.
_YEAR = re.compile(r"\b(?:20(2\d)|(2\d)\.(?:0[1-9]|1[0-2]))\b")


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a switch, and where it comes from."""

    value: bool | int | float | str
    source: Annotated[str, msgspec.Meta(min_length=1)]


_Values = dict[str, _Value]


class _Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """Values that differ from those of a profile in some years (`first` to `last`, inclusive; None is open), from a release on, or
    for plans of a stage of sharding or of a precision."""

    why: str
    values: _Values
    first: int | None = None
    last: int | None = None
    release: str | None = None
    zero: int | None = None
    precision: Precision | None = None


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a profile leaves open. ask: what would settle it, for people; answers: the values by each answer other than the profile's."""

    code: str
    ask: str
    answers: dict[str, _Values]

    @property
    def switches(self) -> dict[str, dict[str, Any]]:
        """The switches by each answer."""
        return {answer: {key: v.value for key, v in values.items()} for answer, values in self.answers.items()}


class _Schedules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pipeline schedules that a framework has, and where that is said."""

    value: tuple[Schedule, ...]
    source: Annotated[str, msgspec.Meta(min_length=1)]


class _Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values that differ from the defaults."""

    name: str
    why: str
    values: _Values
    like: str | None = None  # the profile whose values it has where it states none
    schedules: _Schedules | None = None
    version: tuple[_Version, ...] = ()
    question: tuple[Question, ...] = ()


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """The names, remarks (`notes`) and years that select a profile."""

    words: tuple[str, ...]
    profile: str
    notes: str = ""
    first: int | None = None
    last: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unknown: str
    defaults: _Values
    profile: tuple[_Profile, ...]
    choice: tuple[_Choice, ...]


@cache
def _file() -> _File:
    """The file of profiles. Raises LumosError if it has another format or sets an unknown switch."""
    try:
        file = msgspec.convert(tomllib.loads(_DATA.read_text(encoding="utf-8")), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise LumosError(f"{_DATA}: {error}") from error
    tables = [file.defaults]
    for profile in file.profile:
        tables += [profile.values, *(version.values for version in profile.version)]
        tables += [values for question in profile.question for values in question.answers.values()]
    wrong = sorted({key for table in tables for key in table} - SWITCHES.keys()) + sorted(SWITCHES.keys() - file.defaults.keys())
    if wrong:
        raise LumosError(f"{_DATA}: {', '.join(wrong)}: not a switch, or a switch without a default")
    return file


def _framework(profile: _Profile, version: _Values) -> Framework:
    values: _Values = dict(_file().defaults)
    for own in (*(ancestor.values for ancestor in reversed(_lineage(profile.name))), version):
        values |= own
    return Framework(profile.name, **{key: v.value for key, v in values.items()})  # type: ignore[arg-type]


@cache
def profiles() -> Mapping[str, Framework]:
    """The profiles by name, in the order of the file, without the differences of single years."""
    return {profile.name: _framework(profile, {}) for profile in _file().profile}


def is_profiled(framework: Framework) -> bool:
    """Whether it is a known framework, not the profile for frameworks of which nothing is known."""
    return framework.name != _file().unknown


def framework_profile(name: str) -> Framework:
    """The profile of that name. Raises UsageError, which lists the valid names and the nearest."""
    known = profiles()
    if name in known:
        return known[name]
    raise UsageError(f"framework {name!r} is not known{nearest(name, known)}; valid: {', '.join(known)}, the last for any other")


def framework_schedules(name: str) -> tuple[Schedule, ...]:
    """The pipeline schedules that a search lists for the profile of that name: those that the framework has.

    Where that is not known, all but GPipe, which holds the activations of every microbatch and is never faster than 1F1B.
    """
    known = next((profile.schedules for profile in _lineage(name) if profile.schedules is not None), None)
    return tuple(schedule for schedule in Schedule if schedule is not Schedule.GPIPE) if known is None else known.value


@cache
def _lineage(name: str) -> tuple[_Profile, ...]:
    """The profile of that name, then the one whose values it has where it states none, and so on; none for a profile made elsewhere."""
    profile = next((profile for profile in _file().profile if profile.name == name), None)
    return () if profile is None else (profile, *(_lineage(profile.like) if profile.like else ()))


class RunEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a profile did on published runs of one accelerator: of how many rows and sources, and the error (measured / predicted or its
    inverse, less one) that four of five rows stay within."""

    rows: int
    sources: int
    within: float


@cache
def evidence() -> Mapping[str, Mapping[str, RunEvidence]]:
    """What published runs say of each profile, by accelerator (`validation/profiles.py` writes it)."""
    return msgspec.json.decode(EVIDENCE.read_bytes(), type=dict[str, dict[str, RunEvidence]])


def profile_questions(name: str) -> tuple[Question, ...]:
    """What the profile of that name leaves open; a profile made elsewhere leaves nothing open."""
    return tuple(question for profile in reversed(_lineage(name)) for question in profile.question)


# ---------------------------------------------------------------- choosing


class Chosen(NamedTuple):
    """A profile, and the reason for choosing it (empty if the user named it)."""

    framework: Framework
    why: str

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """The reason, for people."""
        return (Diagnostic("framework-profile", f"{self.framework.name}: {self.why}"),) if self.why else ()


class Told(NamedTuple):
    """What is stated of a plan and tells something of its framework. None: not stated."""

    zero: int | None = None
    precision: Precision | None = None


def named(name: str, told: Told = Told()) -> Chosen:
    """The profile of that name, or of the framework of that name. Raises UsageError, which lists the valid names and the nearest.

    told: what is stated of the plan, which tells something of a framework without a profile.
    """
    matching = None if name in profiles() else _matching(name, year_of(name) or _RECENT, "", told)
    chosen = matching or Chosen(framework_profile(name), "")
    other = unprofiled(None, told)
    return other if not is_profiled(chosen.framework) and other.framework != chosen.framework else chosen


def choose(framework: str, year: int | None = None, notes: str = "", told: Told = Told()) -> Chosen:
    """The profile for a framework as a table names it, and why: chosen by the name, then by the year and the release.

    notes: free text that may tell more, such as compilation or a release, as the name may. A framework that is not known gets the profile
    that the file names for it. told: what is stated of the plan, which tells something of such a framework, and of a known one's version.
    """
    matching = _matching(framework, year or year_of(framework) or _RECENT, notes, told)
    if matching is not None:
        return matching
    chosen = unprofiled(year, told)
    return Chosen(chosen.framework, f"framework {framework!r} is not known: taken as {chosen.why}")


def unprofiled(year: int | None = None, told: Told = Told()) -> Chosen:
    """The profile of a framework of which nothing is known but perhaps its year, and what is stated of the plan."""
    return _of_version(_file().unknown, year or _RECENT, None, told)


def other_years(framework: str, notes: str = "") -> dict[str, Framework]:
    """The profiles that a framework's name stands for in years other than the one that is assumed without a year, by year."""
    now = choose(framework, None, notes).framework
    by_year: dict[str, Framework] = {}
    for year in range(_FIRST, _RECENT + 3):
        other = choose(framework, year, notes).framework
        if other != now and other not in by_year.values():
            by_year[str(year)] = other
    return by_year


def _matching(framework: str, year: int, notes: str, told: Told = Told()) -> Chosen | None:
    text, hints = framework.lower(), f"{framework} {notes}".lower()
    for choice in _file().choice:
        if (
            _within(year, choice.first, choice.last)
            and any(_matches(text, words) for words in choice.words)
            and _matches(hints, choice.notes)
        ):
            return _of_version(choice.profile, year, release_of(f"{framework} {notes}"), told)
    return None


def release_of(text: str) -> str | None:
    """The release that a text names, such as "26.06" in "26.06.01 NeMo Container"; None where it names none."""
    match = _RELEASE.search(text)
    return match.group() if match else None


def year_of(text: str) -> int | None:
    """The year that a text names, by itself or in a release: 2022 in "NeMo 2022" and in "NeMo 22.09"; None where it names none."""
    match = _YEAR.search(text)
    return 2000 + int(match.group(1) or match.group(2)) if match else None


def _of_version(name: str, year: int, release: str | None, told: Told = Told()) -> Chosen:
    chosen = _lineage(name)[0]
    for version in chosen.version:
        since = version.release is None or (release is not None and release >= version.release)
        planned = version.zero in (None, told.zero) and version.precision in (None, told.precision)
        if since and planned and _within(year, version.first, version.last):
            return Chosen(_framework(chosen, version.values), version.why)
    return Chosen(framework_profile(chosen.name), chosen.why)


def _within(year: int, first: int | None, last: int | None) -> bool:
    return (first is None or year >= first) and (last is None or year <= last)


def _matches(text: str, words: str) -> bool:
    """Whether the text contains all words, except those after a minus sign, of which it may contain none."""
    return all((word.removeprefix("-") in text) != word.startswith("-") for word in words.split())
