"""The native scanner compared with Python's json in every column, for any legal spelling and any division into blocks."""

import gzip
import json
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lumos._scan import Scanned, Scanner
from lumos.trace import kineto_schema as schema
from lumos.trace.kineto import column_names, new_scanner, pairs
from lumos.trace.string_table import StringTable

# ---- the oracle: slow, plain Python over json ----


class Number(str):
    """A JSON number as it is written."""


def _last_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        out.pop(key, None)
        out[key] = value
    return out


def parse(text: bytes | str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_last_wins)


_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")


def _integer(value: Any, scale: int = 1) -> int | None:
    """The exact value times `scale`, rounded half to even; None where it is not a number or exceeds 64 bits."""
    if isinstance(value, bool):
        return int(value) if scale == 1 else None
    if not isinstance(value, str):
        return None
    if not isinstance(value, Number):
        value = value.strip(" ").removeprefix("stream ")
        if scale == 1 and _HEXADECIMAL.fullmatch(value):
            return _wrapped(int(value, 16))
    if not _DECIMAL.fullmatch(value):
        return None
    exact = Fraction(value) * scale
    if scale == 1 and exact.denominator != 1:
        return None
    return _wrapped(round(exact))


def _wrapped(number: int) -> int | None:
    if not -(1 << 63) <= number < 1 << 64:
        return None
    return number if number < 1 << 63 else number - (1 << 64)


def _time(value: Any) -> int | None:
    number = _integer(value, 1000)
    return None if number is None or (number < 0) != (value.strip(" ").startswith("-") and number != 0) else number


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _argument(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "int":
        return _integer(value)
    if kind == "float":
        return float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else None
    return value if isinstance(value, list | dict) else _text(value)


def expected(document: Any) -> list[dict[str, Any]]:
    """One dict per row."""
    events = document if isinstance(document, list) else document["traceEvents"]
    kinds = dict(column_names())
    rows = []
    for event in events:
        if not isinstance(event, dict) or not event:
            continue
        phase = _text(event.get("ph"))
        flow = phase in ("s", "t", "f")
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        start, duration = _time(event.get("ts")), _time(event.get("dur"))
        row: dict[str, Any] = {
            "start": start or 0,
            "duration": max(duration or 0, 0),
            "name": _text(event.get("name")),
            "class": (phase, _text(event.get("cat"))),
            "lane": (_text(event.get("pid")), _text(event.get("tid"))),
            "correlation": None,
            "external_id": None,
            "args": {},
        }
        if flow:
            row["correlation"] = _integer(event.get("id"))
        elif event.get("id") is not None:
            row["args"]["id"] = _argument("int", event["id"])
        for key, value in args.items():
            if key in schema.CORRELATION:
                row["correlation"] = row["correlation"] if flow else _integer(value)
            elif key in schema.EXTERNAL_ID:
                row["external_id"] = _integer(value)
            else:
                name = schema.SPELLINGS.get(key, key)
                if name in kinds and (name != "id"):
                    row["args"][name] = _argument(kinds[name], value)
        row["args"] = {name: value for name, value in row["args"].items() if value is not None}
        row["correlation"] = -1 if row["correlation"] is None else row["correlation"]
        row["external_id"] = -1 if row["external_id"] is None else row["external_id"]
        rows.append(row)
    return rows


# ---- the scanner's columns as rows ----


def scan(text: bytes, cuts: list[int] | None = None, repair: bool = False) -> Scanned:
    scanner = new_scanner(repair)
    bounds = [0, *sorted(cuts or []), len(text)]
    for a, b in pairwise(bounds):
        scanner.feed(text[a:b])
    assert scanner.finish()
    return scanner.take()


def rows_of(scanned: Scanned) -> list[dict[str, Any]]:
    strings = StringTable(scanned.strings.text, scanned.strings.offsets)
    lanes, classes = pairs(scanned.lanes), pairs(scanned.classes)
    rows: list[dict[str, Any]] = [
        {
            "start": int(scanned.start[i]),
            "duration": int(scanned.duration[i]),
            "name": strings[int(scanned.name[i])],
            "class": classes[scanned.class_[i]],
            "lane": lanes[scanned.lane[i]],
            "correlation": int(scanned.correlation[i]),
            "external_id": int(scanned.external_id[i]),
            "args": {},
        }
        for i in range(len(scanned.start))
    ]
    for (name, kind), column in zip(column_names(), scanned.columns, strict=True):
        assert (np.diff(column.rows) > 0).all()
        for row, value in zip(column.rows.tolist(), column.values.tolist(), strict=True):
            rows[row]["args"][name] = strings[value] if kind == "string" else value
    return rows


def assert_same(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        for key, value in other["args"].items():
            if isinstance(value, list | dict):  # kept as compact JSON text
                one["args"][key] = parse(one["args"][key].encode("utf-8", "surrogatepass"))
        assert one == other


# ---- odd but legal JSON ----

_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "/": "\\/"}


@dataclass(frozen=True)
class Raw:
    """A number in this spelling."""

    text: str


class Writer:
    """Writes a value as JSON in some legal way, chosen at random. Objects are lists of pairs, so keys may repeat."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def space(self) -> str:
        return self.random.choice(["", "", "", " ", "\n  ", "\t", "\r\n", " " * 40])

    def string(self, text: str) -> str:
        out = []
        for c in text:
            code = ord(c)
            if c in '"\\':
                out.append("\\" + c)
            elif c in _ESCAPES and (code < 0x20 or self.random.random() < 0.3) and self.random.random() < 0.7:
                out.append(_ESCAPES[c])
            elif code < 0x20 or 0xD800 <= code < 0xE000 or self.random.random() < 0.1:
                units = [code] if code < 0x10000 else [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]
                style = "\\u%04x" if self.random.random() < 0.5 else "\\u%04X"
                out += [style % unit for unit in units]
            else:
                out.append(c)
        return '"' + "".join(out) + '"'

    def write(self, value: Any) -> str:
        s = self.space
        if isinstance(value, Raw):
            return value.text
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, tuple):  # an object
            return "{" + s() + ",".join(s() + self.string(k) + s() + ":" + s() + self.write(v) + s() for k, v in value) + "}"
        if isinstance(value, list):
            return "[" + s() + ",".join(s() + self.write(v) + s() for v in value) + "]"
        return json.dumps(value)


digits = st.from_regex(r"0|[1-9][0-9]{0,17}", fullmatch=True)
numbers = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["", "-"]), digits),
    st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), digits, st.from_regex(r"[0-9]{1,12}", fullmatch=True)),
    st.builds("{}.{}{}{}".format, digits, st.just("5"), st.sampled_from(["e", "E+", "E", "e-"]), st.integers(0, 25)),
    st.sampled_from(["18446744073709551615", "9223372036854775808", "-9223372036854775808", "18446744073709551616"]),
    st.sampled_from(["1e3", "0.0005", "2.5e-3"]),
).map(Raw)
times = st.one_of(
    st.builds("{}.{:03d}".format, st.integers(0, 10**13), st.integers(0, 999)).map(Raw),
    st.integers(0, 10**16).map(lambda i: Raw(str(i))),
    numbers,
)
texts = st.one_of(st.text(max_size=20), st.sampled_from(["", "aten::mm", "stream 7", "7", "0x1f", " 12 ", "a" * 70]))
scalars = st.one_of(numbers, texts, st.booleans(), st.none())
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.lists(st.tuples(texts, inner), max_size=3).map(tuple)),
    max_leaves=8,
)
argument_keys = st.one_of(
    st.sampled_from([n for n, _ in column_names() if n != "id"] + [*schema.SPELLINGS, *schema.CORRELATION, *schema.EXTERNAL_ID]),
    st.sampled_from(["Call stack", "unknown", ""]),
    texts,
)
arguments = st.lists(st.tuples(argument_keys, nested), max_size=8).map(tuple)


@st.composite
def events(draw: st.DrawFn) -> Any:
    fields: list[tuple[str, Any]] = [
        ("ph", draw(st.sampled_from(["X", "X", "i", "C", "s", "f", "t", "M", "b", "e"]))),
        ("cat", draw(st.one_of(st.sampled_from(["cpu_op", "kernel", "ac2g"]), texts))),
        ("name", draw(st.one_of(texts, scalars))),
        ("pid", draw(st.one_of(st.integers(0, 9).map(lambda i: Raw(str(i))), texts))),
        ("tid", draw(st.one_of(st.integers(0, 9).map(lambda i: Raw(str(i))), texts))),
        ("ts", draw(st.one_of(times, nested))),
        ("dur", draw(st.one_of(times, nested))),
        ("id", draw(scalars)),
        ("args", draw(st.one_of(arguments, arguments, nested))),
        ("extra", draw(nested)),
    ]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=14))  # any order, some absent, some twice
    ordered = draw(st.sampled_from([fields, chosen, chosen[::-1]]))
    return draw(st.one_of(st.just(tuple(ordered)), st.just(tuple(ordered)), nested))


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    writer = Writer(draw(st.randoms(use_true_random=False)))
    rows = draw(st.lists(events(), max_size=12))
    if draw(st.booleans()):
        text = writer.space() + writer.write(rows) + writer.space()
    else:
        header = draw(st.lists(st.tuples(st.sampled_from(["schemaVersion", "distributedInfo", "traceName", "x"]), nested), max_size=4))
        place = draw(st.integers(0, len(header)))
        members: list[tuple[str, Any]] = [*header[:place], ("traceEvents", rows), *header[place:]]
        if draw(st.booleans()):
            members.insert(0, ("traceEvents", draw(st.lists(events(), max_size=3))))
        text = writer.space() + writer.write(tuple(members)) + writer.space()
    return text.encode()


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(documents(), st.data())
def test_any_legal_json_gives_the_columns_that_json_gives(text: bytes, data: st.DataObject) -> None:
    document = parse(text)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    scanned = scan(text, cuts)
    if isinstance(document, dict):
        got = {key.decode("utf-8", "surrogatepass"): parse(value) for key, value in scanned.header}
        assert got == {key: value for key, value in document.items() if key != "traceEvents"}
    assert_same(rows_of(scanned), expected(document))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(documents())
def test_repair_leaves_legal_json_alone(text: bytes) -> None:
    scanned = scan(text, repair=True)
    assert not any(scanned.repairs.values())
    assert_same(rows_of(scanned), expected(parse(text)))


def _public_traces() -> list[Path]:
    root = os.environ.get("LUMOS_TRACES")
    return sorted(Path(root).glob("**/*.json.gz")) if root else []


@pytest.mark.skipif(not os.environ.get("LUMOS_TRACES"), reason="LUMOS_TRACES is not set")
def test_public_traces_give_the_columns_that_json_gives() -> None:
    compared = 0
    for path in _public_traces():
        text = gzip.decompress(path.read_bytes())
        if len(text) > int(os.environ.get("LUMOS_LARGEST", 3_000_000)) or b'"traceEvents"' not in text:
            continue
        random = Random(path.name)
        scanned = scan(text, [random.randrange(len(text)) for _ in range(30)])
        assert_same(rows_of(scanned), expected(parse(text)))
        compared += 1
    assert compared >= 10


def test_a_column_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="valid: int, float, string"):
        Scanner(["int", "texts"], [], 0)
