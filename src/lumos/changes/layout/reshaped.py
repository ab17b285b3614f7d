"""The recorded traces with the shapes and types that the inputs of operators have after a change: of sizes, of what each rank has a part
of, of the number format.

The rows stay what they are, with their measured times: only their inputs change, so that what is worked out from these (arithmetic, bytes,
tensors) is that of the changed job. What an operator was told in other arguments, such as the sizes of a view, stays.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.segment.dimensions import shapes_of
from lumos.segment.sizes import Resized, Sizes, sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout, Rewrite
    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.table import Shape
    from lumos.trace.table import Job, Trace


def after_both(before: Sizes, old: Sizes, new: Sizes) -> Sizes:
    """The sizes of a rank's part after two changes: `before` after the first, and the second makes `new` of the recorded `old`."""
    return Sizes(*(b if n == o else b * n // o if o else n for b, o, n in zip(before, old, new, strict=True)))


def reshaped(job: Job, layout: MeasuredLayout) -> Job:
    """The job whose traces have the shapes and types of the layout; the same where it has the recorded ones."""
    if not layout.sizes and not layout.rewritten:
        return job
    return replace(job, traces=tuple(_reshaped(layout, position, trace) for position, trace in enumerate(job.traces)))


def _reshaped(layout: MeasuredLayout, position: int, trace: Trace) -> Trace:
    column, types = trace.args.get("Input Dims"), trace.args.get("Input type")
    if column is None:
        return trace
    shapes, old = shapes_of(trace), sizes(trace)
    change = Resized(trace, old, layout.sizes[position] if layout.sizes else old)
    strings, values = list(trace.strings), column.values.copy()
    place = {text: i for i, text in enumerate(strings)}
    known: dict[tuple[int, int, int, tuple[Rewrite, ...]], tuple[str, ShapedOperator]] = {}
    kinds = types.values.copy() if types is not None else values[:0]
    at = dict(zip(types.rows.tolist(), range(len(kinds)), strict=True)) if types is not None else {}

    def number(text: str) -> int:
        if place.setdefault(text, len(strings)) == len(strings):
            strings.append(text)
        return place[text]

    for i, row in enumerate(column.rows.tolist()):
        o, rewrites = shapes.operators[int(shapes.of_row[row])], layout.rewritten.get((position, row), ())
        key = int(shapes.of_row[row]), int(change.axes.of_row[row]), int(column.values[i]), rewrites
        if key not in known:
            new = change.at(row, o)
            for rewrite in rewrites:
                new = rewrite(o, new)
            known[key] = _text(trace.strings[key[2]], iter(new.shapes)), new
        dims, new = known[key]
        values[i] = number(dims)
        if new.dtypes != o.dtypes and row in at:
            kinds[at[row]] = number(_types(trace.strings[int(column.values[i])], trace.strings[int(kinds[at[row]])], new.dtypes))
    changed = {"Input Dims": replace(column, values=values)}
    if types is not None:
        changed["Input type"] = replace(types, values=kinds)
    return replace(trace, strings=strings, args={**trace.args, **changed})


def _text(dims: str, shapes: Iterator[Shape]) -> str:
    """The shapes in the form of the text `dims`, in which an input may be a list of tensors."""

    def one(value: object) -> list[object]:
        if not isinstance(value, list) or all(isinstance(v, int) for v in value):
            return list(next(shapes))
        return [list(next(shapes)) for _ in value]

    return json.dumps([one(value) for value in json.loads(dims)], separators=(",", ":"))


def _types(dims: str, kinds: str, dtypes: Sequence[str]) -> str:
    """The types in the form of the text `kinds`, of inputs with the shapes `dims`; those of a list of tensors stay."""
    out, flat = json.loads(kinds), iter(dtypes)
    for i, value in enumerate(json.loads(dims)[: len(out)]):
        listed = isinstance(value, list) and any(isinstance(v, list) for v in value)
        found = [next(flat) for _ in (value if listed else (value,))]
        out[i] = out[i] if listed else found[0]
    return json.dumps(out, separators=(",", ":"))
