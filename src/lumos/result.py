"""Results as tables: for notebooks, as JSON, as Arrow or pandas.

A result is a dataclass or a named tuple of plain values, other results, and sequences of these. `Shown` gives it a one-line
`repr`, a table in a notebook (below a drawing, where the result has a `bar` or a `curve`), and `to_dict`, `to_arrow` and `to_pandas`;
`Rows` gives the same to a sequence of results.
`Described` gives only the one-line `repr`, to values that are too large for tables (a job, a graph).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from lumos.drawings import Bar, Curve, draw_bars, draw_curves
from lumos.errors import LumosError
from lumos.extras import install
from lumos.units import quantity, shared_unit, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

T_co = TypeVar("T_co", covariant=True)

#: Largest table in a notebook: rows (of the rest only the number is shown), columns, and characters of a cell.
MOST_ROWS, MOST_COLUMNS, MOST_TEXT = 24, 24, 100
#: A longer list in a cell is counted, not written.
MOST_LISTED = 8
#: Largest size of all tables of one result in a notebook, in bytes, and of a `repr`, in characters.
MOST_BYTES, MOST_LINE = 90_000, 200


def plain(value: Any) -> Any:
    """The value in the types of JSON: named tuples and dataclasses become objects, keyed by field name."""
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
    if isinstance(value, str):  # names may contain half a surrogate pair, which JSON text cannot
        return value.encode("utf-8", "replace").decode()
    return value


def as_json(value: Any) -> bytes:
    """The value as JSON text. Half a surrogate pair, which a name in a trace or of a file may hold and the text cannot, becomes a "?"."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(plain(value))


def by_field(value: Any) -> dict[str, Any]:
    """A dataclass as an object of JSON types, keyed by field name."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


class Described:
    """A value whose `repr` is one line that describes it. A dataclass that uses this needs repr=False, or its own `repr` with all
    fields would take precedence."""

    __slots__ = ()

    def described(self) -> str:
        """The description, without the name of the type."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return cut(f"{type(self).__name__}({cut(self.described(), MOST_LINE - len(type(self).__name__) - 2)})", MOST_LINE)

    def _repr_html_(self) -> str:
        return f"<strong>{escape(type(self).__name__)}</strong> <span>{escape(cut(self.described(), MOST_LINE))}</span>"


class Shown(Described):
    """A result that a notebook shows as tables, with units, in at most 100 kB."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields in the types of JSON, by the names that the command line prints with --json."""
        return by_field(self)

    def to_arrow(self) -> Any:
        """A pyarrow.Table of one row, in which nested results are structs and lists. LumosError where pyarrow is not installed."""
        return _arrow(self._records())

    def to_pandas(self) -> Any:
        """A pandas.DataFrame of one row, in which nested results are dicts and lists. LumosError where pandas is not installed."""
        return _pandas(self._records())

    def described(self) -> str:
        """The plain fields with their values, and how many entries each of the other fields has."""
        return ", ".join(_in_line(self.to_dict()))

    def bar(self) -> Bar | None:
        """What a notebook draws above the table: a time by its parts. None, unless a type says otherwise: the table alone."""
        return None

    def curve(self) -> Curve | None:
        """The same for a result that is a curve over time."""
        return None

    def _repr_html_(self) -> str:
        drawn, said = _drawn([self]), self.to_dict()
        said = _timed(said) if "durations-modelled" in str(said.get("trust")) else said
        return drawn + _html(type(self).__name__, said, MOST_BYTES - _bytes(drawn))

    def _records(self) -> list[dict[str, Any]]:
        return [self.to_dict()]


class Rows(tuple[T_co, ...], Shown):
    """A tuple of results that is shown as, and converts to, one table with a row for each."""

    __slots__ = ()

    def described(self) -> str:
        """The number of results and their type."""
        return f"{len(self)} of {type(self[0]).__name__}" if self else "none"

    def __repr__(self) -> str:  # else that of tuple would be used
        return Described.__repr__(self)

    def to_dict(self) -> dict[str, Any]:
        """The rows, in the types of JSON."""
        return {"rows": plain(self)}

    def _repr_html_(self) -> str:
        drawn = _drawn(self)
        return drawn + _table(plain(self[:MOST_ROWS]), len(self), MOST_BYTES - _bytes(drawn))

    def _records(self) -> list[dict[str, Any]]:
        return [row if isinstance(row, dict) else {"value": row} for row in plain(self)]


def _timed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by names that are true of a job which no device ran: nothing of it was measured."""
    names = {key: "kept" if key == "measured" else key.replace("measured", "modelled") for key in value}
    return {names[key]: _timed(item) if isinstance(item, dict) else item for key, item in value.items()}


def _in_line(value: Mapping[str, Any]) -> Iterator[str]:
    """Short texts for the fields of an object. The fields of a nested object are included where all of them have units; else
    only their number is given."""
    for key, item in value.items():
        if isinstance(item, dict) and item and all(quantity(inner).units for inner in item):
            yield from _in_line(item)
        elif isinstance(item, (list, dict)):
            yield f"{len(item)} {key}"
        elif item is not None:
            yield f"{quantity(key).name}={_with_unit(key, item)}"


def cut(text: str, most: int) -> str:
    """The text on one line, cut to at most `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _arrow(rows: list[dict[str, Any]]) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise LumosError(f"Arrow tables need pyarrow, which is not installed: {install('arrow')}") from error
    return pyarrow.Table.from_pylist([_without_empty(row) for row in rows])


def _pandas(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise LumosError("data frames need pandas, which is not installed: pip install pandas") from error
    return pandas.DataFrame.from_records(rows)


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """The row with empty objects replaced by None: Arrow can hold them, but the file formats that it is written to cannot."""
    return {key: None if value == {} else _without_empty(value) if isinstance(value, dict) else value for key, value in row.items()}


def _drawn(results: Sequence[Any]) -> str:
    """The bars and the curves of results; nothing for results that have none."""
    known = [result for result in results if isinstance(result, Shown)]
    curves = [curve for result in known if (curve := result.curve()) is not None]
    return draw_bars([bar for result in known if (bar := result.bar()) is not None]) + draw_curves(curves)


def _html(title: str, value: Mapping[str, Any], most_bytes: int) -> str:
    """A table of the plain fields, then a table for each nested sequence or object, as long as `most_bytes` suffice."""
    simple = {key: item for key, item in value.items() if not isinstance(item, (list, dict))}
    nested = {key: item for key, item in value.items() if isinstance(item, (list, dict)) and item}
    facts = [(quantity(key).name, _with_unit(key, item)) for key, item in list(simple.items())[: 2 * MOST_ROWS]]
    parts = [f"<strong>{escape(title)}</strong>", _cells((), facts)]
    left = most_bytes - _bytes("".join(parts))
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


def _pairs(key: str, value: Mapping[str, Any], most_bytes: int) -> str:
    """A table with a row for each entry of an object, in the unit of the entry's name or else of the object's name `key`.

    Empty where the table is longer than `most_bytes`.
    """
    rows = [(name, item) for name, item in list(_flat(value).items())[:MOST_ROWS]]
    shown = [(cut(quantity(name).name, MOST_TEXT), _with_unit(name if quantity(name).units else key, item)) for name, item in rows]
    more = f"<p>… and {len(value) - len(rows):,} more</p>" if len(value) > len(rows) else ""
    text = _cells((), shown) + more
    return text if _bytes(text) <= most_bytes else ""


def _table(rows: Sequence[Any], total: int, most_bytes: int) -> str:
    """A table of the first of `total` rows, of as many as fit into `most_bytes` (at least one)."""
    flat = [_flat(row) if isinstance(row, dict) else {"": row} for row in rows[:MOST_ROWS]]
    while True:
        columns = list(dict.fromkeys(key for row in flat for key in row))[:MOST_COLUMNS]
        heads, scaled = zip(*(_column(key, [row.get(key) for row in flat]) for key in columns), strict=True) if columns else ((), ())
        more = f"<p>… and {total - len(flat):,} more</p>" if total > len(flat) else ""
        text = _cells(heads, zip(*scaled, strict=True)) + more
        if _bytes(text) <= most_bytes or len(flat) < 2:
            return text
        flat = flat[: len(flat) // 2]


def _column(key: str, values: Sequence[Any]) -> tuple[str, list[str]]:
    """A column's head with its unit, and its cells in that unit."""
    measure = quantity(key)
    numbers = [value * measure.scale for value in values if _is_number(value)]
    if not measure.units or not numbers:
        return cut(measure.name, MOST_TEXT), [_cell(value) for value in values]
    unit, size = shared_unit(measure.units, numbers)
    head = f"{cut(measure.name, MOST_TEXT)} ({unit})"
    return head, [f"{value * measure.scale / size:,.{2 if size > 1 else 0}f}" if _is_number(value) else _cell(value) for value in values]


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The row with nested objects flattened into entries of dotted names."""
    out: dict[str, Any] = {}
    for key, value in row.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return out


def _cells(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _with_unit(key: str, value: Any) -> str:
    """One value of a field, with the unit that the field's name gives."""
    measure = quantity(key)
    return with_unit(value, measure) if measure.units and _is_number(value) else _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)) and len(value) > MOST_LISTED:
        return f"{len(value):,} values"
    return f"{value:,}" if _is_number(value) else cut(f"{value}", MOST_TEXT)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
