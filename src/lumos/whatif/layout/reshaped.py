"""The recorded traces with the shapes that their operators have after a change of sizes, or as a part that ranks share.

The rows stay what they are, with their measured times: only the shapes of their inputs change, so that what is worked out from shapes
(arithmetic, bytes, tensors) is that of the changed job. What an operator was told in other arguments, such as the sizes of a view, stays.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.segment.batch import shapes_of_weights
from lumos.segment.dimensions import Shapes, Sizes, sizes
from lumos.segment.products import factors
from lumos.segment.resized import Resize
from lumos.segment.segment import unit_at
from lumos.vocabulary import Phase
from lumos.whatif.layout.rescale import operator_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumos.cost.operators import Shape
    from lumos.segment.products import Product, ShapedOperator
    from lumos.trace.table import Int64, Job, Trace
    from lumos.whatif.layout.measured_layout import MeasuredLayout


def after_both(before: Sizes, old: Sizes, new: Sizes) -> Sizes:
    """The sizes of a rank's part after two changes: `before` after the first, and the second makes `new` of the recorded `old`."""
    return Sizes(*(b if n == o else b * n // o if o else n for b, o, n in zip(before, old, new, strict=True)))


def reshaped(job: Job, layout: MeasuredLayout) -> Job:
    """The job whose traces have the shapes of the layout; the same where it has the recorded ones."""
    if not layout.sizes and not layout.parts:
        return job
    return replace(job, traces=tuple(_reshaped(layout, position, trace) for position, trace in enumerate(job.traces)))


def _reshaped(layout: MeasuredLayout, position: int, trace: Trace) -> Trace:
    column = trace.args.get("Input Dims")
    if column is None:
        return trace
    shapes, old = Shapes(trace), sizes(trace)
    change = Resize(old, layout.sizes[position] if layout.sizes else old, shapes_of_weights(shapes.counted()))
    in_layer, update = _places(layout, position, trace, column.rows.astype(np.int64))
    parts = _parts_of_rows(layout, position, trace)
    strings, values = list(trace.strings), column.values.copy()
    place = {text: i for i, text in enumerate(strings)}
    known: dict[tuple[int, int, bool, bool, Product | None], int] = {}
    for i, row in enumerate(column.rows.tolist()):
        which, part = int(shapes.of_row[row]), parts.get(row)
        key = which, int(column.values[i]), bool(in_layer[i]), bool(update[i]), part
        if key not in known:
            o = shapes.operators[which]
            new = change.operator(o, key[2], key[3])
            text = _text(strings[key[1]], iter(new.shapes if part is None else _part(new, part)))
            known[key] = place.setdefault(text, len(strings))
            if known[key] == len(strings):
                strings.append(text)
        values[i] = known[key]
    return replace(trace, strings=strings, args={**trace.args, "Input Dims": replace(column, values=values)})


def _places(layout: MeasuredLayout, position: int, trace: Trace, rows: Int64) -> tuple[np.ndarray, np.ndarray]:
    """Whether each row is in a layer, and whether in the optimizer."""
    labels = layout.segmentation.unit_labels[position]
    if not labels:
        return np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    unit = unit_at(trace, layout.segmentation.units[position], rows)
    in_layer = np.array([label.layer >= 0 for label in labels], bool)
    update = np.array([label.phase == Phase.OPTIMIZER for label in labels], bool)
    return in_layer[unit], update[unit]


def _parts_of_rows(layout: MeasuredLayout, position: int, trace: Trace) -> Mapping[int, Product]:
    """The parts of multiplications by the rows of their operators."""
    if not layout.parts:
        return {}
    tasks, rows = operator_rows(layout.segmentation, position, trace, members(layout.segmentation.graph))
    return {row: layout.parts[task] for task, row in zip(tasks.tolist(), rows.tolist(), strict=True) if task in layout.parts}


def _part(o: ShapedOperator, part: Product) -> tuple[Shape, ...]:
    """The inputs of a multiplication of the sizes `part`."""
    found = factors(o)
    if found is None:
        return o.shapes
    out = list(o.shapes)
    rows = (part.m,) if len(out[found.first]) == 2 else out[found.first][:-1]
    out[found.first] = (*rows, part.k)
    out[found.second] = (part.n, part.k) if found.transposed else (part.k, part.n)
    return tuple(out)


def _text(dims: str, shapes: Iterator[Shape]) -> str:
    """The shapes in the form of the text `dims`, in which an input may be a list of tensors."""

    def one(value: object) -> list[object]:
        if not isinstance(value, list) or all(isinstance(v, int) for v in value):
            return list(next(shapes))
        return [list(next(shapes)) for _ in value]

    return json.dumps([one(value) for value in json.loads(dims)], separators=(",", ":"))
