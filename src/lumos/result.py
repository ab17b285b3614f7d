"""Results as tables: for notebooks, as JSON, as Arrow.

A result is a dataclass or a named tuple of plain values, others of its kind, and sequences of these. `Shown` gives it a
table in a notebook and `to_arrow()`; `Rows` gives the same to a sequence of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from lumos.errors import LumosError

#: Rows of a table in a notebook before the rest is only counted.
MOST_ROWS = 24


def plain(value: Any) -> Any:
    """The value as JSON can hold it: named tuples and dataclasses as objects, by field name."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, str):  # names may hold half a surrogate pair, which JSON cannot
        return value.encode("utf-8", "replace").decode()
    return value


class Shown:
    """A result that a notebook shows as tables."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _html(type(self).__name__, plain(self))

    def to_arrow(self) -> Any:
        """One row, as a pyarrow.Table; what is nested stays so. LumosError where pyarrow is not installed."""
        return _arrow([plain(self)])


class Rows(tuple[Any, ...], Shown):
    """A tuple of results that is shown as one table, and converts to one."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _table(plain(self))

    def to_arrow(self) -> Any:
        """A row for each, as a pyarrow.Table; what is nested stays so. LumosError where pyarrow is not installed."""
        return _arrow([row if isinstance(row, dict) else {"value": row} for row in plain(self)])


def _arrow(rows: list[dict[str, Any]]) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise LumosError("Arrow tables need pyarrow, which is not installed: pip install 'lumos-trace[arrow]'") from error
    return pyarrow.Table.from_pylist([_without_empty(row) for row in rows])


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """Empty objects are left out as missing: Arrow can hold them, but no file format that it is written to can."""
    return {key: None if value == {} else _without_empty(value) if isinstance(value, dict) else value for key, value in row.items()}


def _html(title: str, value: Mapping[str, Any]) -> str:
    """Simple fields as one table, then each nested sequence or object as one of its own."""
    simple = {key: item for key, item in value.items() if not isinstance(item, (list, dict))}
    nested = {key: item for key, item in value.items() if isinstance(item, (list, dict)) and item}
    parts = [f"<strong>{escape(title)}</strong>", _rows(("", ""), simple.items())]
    for key, item in nested.items():
        rows = item if isinstance(item, list) else [{"": name, "value": part} for name, part in item.items()]
        parts.append(f"<details><summary>{escape(key)} ({len(rows)})</summary>{_table(rows)}</details>")
    return "".join(parts)


def _table(rows: Sequence[Any]) -> str:
    flat = [_flat(row) if isinstance(row, dict) else {"": row} for row in rows[:MOST_ROWS]]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    more = f"<p>… and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return _rows(columns, ([row.get(key) for key in columns] for row in flat)) + more


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as columns of dotted names."""
    out: dict[str, Any] = {}
    for key, value in row.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return out


def _rows(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"
