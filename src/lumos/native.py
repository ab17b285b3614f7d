"""Whether the native modules and the Python around them were made from the same closed sets.

A set that C++ knows too is written down twice, and numbers go between the two. A module left over from another version would read
a number as another member's, and answer wrongly without a word; so whoever uses such a set compares both when it is imported.
"""

from __future__ import annotations

from enum import Enum
from types import ModuleType


def check_enum(module: ModuleType, ours: type[Enum]) -> None:
    """Hold an enum to the native module's of the same name (`module.ENUMS`: its names with commas between them, which count from 0).

    The names must be the same ones in the same order and, where they stand for whole numbers, count from 0. ImportError elsewhere.
    """
    theirs = tuple(str(module.ENUMS[ours.__name__]).split(", "))
    names = tuple(member.name for member in ours)
    places = [member.value for member in ours if isinstance(member.value, int)]
    if names != theirs or places not in ([], list(range(len(names)))):
        raise ImportError(
            f"{module.__name__} was built from other sources: its {ours.__name__} is {', '.join(theirs)}, "
            f"here it is {', '.join(names)}; build it again (pip install -e .)"
        )
