"""The profiles of known frameworks, and which of them a framework's name and year mean.

`data/frameworks.toml` holds them, each value with its source, and says there how it is laid out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from lumos.errors import LumosError, UsageError
from lumos.plan.framework import SWITCHES, Framework

DATA = Path(__file__).parent / "data" / "frameworks.toml"
#: The year that a framework without one is taken to be of.
RECENT = 2024


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a switch, and where it comes from."""

    value: bool | int | float | str
    source: Annotated[str, msgspec.Meta(min_length=1)]


_Values = dict[str, _Value]


class _Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """What differs from a profile in some years."""

    why: str
    values: _Values
    first: int | None = None
    last: int | None = None


class _Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What differs from the defaults."""

    name: str
    why: str
    values: _Values
    version: tuple[_Version, ...] = ()


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """Which names, remarks and years mean a profile."""

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
    """The file of profiles. LumosError where it is not of the form, or sets what is no switch."""
    try:
        file = msgspec.convert(tomllib.loads(DATA.read_text(encoding="utf-8")), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise LumosError(f"{DATA}: {error}") from error
    tables = [file.defaults]
    for each in file.profile:
        tables += [each.values, *(version.values for version in each.version)]
    wrong = sorted({key for table in tables for key in table} - SWITCHES.keys()) + sorted(SWITCHES.keys() - file.defaults.keys())
    if wrong:
        raise LumosError(f"{DATA}: {', '.join(wrong)}: not a switch, or a switch without a default")
    return file


def _framework(profile: _Profile, version: _Values) -> Framework:
    values: dict[str, Any] = {key: v.value for key, v in (_file().defaults | profile.values | version).items()}
    return Framework(profile.name, **values)


@cache
def profiles() -> Mapping[str, Framework]:
    """The profiles by name, in the order of the file; each as it is where no year is given."""
    return {each.name: _framework(each, {}) for each in _file().profile}


def profile(name: str) -> Framework:
    """The profile of that name. UsageError with the nearest and the valid ones."""
    known = profiles()
    if name in known:
        return known[name]
    near = get_close_matches(name.lower(), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"framework {name!r} is not known{hint}; valid: {', '.join(known)}")


# ---------------------------------------------------------------- choosing


class Chosen(NamedTuple):
    """A profile, and why it is the one (empty: it was named)."""

    framework: Framework
    why: str


def named(name: str) -> Chosen:
    """The profile of that name, or of the framework that goes by it. UsageError with the nearest and the valid ones."""
    found = None if name in profiles() else _matching(name, RECENT, "")
    return found or Chosen(profile(name), "")


def choose(framework: str, year: int | None = None, notes: str = "") -> Chosen:
    """The profile for a framework as a table names it, and why: by family, then by the era of its kernels.

    notes: free text that may name compilation. A framework that is not known is taken as the file says.
    """
    found = _matching(framework, year or RECENT, notes)
    if found is not None:
        return found
    assumed = _profile(_file().unknown)
    return Chosen(profile(assumed.name), f"framework {framework!r} is not known: taken as {assumed.why}")


def _matching(framework: str, year: int, notes: str) -> Chosen | None:
    text, hints = framework.lower(), notes.lower()
    for choice in _file().choice:
        if _within(year, choice.first, choice.last) and any(_says(text, words) for words in choice.words) and _says(hints, choice.notes):
            return _of_year(_profile(choice.profile), year)
    return None


def _of_year(found: _Profile, year: int) -> Chosen:
    for version in found.version:
        if _within(year, version.first, version.last):
            return Chosen(_framework(found, version.values), version.why)
    return Chosen(profile(found.name), found.why)


def _profile(name: str) -> _Profile:
    return next(each for each in _file().profile if each.name == name)


def _within(year: int, first: int | None, last: int | None) -> bool:
    return (first is None or year >= first) and (last is None or year <= last)


def _says(text: str, words: str) -> bool:
    """Whether the text has all words, and none of those behind a minus."""
    return all((word.removeprefix("-") in text) != word.startswith("-") for word in words.split())
