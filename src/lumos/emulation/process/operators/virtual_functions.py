"""Where the virtual functions of a class of torch's library stand in its table, as the headers that come with torch declare it.

The place of a function differs between versions of torch, and follows from the order in which a class and the one that it is derived
from declare theirs (Itanium C++ ABI, section 2.5.2: https://itanium-cxx-abi.github.io/cxx-abi/abi.html#vtable). A destructor has two
places.

Limits: a derived class adds no function under a name of its base class, and neither class is a template. Conditional parts of a class
are those of ROCm, which are not compiled where the device is NVIDIA's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ROCM = re.compile(r"^\s*#\s*if(?:def\s+USE_ROCM|\s+defined\(USE_ROCM\)).*?^\s*#\s*endif", re.DOTALL | re.MULTILINE)
_VIRTUAL = re.compile(r"\bvirtual\b[^;{}()]*?(~?\w+)\s*\(")


def places_of_functions(declarations: Sequence[str]) -> dict[str, int]:
    """The place of each virtual function, counted from the first. declarations: the text of the header of the outermost base class, then
    that of each class derived from the one before, each with the virtual functions of that class alone."""
    found: dict[str, int] = {}
    count = 0
    for text in declarations:
        inherited = frozenset(found)
        for match in _VIRTUAL.finditer(_ROCM.sub("", _COMMENT.sub("", text))):
            name = match[1]
            if name in inherited or (inherited and name.startswith("~")):
                continue
            found.setdefault(name, count)
            count += 2 if name.startswith("~") else 1
    return found
