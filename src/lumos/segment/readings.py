"""What a name of a setting can mean in a recording: every axis that is as long as a sequence may be, or what repeats as layers do.

A reading has a name of its own, `SIZE@OPERATOR.NUMBER`: the axis of that size which the operators of that name meet as the NUMBERth of
several. A recording always gives the same names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.operators.table import Shape, own_name
from lumos.segment.named_axes import names
from lumos.segment.pass_layers import REPETITION
from lumos.segment.program import axes_of
from lumos.segment.rank import weight_shapes
from lumos.trace.once import once_a_trace
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.operators.calls import OperatorCall
    from lumos.operators.symbols import Axis
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Trace

#: What speaks against layers that all multiply by the same weights.
SHARED = "they all multiply by the same weights"
#: How many operators show a reading.
_SHOWN = 3


class Reading(NamedTuple):
    """One meaning of a setting. value: what was recorded of it. operators: some that show it, with the shapes of their inputs. axes: of a
    size, () of anything else. why: what speaks against it, "" where nothing does."""

    name: str
    value: int
    operators: tuple[str, ...]
    axes: tuple[Axis, ...] = ()
    why: str = ""


@once_a_trace
def readings_of_sizes(trace: Trace) -> dict[str, tuple[Reading, ...]]:
    """What each size can mean; one reading where that is certain. A size that the trace does not show is left out."""
    axes = axes_of(trace)
    symbols, calls = axes.symbols, axes.program.calls
    number: dict[tuple[int, str], list[object]] = defaultdict(list)
    out: dict[str, tuple[Reading, ...]] = {}
    for key, several in names(trace).meanings.items():
        readings = []
        for meant, shown_by in several.items():
            size, operator = symbols.size(meant[0]), _short(calls[shown_by[0]].name) if shown_by else key
            same = number[size, operator]
            if symbols.key(meant[0]) not in same:
                same.append(symbols.key(meant[0]))
            name = f"{size}@{operator}.{same.index(symbols.key(meant[0]))}"
            readings.append(Reading(name, size, _described(calls, shown_by), meant))
        out[key] = tuple(readings)
    return out


def reading_of_layers(rank: RankRecording) -> Reading | None:
    """What the layers of a rank are that were found as repetition; None where none were. `why` says what makes them
    doubtful: no part reads what the part before it made, as tables of features beside each other, or all parts share one set of weights,
    as the steps of a loop over time do."""
    segmentation, trace = rank.segmentation, rank.trace
    layers = segmentation.layers
    if layers < 2 or segmentation.evidence.get("forward") != REPETITION:
        return None
    units, labels = rank.units, rank.labels
    of_layer: dict[int, list[int]] = defaultdict(list)
    for row, label in zip(units.row.tolist(), labels, strict=True):
        if label.phase == Phase.FORWARD and label.layer >= 0 and label.microbatch == 0:
            of_layer[label.layer].append(row)
    if len(of_layer) < 2:
        return None
    axes = axes_of(trace)
    shown = [next((row for row in rows if (o := axes[row]) is not None and weight_shapes(o)), rows[0]) for rows in of_layer.values()]
    names = [trace.strings[trace.name[row]] for row in shown]
    shapes = [_shapes(o.shapes) if (o := axes[row]) is not None else "" for row in shown]
    operators = tuple(f"{name} {shape}".strip() for name, shape in zip(names, shapes, strict=True))
    why = _no_flow(segmentation.stacks, trace, of_layer) or _one_set_of_weights(rank, of_layer)
    return Reading(f"{layers}@{_short(names[0])}.0", layers, operators[:_SHOWN], why=why)


def _no_flow(stacks: Sequence[int], trace: Trace, of_layer: dict[int, list[int]]) -> str:
    """The words for a stack of which no part reads what the part before it made; "" where there is none, or where that is unknown."""
    axes = axes_of(trace)
    layer_of_row = np.full(len(trace), -1, np.int64)
    for layer, own in of_layer.items():
        layer_of_row[own] = layer
    layer_of = layer_of_row[axes.program.rows].tolist()
    for number, call in enumerate(axes.program.calls):  # a call stands behind the one that it is in
        if layer_of[number] < 0 and call.parent >= 0:
            layer_of[number] = layer_of[call.parent]
    made = [(layer_of[number], layer_of[maker]) for number, makers in axes.inferred.makers.items() for maker in makers if maker >= 0]
    outermost = Counter(layer_of[number] for number, call in enumerate(axes.program.calls) if call.parent < 0 or layer_of[call.parent] < 0)
    if max((outermost[layer] for layer in of_layer), default=0) > 1 and all(layer != before for layer, before in made if layer >= 0):
        return ""  # where no operator of a part is seen to read from another one of it, no more is seen of what lies between parts
    reads = {layer for layer, before in made if before == layer - 1}
    firsts = accumulate((0, *stacks))
    alone = any(stack > 1 and reads.isdisjoint(range(first + 1, first + stack)) for first, stack in zip(firsts, stacks, strict=False))
    return "none of them reads what the one before it made" if alone and max(layer_of, default=-1) > 0 else ""


def _one_set_of_weights(rank: RankRecording, of_layer: dict[int, list[int]]) -> str:
    """The words for parts that multiply by the weights of the first one; "" where they have their own, or where that is unknown."""
    gathered = defaultdict[int, Counter[Shape]](Counter)
    for gradient in rank.gradients:
        gathered[gradient.layer][tuple(sorted(gradient.shape))] += 1
    first = min(of_layer)
    if not gathered[first] or any(gathered[layer] for layer in of_layer if layer != first):
        return ""
    axes = axes_of(rank.trace)
    used = Counter[Shape]()
    for row in of_layer[max(of_layer)]:
        o = axes[row]
        if o is not None:
            used.update(tuple(sorted(shape)) for shape in weight_shapes(o) if len(shape) > 1)
    return SHARED if used and set(used) <= set(gathered[first]) else ""


def _described(calls: Sequence[OperatorCall], numbers: Sequence[int]) -> tuple[str, ...]:
    """Some of the calls that show a reading, with their shapes."""
    described = dict.fromkeys(f"{calls[number].name} {_shapes(calls[number].shapes)}" for number in numbers)
    return tuple(described)[:_SHOWN]


def _shapes(shapes: Sequence[Shape]) -> str:
    return " ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes if shape)


def _short(name: str) -> str:
    """An operator's name as a reading has it: attention is one operator in all of its kinds."""
    base = own_name(name)
    return "attention" if "attention" in base else base
