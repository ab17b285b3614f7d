"""A check that the native modules were built with the same enums as the Python code has.

An enum that C++ uses too is written down twice, and its members pass between the two languages as numbers. A native module of
another version could take a number for another member and answer wrongly without an error. So each Python module that shares
an enum with a native module compares the two when it is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enum import Enum
    from types import ModuleType


def check_enum(module: ModuleType, ours: type[Enum]) -> None:
    """Compare an enum with the native module's enum of the same name.

    `module.ENUMS` has the names of its members, separated by commas; their values are 0, 1, … in that order. Raises ImportError
    unless the Python enum has the same names in the same order, and those values where its values are integers.
    """
    theirs = tuple(str(module.ENUMS[ours.__name__]).split(", "))
    names = tuple(member.name for member in ours)
    places = [member.value for member in ours if isinstance(member.value, int)]
    if names != theirs or places not in ([], list(range(len(names)))):
        raise ImportError(
            f"{module.__name__} was built from other sources: its {ours.__name__} is {', '.join(theirs)}, "
            f"here it is {', '.join(names)}; build it again (pip install -e .)"
        )
