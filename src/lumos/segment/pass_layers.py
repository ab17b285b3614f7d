"""The passes of a rank, and the layers of a forward pass.

The layers are found as repetition; else there is one for every operator of a recurrent layer, or that holds weights. A pass begins where
the phase changes, or after a transfer from or to another pipeline stage. A pass does heavy work (multiplications, convolutions, attention):
units between two phases that do none belong to the pass beside them, whatever their names suggest.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.operators.shaped import is_recurrent, recurrence
from lumos.segment.program import multiplying, shapes_of
from lumos.segment.repetition import FEWEST_LAYERS, TWO_ALIKE, Run, alike, find_stacks
from lumos.segment.units import transfers
from lumos.trace.table import unique
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.segment.units import Units
    from lumos.trace.table import Int64, Trace

#: Operators that multiply, convolve or attend, in either direction.
_HEAVY = re.compile(
    r"linear|matmul|\w*mm\b|conv|attention|lstm|gru|rnn|gemm|einsum|(Linear|Mm|Bmm|Addmm|Convolution)\w*Backward", re.IGNORECASE
)
_HEAVY_KERNELS = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)
#: Phases of a backward pass.
_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)


def heavy_units(trace: Trace, u: Units) -> NDArray[np.bool_]:
    """Which units do heavy work, by their names, or because they launch a multiplication."""
    if u.from_kernels:
        of_name = {i: kernel_class(trace.strings[i]) in _HEAVY_KERNELS for i in unique(trace.name[u.row]).tolist()}
    else:
        known = multiplying(trace)
        of_name = {i: i in known or bool(_HEAVY.search(trace.strings[i])) for i in unique(trace.name[u.row]).tolist()}
    return np.array([of_name[i] for i in trace.name[u.row].tolist()], bool)


def phases_of_passes(u: Units, step: Int64, heavy: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The phase of each unit, where runs of forward units without heavy work that follow a backward pass belong to it if it goes on after
    them, and else to the optimizer; and what stands between a backward pass and a forward pass that is the one before it again belongs to
    the backward pass, which it ends (DDP hands out its reduced gradients). Where no forward unit does heavy work, the phases stay."""
    phase = u.phase.copy()
    if not (heavy & (phase == Phase.FORWARD)).any():
        return phase
    edges = np.flatnonzero((np.diff(phase) != 0) | (np.diff(step) != 0)) + 1
    lows, highs = np.concatenate(([0], edges)), np.concatenate((edges, [len(phase)]))
    last = slice(0, 0)
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        follows = low > 0 and step[low - 1] == step[low] and u.phase[low - 1] in (*_BACKWARD, Phase.OPTIMIZER)
        if u.phase[low] != Phase.FORWARD:
            continue
        before, last = last, slice(low, high)
        if not follows:
            continue
        if heavy[low:high].any():
            if u.phase[low - 1] in _BACKWARD:
                begins = high - _same_end(u.symbol[before], u.symbol[last])
                if not (heavy[low:begins] | (u.number[low:begins] >= 0)).any():
                    phase[low:begins] = Phase.BACKWARD
            continue
        goes_on = high < len(phase) and step[high] == step[low] and u.phase[high] in _BACKWARD and u.phase[low - 1] in _BACKWARD
        phase[low:high] = Phase.BACKWARD if goes_on else Phase.OPTIMIZER
    return phase


def _same_end(a: Int64, b: Int64) -> int:
    """How many symbols at the end of two passes are the same."""
    length = min(len(a), len(b))
    other = np.flatnonzero(a[len(a) - length :] != b[len(b) - length :])
    return length - 1 - int(other[-1]) if len(other) else length


def microbatches_of(trace: Trace, u: Units, step: Int64, heavy: NDArray[np.bool_]) -> Int64:
    """The number of the pass that each unit belongs to: forward and backward passes are counted separately and from 0 in every step."""
    backward, number = _passes(transfers(trace, u.row), u.phase, step)
    if not heavy.any():
        return np.maximum(number, 0)
    out = np.zeros(len(u), np.int64)
    for direction in (False, True):
        for mark in unique(step):
            mine = np.flatnonzero((backward == direction) & (step == mark) & (number >= 0))
            if not len(mine):
                continue
            works = np.zeros(int(number[mine].max()) + 1, bool)
            in_pass = np.isin(u.phase[mine], _BACKWARD if direction else (Phase.FORWARD,))
            works[number[mine[heavy[mine] & in_pass]]] = True
            renumbered = np.maximum(np.cumsum(works) - 1, 0) if works.any() else np.arange(len(works))
            out[mine] = renumbered[number[mine]]
    return out


def _passes(transfer: NDArray[np.bool_], phases: NDArray[np.uint8], step: Int64) -> tuple[NDArray[np.bool_], Int64]:
    """For each unit whether its pass is a backward one, and the number of the pass, -1 before the first."""
    number, directions = np.full(len(phases), -1, np.int64), np.zeros(len(phases), bool)
    count = {False: -1, True: -1}  # by: backward
    backward, new_pass, current_step = False, True, -2
    for i, (phase, mark, moves) in enumerate(zip(phases.tolist(), step.tolist(), transfer.tolist(), strict=True)):
        if mark != current_step:
            count, new_pass, current_step = {False: -1, True: -1}, True, mark
        if phase in (Phase.FORWARD, *_BACKWARD):
            if moves:
                new_pass = True
            elif new_pass or backward != (phase != Phase.FORWARD):
                backward, new_pass = phase != Phase.FORWARD, False
                count[backward] += 1
        directions[i] = phase in _BACKWARD if phase != Phase.OPTIMIZER else backward
        number[i] = count[bool(directions[i])]
    return directions, number


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
