"""The recorded traces with the shapes and types that the inputs of operators have after a change: of sizes, of what each rank has a part
of, of the number format.

The rows stay what they are, with their measured times: only their inputs change, so that what is worked out from these (arithmetic, bytes,
tensors) is that of the changed job. What an operator was told in other arguments, such as the sizes of a view, stays.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import equal_rows
from lumos.segment.rank import recordings_of
from lumos.segment.sizes import Resized, Sizes
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout, Rewrites
    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.table import Shape
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Int64, Job, Trace


def after_both(before: Sizes, old: Sizes, new: Sizes) -> Sizes:
    """The sizes of a rank's part after two changes: `before` after the first, and the second makes `new` of the recorded `old`."""
    return Sizes(*(b if n == o else b * n // o if o else n for b, o, n in zip(before, old, new, strict=True)))


def reshaped(job: Job, layout: MeasuredLayout) -> Job:
    """The job whose traces have the shapes and types of the layout; the same where it has the recorded ones."""
    if not layout.sizes and not layout.rewritten:
        return job
    return replace(job, traces=tuple(_reshaped(layout, rank) for rank in recordings_of(layout.segmentation, job)))


def _reshaped(layout: MeasuredLayout, rank: RankRecording) -> Trace:
    trace = rank.trace
    column, types = trace.args.get("Input Dims"), trace.args.get("Input type")
    if column is None:
        return trace
    shown = OperatorsNow(layout, rank)
    strings, values = list(trace.strings), column.values.copy()
    numbers = {text: i for i, text in enumerate(strings)}
    kinds = types.values.copy() if types is not None else values[:0]
    at = dict(zip(types.rows.tolist(), range(len(kinds)), strict=True)) if types is not None else {}

    def number(text: str) -> int:
        if numbers.setdefault(text, len(strings)) == len(strings):
            strings.append(text)
        return numbers[text]

    dims = column.values.astype(np.int64)
    for mine in equal_rows(shown.kinds(column.rows.astype(np.int64)), dims):
        row, text = int(column.rows[mine[0]]), trace.strings[dims[mine[0]]]
        new, was = shown[row], shown.recorded(row)
        values[mine] = number(_text(text, iter(new.shapes)))
        for i in (at[r] for r in column.rows[mine].tolist() if r in at) if new.dtypes != was.dtypes else ():
            kinds[i] = number(_types(text, trace.strings[int(kinds[i])], new.dtypes))
    changed = {"Input Dims": replace(column, values=values)}
    if types is not None:
        changed["Input type"] = replace(types, values=kinds)
    return replace(trace, strings=strings, args={**trace.args, **changed})


class OperatorsNow:
    """The operators of a rank after the changes of a layout, by their rows. change: of its sizes; None where they are as recorded."""

    def __init__(self, layout: MeasuredLayout, rank: RankRecording) -> None:
        self._shapes, self._rewritten = rank.shapes, layout.rewritten.get(rank.position, {})
        self.change = Resized(rank.trace, rank.sizes, layout.sizes[rank.position]) if layout.sizes else None
        self._known: dict[tuple[int, int, tuple[Rewrites, ...]], tuple[ShapedOperator, ...]] = {}

    def kinds(self, rows: Int64) -> Int64:
        """A number for each of `rows`, equal where the operators are the same before and after all changes."""
        axes = self.change.axes.of_row[rows] if self.change is not None else np.zeros_like(rows)
        several: dict[tuple[Rewrites, ...], int] = {}
        rewrites = np.zeros_like(rows)
        if self._rewritten:
            rewrites[:] = [several.setdefault(self._rewritten.get(row, ()), len(several)) for row in rows.tolist()]
        by_axes = axes.astype(np.int64) * (len(several) + 1) + rewrites
        numbers: Int64 = by_axes * len(self._shapes.operators) + self._shapes.of_row[rows]
        return numbers

    def recorded(self, row: int) -> ShapedOperator:
        """The operator of a row that has shapes, as recorded."""
        return self._shapes.operators[int(self._shapes.of_row[row])]

    def __getitem__(self, row: int) -> ShapedOperator:
        """The operator of a row that has shapes."""
        return self.readings(row)[0]

    def readings(self, row: int) -> tuple[ShapedOperator, ...]:
        """What the operator of a row most likely is, and what else it may be: by another reading of its shapes (`Resized.staying`), or by a
        change that is not sure."""
        steps = self._rewritten.get(row, ())
        key = int(self._shapes.of_row[row]), int(self.change.axes.of_row[row]) if self.change is not None else 0, steps
        if key not in self._known:
            recorded = self.recorded(row)
            sizes_read = [] if self.change is None else [c for c in (self.change, self.change.staying) if c is not None]
            likely = [change.at(row, recorded) for change in sizes_read] or [recorded]
            for rewrites in steps:
                likely = [rewrite(recorded, o) for o in likely for rewrite in rewrites]
            self._known[key] = tuple(dict.fromkeys(likely))
        return self._known[key]


def _text(dims: str, shapes: Iterator[Shape]) -> str:
    """The shapes in the form of the text `dims`, in which an input may be a list of tensors."""

    def one(value: object) -> list[object]:
        if not isinstance(value, list) or all(isinstance(v, int) for v in value):
            return list(next(shapes))
        return [list(next(shapes)) for _ in value]

    return json.dumps([one(value) for value in json.loads(dims)], separators=(",", ":"))


def _types(dims: str, kinds: str, dtypes: Sequence[str]) -> str:
    """The types in the form of the text `kinds`, of inputs with the shapes `dims`; those of a list of tensors stay."""
    out, flat = json.loads(kinds), (DType.FP32.profiler_name if name in (DType.FP32, DType.TF32) else name for name in dtypes)
    for i, value in enumerate(json.loads(dims)[: len(out)]):
        listed = isinstance(value, list) and any(isinstance(v, list) for v in value)
        names = [next(flat) for _ in (value if listed else (value,))]
        out[i] = out[i] if listed else names[0]
    return json.dumps(out, separators=(",", ":"))
