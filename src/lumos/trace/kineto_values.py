"""What the header and the arguments of a Kineto file may hold: the types and ranges that the rest of Lumos relies on.

A profiler file is legal JSON long before it makes sense: the list of devices may be a number, a shape may be text, a size may exceed
what an integer holds. Each such value is left out here, with a diagnostic that names the field, what it must be and what it is; the
rest of the file is read. Nothing behind the reader then has to doubt the type of what a trace says.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np

from lumos.trace.table import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

#: A rank, a device or another index; a count or a size in bytes. 2^56 leaves room for the bytes of an element in 64 bits.
Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)]

#: The fields of an element of `deviceProperties` that Lumos reads.
DEVICE_FIELDS: dict[str, Any] = {
    "id": Index,
    "name": str,
    "totalGlobalMem": Size,
    "numSms": Index,
    "maxThreadsPerMultiprocessor": Index,
    "regsPerMultiprocessor": Index,
    "sharedMemPerMultiprocessor": Index,
}
#: The fields of an element of `distributedInfo.pg_config`, one process group. Ranks are written as a list or as its text.
GROUP_FIELDS: dict[str, Any] = {"pg_name": str | int, "pg_desc": str, "ranks": list[Index] | str}
#: What `lumos.collect` writes.
COLLECT_FIELDS: dict[str, Any] = {
    "torch": str,
    "threads": Index,
    "malloc": dict[str, str],
    "command": list[str],
    "variables": dict[str, str],
}
#: What it writes of the machine for each step; a field that is absent was not known there.
HOST_FIELDS: dict[str, Any] = {
    "step": Index,
    **dict.fromkeys(("ran_ns", "waited_ns"), dict[str, Size]),
    **dict.fromkeys(("cores", "quota_cores"), float),
}

#: Keys of `Trace.metadata` that only other readers set, by which a trace's builder is chosen.
RESERVED = frozenset({"format", "operations", "chakra", "chakraVersion", "chakraAttributes"})

#: Called with the path of a field in the file, and what is wrong with it.
Report: TypeAlias = "Callable[[str, str], None]"


#: The lists of objects in a header, and the objects, each with the types of its fields.
_LISTS = {"deviceProperties": DEVICE_FIELDS, "lumos_host": HOST_FIELDS}
_OBJECTS: dict[str, dict[str, Any]] = {"lumos_collect": COLLECT_FIELDS, "distributedInfo": {}}


def checked_header(header: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The top-level values of a file, without those that are of another type or range than Lumos reads them as."""
    out: dict[str, Any] = {}
    for key, value in header.items():
        if key in RESERVED:
            report(key, "is set by Lumos' own readers and by no profiler")
        elif key in _LISTS:
            out |= _objects(key, value, _LISTS[key], key, report)
        elif key not in _OBJECTS:
            out[key] = value
        elif (kept := _object(value, _OBJECTS[key], key, report)) is not None:
            if "pg_config" in kept and key == "distributedInfo":  # which lists the process groups; the reader checks the rank itself
                kept |= _objects("pg_config", kept.pop("pg_config"), GROUP_FIELDS, "distributedInfo.pg_config", report)
            out[key] = kept
    return out


def _objects(key: str, value: Any, types: Mapping[str, Any], where: str, report: Report) -> dict[str, list[dict[str, Any]]]:
    """The objects of a list with fields of those types, by its key; nothing where it is no list."""
    if not isinstance(value, list):
        report(where, f"must be a list of objects, not {_what(value)}")
        return {}
    objects = (_object(element, types, f"{where}[{i}]", report) for i, element in enumerate(value))
    return {key: [element for element in objects if element is not None]}


def _object(value: Any, types: Mapping[str, Any], where: str, report: Report) -> dict[str, Any] | None:
    """An object with fields of those types; other fields are kept as they are. None where it is none."""
    if not isinstance(value, dict):
        report(where, f"must be an object, not {_what(value)}")
        return None
    out = {}
    for key, item in value.items():
        try:
            out[key] = msgspec.convert(item, types[key]) if key in types else item
        except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the second: text with a lone surrogate
            report(f"{where}.{key}", f"is {_what(item)}: {error}")
    return out


def _what(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


# ---------------------------------------------------------------- arguments


def checked_arguments(args: Mapping[str, Column], strings: Sequence[str], report: Callable[[str, int, str], None]) -> dict[str, Column]:
    """The columns without the values that are of another type or range; report(key, values, why) is called for each such column."""
    out = {}
    for key, column in args.items():
        good = np.ones(len(column.rows), bool)
        if key in _TEXTS and column.kind == "string":
            check, why = _TEXTS[key]
            good = _texts_that(check, column, strings)
        elif key in _RANGES and column.kind == "int":
            least, most, why = _RANGES[key]
            good = (column.values >= least) & (column.values < most)
        if good.all():
            out[key] = column
            continue
        report(key, int((~good).sum()), why)
        if good.any():
            out[key] = Column(column.rows[good], column.values[good], column.kind)
    return out


def _texts_that(check: Callable[[str], bool], column: Column, strings: Sequence[str]) -> NDArray[np.bool_]:
    """Which values pass the check, which is called once for each distinct text."""
    used = np.zeros(len(strings), bool)
    used[column.values] = True
    good = np.zeros(len(strings), bool)
    for i in np.flatnonzero(used).tolist():
        good[i] = check(strings[i])
    mask: NDArray[np.bool_] = good[column.values]
    return mask


_LIST = msgspec.json.Decoder(list[Any])
#: How deep the lists of an operator's inputs are nested at most: a list of lists of tensors, each with its sizes.
_DEEPEST = 3


def _is_list(text: str) -> bool:
    return _list(text) is not None


def _is_shapes(text: str) -> bool:
    """Whether the text is a list with an entry for each input: the sizes of a tensor, or those of a list of tensors."""
    entries = _list(text)
    return entries is not None and all(isinstance(entry, list) and _is_sizes(entry, _DEEPEST) for entry in entries)


def _is_sizes(value: list[Any], deeper: int) -> bool:
    numbers = [v for v in value if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
    lists = [v for v in value if isinstance(v, list)]
    if len(numbers) + len(lists) < len(value) or (lists and not deeper):
        return False
    return math.prod(numbers) < 1 << 56 and max(numbers, default=0) < 1 << 48 and all(_is_sizes(v, deeper - 1) for v in lists)


def _is_launch_shape(text: str) -> bool:
    return math.prod(int(n) for n in re.findall(r"\d+", text[:200])) < 1 << 56


def _list(text: str) -> list[Any] | None:
    try:
        return _LIST.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_TEXTS = {
    "Input Dims": (_is_shapes, "no list of shapes"),
    "Input Strides": (_is_list, "no list"),
    "Input type": (_is_list, "no list of types"),
    "Concrete Inputs": (_is_list, "no list"),
    "grid": (_is_launch_shape, "larger than any launch"),
    "block": (_is_launch_shape, "larger than any launch"),
}
_INDEX = (-1, 1 << 31, "no index below 2^31")
_AMOUNT = (-1, 1 << 56, "no amount below 2^56")
_RANGES = {
    **dict.fromkeys(("Src Rank", "Dst Rank", "Rank", "Global rank start", "Global rank stride", "Group size"), _INDEX),
    **dict.fromkeys(("registers per thread", "shared memory", "device"), _INDEX),
    **dict.fromkeys(("In msg nelems", "Out msg nelems", "bytes", "size"), _AMOUNT),
}
