"""The passes of a rank: which forward or backward pass of its step each unit belongs to.

A pass begins where the phase changes, or after a transfer from or to another pipeline stage. A pass does heavy work (multiplications,
convolutions, attention): units between two phases that do none belong to the pass beside them, whatever their names suggest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.kernel_names import KernelClass, kernel_class
from lumos.segment.dimensions import multiplying
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
