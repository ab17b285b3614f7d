"""Waits for several threads at once: a thread hands work to others and goes on when all of them have done theirs.

The thread that finished last ended the pause (`graph.hand_offs.threads`). Another one was awaited too where it finished during the same
pause, was idle from then on, had been started by the waiting thread, and nothing else waited for what it finished with. It must be so in
all pauses of the waiting thread that end with the same operator: one in which the other thread still works refutes it. Threads that carry
out collectives have a rule of their own (`graph.hand_offs.awaited`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.joined.collectives import is_cpu_collective

if TYPE_CHECKING:
    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.hand_offs.threads import HandOffs
    from lumos.trace.table import Int64, Trace


class Joins(NamedTuple):
    """Further sources of waits: wait[i], an index into HandOffs, also waits for slice source[i]."""

    wait: Int64
    source: Int64


def joins(trace: Trace, slices: HostSlices, handed: HandOffs, lanes: Int64) -> Joins:
    """The further threads that the pauses of hand-offs waited for. lanes: the threads that others may wait for."""
    waits = np.flatnonzero(handed.paused & ~handed.issued)
    gap = handed.slice[waits]
    after = slices.row[np.minimum(gap + 1, max(len(slices) - 1, 0))]
    place = np.stack((slices.lane[gap], np.where(after >= 0, trace.name[after], -1)))
    kind = np.unique(place, axis=1, return_inverse=True)[1].reshape(-1) if len(gap) else gap
    wait, source = [gap[:0]], [gap[:0]]
    collective = is_cpu_collective(trace)
    for lane in lanes.tolist():
        work = np.flatnonzero((slices.lane == lane) & (slices.row >= 0))
        work = work if not collective[slices.row[work]].any() else work[:0]
        starter = np.sort(handed.slice[slices.lane[handed.slice] == lane])
        if not len(work) or not len(starter):
            continue
        last = work[np.maximum(np.searchsorted(slices.start[work], slices.end[gap], "left") - 1, 0)]
        finished = (slices.end[last] > slices.start[gap]) & (slices.end[last] <= slices.end[gap]) & (slices.lane[gap] != lane)
        by = starter[np.maximum(np.searchsorted(starter, last, "right") - 1, 0)]
        joined = finished & (slices.lane[_source_of(handed, by)] == slices.lane[gap])
        always = ~np.isin(kind, kind[~joined])
        chosen = np.flatnonzero(always & ~np.isin(last, handed.source))
        wait.append(waits[chosen])
        source.append(last[chosen])
    return Joins(np.concatenate(wait), np.concatenate(source))


def _source_of(handed: HandOffs, slices: Int64) -> Int64:
    """What each of the slices, all of which wait, waits for."""
    order = np.argsort(handed.slice, kind="stable")
    return handed.source[order[np.searchsorted(handed.slice[order], slices)]]
