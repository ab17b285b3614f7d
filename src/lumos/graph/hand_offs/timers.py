"""Threads that work on their own: they wait for no other thread, and no other thread waits for them.

Some poll by the clock: they make runtime calls, but run no operator, launch nothing and wait for nothing, such as NCCL's watchdog.
Others run operators, driven by a clock or by another process, such as a monitor or the thread that pins what a data loader's
workers send. The work of such a thread begins at other places of the loop in every step, while work that one thread hands to another
begins at the same places in all steps (`graph.places`). A thread that launches device work, communicates or runs nodes of the
backward pass takes part in the step, and so is none of these, nor is any where fewer than two steps are marked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.hand_offs.threads import is_backward_node
from lumos.graph.joined.collectives import is_cpu_collective, is_issuing
from lumos.graph.lists import numbered
from lumos.graph.places import is_step_mark, places_in_code
from lumos.trace.table import Category, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices

#: A thread with fewer runs of work is not judged.
LEAST_RUNS = 6


def timers(trace: Trace, slices: HostSlices, anchors: Int32, shortest: int) -> NDArray[np.bool_]:
    """The lanes that work on their own, bool[lanes]. anchors: rows of calls that launch device work or wait for it. shortest: the
    shortest pause of a thread that can be a wait for another, ns."""
    runtime, operators = (trace.lane[trace.category == c] for c in (Category.RUNTIME, Category.OPERATOR))
    out = np.zeros(len(trace.lanes), bool)
    out[runtime] = True
    out[operators] = False
    out[trace.lane[anchors]] = False
    marks = np.flatnonzero(is_step_mark(trace))
    if len(unique(trace.start[marks])) < 2:
        return out
    takes_part = np.zeros(len(trace.lanes), bool)
    takes_part[trace.lane[anchors]] = True
    takes_part[trace.lane[marks]] = True
    takes_part[trace.lane[is_cpu_collective(trace) | is_issuing(trace) | is_backward_node(trace)]] = True
    judged = [lane for lane in unique(operators).tolist() if not takes_part[lane]]
    if judged:
        looped = trace.lane[marks[0]]
        loop = places_in_code(trace, np.flatnonzero((trace.lane == looped) & (trace.category == Category.OPERATOR)))
        for lane in judged:
            at = np.searchsorted(loop.start, _runs(slices, lane, shortest), "right") - 1
            at = at[at >= 0]
            place, (_, first) = loop.place[at], np.unique(numbered(loop.place[at], loop.step[at]), return_index=True)
            recurring = int((np.bincount(place[first]) > 1)[place].sum())  # begun at in several steps
            out[lane] = len(at) >= LEAST_RUNS and recurring < len(at) / 2
    return out


def _runs(slices: HostSlices, lane: int, shortest: int) -> Int64:
    """When the runs of work of a thread begin, ns: between them it pauses for `shortest` ns or longer."""
    own = np.flatnonzero(slices.lane == lane)
    pause = (slices.row[own] < 0) & (slices.end[own] - slices.start[own] >= shortest)
    begins = ~pause & np.append(True, pause[:-1])
    return np.asarray(slices.start[own[begins]])
