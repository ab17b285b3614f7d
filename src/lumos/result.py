"""Results as tables: for notebooks, as JSON, as Arrow or pandas.

A result is a dataclass or a named tuple of plain values, others of its kind, and sequences of these. `Shown` gives it a line as its
`repr`, a table in a notebook, and `to_dict`, `to_arrow` and `to_pandas`; `Rows` gives the same to a sequence of results.
`Described` gives the line alone, to values that are too large for tables (a job, a graph).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any, TypeVar

from lumos.errors import LumosError
from lumos.units import quantity, shared_unit, with_unit

T_co = TypeVar("T_co", covariant=True)

#: Rows of a table in a notebook before the rest is only counted, columns of it, and characters of a cell.
MOST_ROWS, MOST_COLUMNS, MOST_TEXT = 24, 24, 100
#: Bytes of all tables of one result in a notebook, and characters of a `repr`.
MOST_BYTES, MOST_LINE = 90_000, 200


def plain(value: Any) -> Any:
    """The value as JSON can hold it: named tuples and dataclasses as objects, by field name."""
    if isinstance(value, Shown) and not isinstance(value, Rows):
        return value.to_dict()
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if is_dataclass(value) and not isinstance(value, type):
        return by_field(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):  # names may hold half a surrogate pair, which JSON cannot
        return value.encode("utf-8", "replace").decode()
    return value


def by_field(value: Any) -> dict[str, Any]:
    """A dataclass as JSON can hold it."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


class Described:
    """A value that says in a line what it is. Its dataclass is made with repr=False, or the fields would be printed whole."""

    __slots__ = ()

    def described(self) -> str:
        """What it is, without its type."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return cut(f"{type(self).__name__}({cut(self.described(), MOST_LINE - len(type(self).__name__) - 2)})", MOST_LINE)

    def _repr_html_(self) -> str:
        return f"<strong>{escape(type(self).__name__)}</strong> <span>{escape(cut(self.described(), MOST_LINE))}</span>"


class Shown(Described):
    """A result that a notebook shows as tables, with units, in at most 100 kB."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything in it as JSON can hold it, by the names that the command line's --json has."""
        return by_field(self)

    def to_arrow(self) -> Any:
        """One row, as a pyarrow.Table; what is nested stays so. LumosError where pyarrow is not installed."""
        return _arrow(self._records())

    def to_pandas(self) -> Any:
        """One row, as a pandas.DataFrame; what is nested stays so. LumosError where pandas is not installed."""
        return _pandas(self._records())

    def described(self) -> str:
        """Its simple fields, and how many entries the others have."""
        return ", ".join(_in_line(self.to_dict()))

    def _repr_html_(self) -> str:
        return _html(type(self).__name__, self.to_dict())

    def _records(self) -> list[dict[str, Any]]:
        return [self.to_dict()]


class Rows(tuple[T_co, ...], Shown):
    """A tuple of results that is shown as one table, and converts to one: a row for each."""

    __slots__ = ()

    def described(self) -> str:
        """How many there are, and of what."""
        return f"{len(self)} of {type(self[0]).__name__}" if self else "none"

    def __repr__(self) -> str:  # a tuple's own would come first
        return Described.__repr__(self)

    def to_dict(self) -> dict[str, Any]:
        """The rows, as JSON can hold them."""
        return {"rows": plain(self)}

    def _repr_html_(self) -> str:
        return _table(plain(self[:MOST_ROWS]), len(self), MOST_BYTES)

    def _records(self) -> list[dict[str, Any]]:
        return [row if isinstance(row, dict) else {"value": row} for row in plain(self)]


def _in_line(value: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an object in few words; objects inside it only where all of their fields have units."""
    for key, item in value.items():
        if isinstance(item, dict) and item and all(quantity(inner).units for inner in item):
            yield from _in_line(item)
        elif isinstance(item, (list, dict)):
            yield f"{len(item)} {key}"
        elif item is not None:
            yield f"{quantity(key).name}={_with_unit(key, item)}"


def cut(text: str, most: int) -> str:
    """The text, on one line and of at most that many characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _arrow(rows: list[dict[str, Any]]) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise LumosError("Arrow tables need pyarrow, which is not installed: pip install 'lumos-trace[arrow]'") from error
    return pyarrow.Table.from_pylist([_without_empty(row) for row in rows])


def _pandas(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise LumosError("data frames need pandas, which is not installed: pip install pandas") from error
    return pandas.DataFrame.from_records(rows)


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """Empty objects are left out as missing: Arrow can hold them, but no file format that it is written to can."""
    return {key: None if value == {} else _without_empty(value) if isinstance(value, dict) else value for key, value in row.items()}


def _html(title: str, value: Mapping[str, Any]) -> str:
    """Simple fields as one table, then each nested sequence or object as one of its own, while there is room."""
    simple = {key: item for key, item in value.items() if not isinstance(item, (list, dict))}
    nested = {key: item for key, item in value.items() if isinstance(item, (list, dict)) and item}
    facts = [(quantity(key).name, _with_unit(key, item)) for key, item in list(simple.items())[: 2 * MOST_ROWS]]
    parts = [f"<strong>{escape(title)}</strong>", _cells((), facts)]
    left = MOST_BYTES - _bytes("".join(parts))
    for key, item in nested.items():
        name = escape(cut(key, MOST_TEXT))
        table = _table(item, len(item), left) if isinstance(item, list) else _pairs(key, item, left)
        part = f"<details><summary>{name} ({len(item):,})</summary>{table}</details>"
        if _bytes(part) > left:
            parts.append(f"<p>{name}: {len(item):,} not shown</p>")
            break
        parts.append(part)
        left -= _bytes(part)
    return "".join(parts)


def _pairs(key: str, value: Mapping[str, Any], room: int) -> str:
    """The entries of an object, one a row, in the unit that its own name or theirs say."""
    rows = [(name, item) for name, item in list(_flat(value).items())[:MOST_ROWS]]
    shown = [(cut(quantity(name).name, MOST_TEXT), _with_unit(name if quantity(name).units else key, item)) for name, item in rows]
    more = f"<p>… and {len(value) - len(rows):,} more</p>" if len(value) > len(rows) else ""
    text = _cells((), shown) + more
    return text if _bytes(text) <= room else ""


def _table(rows: Sequence[Any], total: int, room: int) -> str:
    """The first of `total` rows, as many as have room (in bytes)."""
    flat = [_flat(row) if isinstance(row, dict) else {"": row} for row in rows[:MOST_ROWS]]
    while True:
        columns = list(dict.fromkeys(key for row in flat for key in row))[:MOST_COLUMNS]
        heads, scaled = zip(*(_column(key, [row.get(key) for row in flat]) for key in columns), strict=True) if columns else ((), ())
        more = f"<p>… and {total - len(flat):,} more</p>" if total > len(flat) else ""
        text = _cells(heads, zip(*scaled, strict=True)) + more
        if _bytes(text) <= room or len(flat) < 2:
            return text
        flat = flat[: len(flat) // 2]


def _column(key: str, values: Sequence[Any]) -> tuple[str, list[str]]:
    """A column's head with its unit, and its cells in that unit."""
    found = quantity(key)
    numbers = [value * found.scale for value in values if _is_number(value)]
    if not found.units or not numbers:
        return cut(found.name, MOST_TEXT), [_cell(value) for value in values]
    unit, size = shared_unit(found.units, numbers)
    head = f"{cut(found.name, MOST_TEXT)} ({unit})"
    return head, [f"{value * found.scale / size:,.{2 if size > 1 else 0}f}" if _is_number(value) else _cell(value) for value in values]


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as columns of dotted names."""
    out: dict[str, Any] = {}
    for key, value in row.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return out


def _cells(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _with_unit(key: str, value: Any) -> str:
    """One value of a field, with the unit that the field's name says."""
    found = quantity(key)
    return with_unit(value, found) if found.units and _is_number(value) else _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if _is_number(value) else cut(f"{value}", MOST_TEXT)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
