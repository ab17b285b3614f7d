"""The layers of one forward pass: as repetition, or else one for every operator of a recurrent layer, or that holds weights."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.operators.shaped import is_recurrent, recurrence
from lumos.segment.dimensions import shapes_of
from lumos.segment.repetition import FEWEST_LAYERS, TWO_ALIKE, Run, alike, find_stacks
from lumos.trace.table import unique

if TYPE_CHECKING:
    from lumos.segment.units import Units
    from lumos.trace.table import Int64, Trace

#: Operators that hold weights.
WEIGHTED = re.compile(r"(aten::)?(conv(olution|\dd)?|cudnn_convolution|miopen_convolution|linear|addmm)$|ConvolutionBackward|te\.\w*linear")
#: How layers were found that are alike, so that more of them can be copied.
REPETITION, RECURRENT = "repetition", "recurrent operators"
#: A repetition is taken for the layers of a pass if it covers this share of it; otherwise operators with weights are the layers.
_LEAST_COVERED = 0.5


class PassLayers(NamedTuple):
    """The layers of a pass. layer: of each unit, -1 outside the layers. part: what each unit is outside them. stacks: how many layers
    each stack has. alike: how alike they are. how: how they were found, "" where there are none."""

    layer: Int64
    part: list[str]
    stacks: tuple[int, ...]
    alike: float
    how: str


def forward_layers(trace: Trace, u: Units, low: int, high: int) -> PassLayers:
    """The layers of a forward pass."""
    symbols = u.symbol[low:high].tolist()
    runs, recurrent = find_stacks(symbols), _recurrent(trace, u.row[low:high])
    if len(recurrent) > FEWEST_LAYERS and not _hold_others(runs, recurrent):
        similar = float(np.mean([symbols[a] == symbols[b] for a, b in pairwise(recurrent[:-1])]))
        part = ["embedding" if i < recurrent[0] else "head" for i in range(high - low)]
        return PassLayers(_from_bounds(recurrent, high - low), part, (len(recurrent) - 1,), similar, RECURRENT)
    if runs and _covered(trace, u.row[low:high], runs) >= _LEAST_COVERED:
        first, last = runs[0].bounds[0], runs[-1].bounds[-1]
        part = ["embedding" if i < first else "head" if i >= last else "between stacks" for i in range(high - low)]
        return PassLayers(layers_in(runs, high - low), part, tuple(run.layers for run in runs), _likeness(runs), REPETITION)
    weighted = [i for i in range(high - low) if WEIGHTED.match(trace.strings[trace.name[u.row[low + i]]])]
    if len(weighted) < 2:
        return PassLayers(np.full(high - low, -1, np.int64), ["forward"] * (high - low), (), 0.0, "")
    bounds = (*weighted, high - low)
    blocks = [Counter(symbols[a:b]) for a, b in pairwise(bounds)]
    similar = float(np.mean([alike(a, b) for a, b in pairwise(blocks)]))
    layer = _from_bounds(bounds, high - low)
    return PassLayers(layer, ["embedding"] * (high - low), (len(weighted),), similar, "operators with weights")


def _recurrent(trace: Trace, rows: Int64) -> tuple[int, ...]:
    """Where each layer begins that is an operator of a recurrent layer, and where the last ends, among `rows`; () where there is none.

    An operator for each direction makes a layer where the last reads twice the width of its own state: what both directions wrote.
    """
    if not any(is_recurrent(trace.strings[name]) for name in unique(trace.name[rows]).tolist()):
        return ()
    shapes = shapes_of(trace)
    calls = [(i, r) for i, at in enumerate(shapes.of_row[rows].tolist()) if at >= 0 and (r := recurrence(shapes.operators[at])) is not None]
    if not calls:
        return ()
    last = calls[-1][1]
    return (*(i for i, _ in calls[:: 2 if last.inputs[-1] == 2 * last.state[-1] else 1]), calls[-1][0] + 1)


def _hold_others(runs: tuple[Run, ...], recurrent: tuple[int, ...]) -> bool:
    """Whether layers that repeat are others than those of the recurrent operators, or hold more than these: as many, or none inside."""
    inside = any(run.bounds[0] <= at < run.bounds[-1] for run in runs for at in recurrent[:-1])
    return bool(runs) and (not inside or sum(run.layers for run in runs) == len(recurrent) - 1)


def _likeness(runs: tuple[Run, ...]) -> float:
    """How alike the layers of the stacks are, weighed by their layers; half as much in a stack of two."""
    total = sum(run.layers for run in runs)
    return sum(run.layers * run.alike * (TWO_ALIKE if run.layers == FEWEST_LAYERS else 1.0) for run in runs) / total


def _covered(trace: Trace, rows: Int64, runs: tuple[Run, ...]) -> float:
    """Share of the units of a pass (`rows` of the trace), or of their time, that the runs cover; the larger of the two."""
    inside = sum(int(trace.duration[rows[run.bounds[0] : run.bounds[-1]]].sum()) for run in runs)
    total = int(trace.duration[rows].sum())
    return max(sum(run.covered for run in runs), inside / total if total else 0.0)


def layers_in(runs: tuple[Run, ...], length: int) -> Int64:
    """The layer of each of `length` units, numbered through over the runs; -1 outside."""
    layer, first = np.full(length, -1, np.int64), 0
    for run in runs:
        own = _from_bounds(run.bounds, length)
        layer = np.where(own >= 0, first + own, layer)
        first += run.layers
    return layer


def _from_bounds(bounds: tuple[int, ...], length: int) -> Int64:
    layer = np.searchsorted(np.array(bounds), np.arange(length), "right") - 1
    return np.where(layer >= len(bounds) - 1, -1, layer)
