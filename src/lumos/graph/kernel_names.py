"""What a kernel does, by its name: one table for all vendors and libraries (`data/kernels.toml`).

Only the name of the function that runs is read, without its template arguments and the types of its parameters: these name what
the function is handed, such as a lambda, a tensor or a library's types, and not what it does. There is one exception: functions that
only run another one (`cutlass::Kernel<…>`, `ck_tile::kentry<…>`) do what their template arguments say.
"""

import re
import tomllib
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class KernelClass(StrEnum):
    """What a piece of device work does. The value is the spelling in tables, on the command line and in JSON."""

    COLLECTIVE = "collective"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    GEMM = "gemm"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    OPTIMIZER = "optimizer"
    EMBEDDING = "embedding"
    SORTING = "sorting"
    REDUCTION = "reduction"
    POOLING = "pooling"
    ELEMENTWISE = "elementwise"
    OTHER = "other"


class _Row(NamedTuple):
    """One row of the table: functions whose name has the pattern are of the class. example: the name of a kernel that it decides."""

    label: KernelClass
    pattern: str
    example: str


_ROWS = tomllib.loads((Path(__file__).parent / "data" / "kernels.toml").read_text(encoding="utf-8"))["row"]
#: The first row whose pattern is found decides; upper and lower case are one.
TABLE = tuple(_Row(KernelClass(row["label"]), row["pattern"], row["example"]) for row in _ROWS)
_COMPILED = tuple((row.label, re.compile(row.pattern, re.IGNORECASE)) for row in TABLE)

#: Functions that only run another one, which their template arguments name. A multiplication unless these say otherwise.
_WRAPPER = re.compile(r"(cutlass|ck_tile|\bck)\w*::(kernel\d*|device_kernel|kentry)$", re.IGNORECASE)

#: Unnamed namespaces, in which brackets and blanks are part of a name. Some profilers write capital letters.
_UNNAMED = re.compile(r"\(anonymous namespace\)", re.IGNORECASE)

#: A name as compilers write it into a library: the parts of its path, each after its length.
_MANGLED = re.compile(r"_ZN[KVr]*(?=\d)")
_LENGTH = re.compile(r"\d{1,4}")


class Called(NamedTuple):
    """What a kernel's name says. function: the path of its name, without arguments and parameters. arguments: of its templates."""

    function: str
    arguments: str


@lru_cache(maxsize=1 << 14)
def kernel_class(name: str) -> KernelClass:
    """What the kernel of this name does; OTHER where no row of the table decides."""
    row = deciding_row(name)
    return KernelClass.OTHER if row is None else TABLE[row].label


def deciding_row(name: str) -> int | None:
    """The index in TABLE of the row that decides the class of a kernel's name; None without one."""
    function, arguments = called(name)
    text = f"{arguments} {function}" if _WRAPPER.search(function) else function
    return next((i for i, (_, pattern) in enumerate(_COMPILED) if pattern.search(text)), None)


def called(name: str) -> Called:
    """The function that a kernel's name calls, and the arguments of its templates."""
    mangled = _MANGLED.match(name)
    return _demangled(name, mangled.end()) if mangled else _split(_UNNAMED.sub("unnamed", name))


def _split(name: str) -> Called:
    """The parts of a name as it stands in the source: what lies outside of all < >, up to the parameters, and what lies inside."""
    outside: list[str] = []
    inside: list[str] = []
    depth = at = 0
    for bracket in re.finditer(r"[<(]|(?<!-)>", name):
        (inside if depth else outside).append(name[at : bracket.start()])
        at = bracket.end()
        if bracket[0] != "(":
            depth += 1 if bracket[0] == "<" else -1
        elif not depth:
            break
    else:
        outside.append(name[at:])
    return Called("".join(outside).strip(), " ".join(inside))


def _demangled(name: str, at: int) -> Called:
    """The path that starts at a place of a mangled name, and the rest of the name."""
    parts = []
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return Called("::".join(parts), name[at:])
