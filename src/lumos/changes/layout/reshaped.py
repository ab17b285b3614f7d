"""The recorded traces with the shapes and types that the inputs of operators have after a change: of sizes, of what each rank has a part
of, of the number format.

The rows stay what they are, with their measured times: only their inputs change, so that what is worked out from these (arithmetic, bytes,
tensors) is that of the changed job. What an operator was told in other arguments, such as the sizes of a view, stays.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.operator_tasks import operator_tasks
from lumos.changes.layout.rescale import model_ratio
from lumos.segment.dimensions import shapes_of
from lumos.segment.sizes import Resized, Sizes, sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout, Rewrite
    from lumos.changes.layout.prices import Ratio
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.operators.table import Shape
    from lumos.trace.table import Int64, Job, Trace


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
    shown, recorded = OperatorsNow(layout, position, trace), shapes_of(trace)
    strings, values = list(trace.strings), column.values.copy()
    place = {text: i for i, text in enumerate(strings)}
    known: dict[tuple[_Same, int], str] = {}
    kinds = types.values.copy() if types is not None else values[:0]
    at = dict(zip(types.rows.tolist(), range(len(kinds)), strict=True)) if types is not None else {}

    def number(text: str) -> int:
        if place.setdefault(text, len(strings)) == len(strings):
            strings.append(text)
        return place[text]

    for i, row in enumerate(column.rows.tolist()):
        new, key = shown[row], (shown.same(row), int(column.values[i]))
        if key not in known:
            known[key] = _text(trace.strings[key[1]], iter(new.shapes))
        values[i] = number(known[key])
        if new.dtypes != recorded.operators[key[0].operator].dtypes and row in at:
            kinds[at[row]] = number(_types(trace.strings[int(column.values[i])], trace.strings[int(kinds[at[row]])], new.dtypes))
    changed = {"Input Dims": replace(column, values=values)}
    if types is not None:
        changed["Input type"] = replace(types, values=kinds)
    return replace(trace, strings=strings, args={**trace.args, **changed})


class _Same(NamedTuple):
    """What rows have in common that have the same operator before and after all changes: its numbers, and what becomes of it."""

    operator: int
    axes: int
    rewrites: tuple[Rewrite, ...]


class OperatorsNow:
    """The operators of a rank after the changes of a layout, by their rows."""

    def __init__(self, layout: MeasuredLayout, position: int, trace: Trace) -> None:
        old = sizes(trace)
        self._shapes, self._rewritten, self._position = shapes_of(trace), layout.rewritten, position
        self._change = Resized(trace, old, layout.sizes[position] if layout.sizes else old)
        self._known: dict[_Same, ShapedOperator] = {}

    def same(self, row: int) -> _Same:
        """What decides the operator of a row that has shapes."""
        rewrites = self._rewritten.get((self._position, row), ())
        return _Same(int(self._shapes.of_row[row]), int(self._change.axes.of_row[row]), rewrites)

    def __getitem__(self, row: int) -> ShapedOperator:
        """The operator of a row that has shapes."""
        key = self.same(row)
        if key not in self._known:
            recorded = self._shapes.operators[key.operator]
            new = self._change.at(row, recorded)
            for rewrite in key.rewrites:
                new = rewrite(recorded, new)
            self._known[key] = new
        return self._known[key]


def model_ratios(
    layout: MeasuredLayout, position: int, trace: Trace, rewrites: Mapping[int, Rewrite], accelerator: Accelerator
) -> Iterator[tuple[Int64, Ratio]]:
    """By what the time of operators is multiplied that become something else, as the layout has them now: the tasks of equal ones, and
    model(after) / model(before). rewrites: what becomes of their inputs, by row. Those that no model covers are left out."""
    shown, recorded = OperatorsNow(layout, position, trace), shapes_of(trace)
    tasks: dict[tuple[ShapedOperator, ShapedOperator], list[int]] = defaultdict(list)
    for task, row, _ in operator_tasks(layout.segmentation, position, trace).in_order(lambda o: o.shapes):
        if row in rewrites:
            tasks[shown[row], rewrites[row](recorded.operators[recorded.of_row[row]], shown[row])].append(task)
    for (before, after), mine in tasks.items():
        ratio = model_ratio(before, after, accelerator, accelerator)
        if ratio is not None:
            yield np.array(mine, np.int64), ratio


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
