"""Launches that wait for a place in the queue of launches.

A launch into a full queue returns when a place in it has become free, which is when the next piece of device work ends. So such a launch
takes longer than is usual for its call, and returns just after the first end of device work since it began, while about as many launches
are outstanding as there are places. About as many, because a recording may lack rows: where it lacks the launches or the kernels of some
places, fewer launches seem to be outstanding than there are. Work from before the recording that is not in it holds places too: as long as
the device has not begun with what was recorded, because of such work, a launch that takes long waits for the end of some of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.waits.solve import LONG_CALL, WAKE_UP
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int32, Int64, Trace

#: So much longer than usual must launches that waited for a place take together (ns), longer than those near them that did not, and twice
#: as much as by chance, before the queue is taken to be full.
LEAST_WAIT = 500_000
#: A smaller count is not taken for the queue's depth (launches): CUDA's queue holds about 1,024, and loops in a program make
#: launches begin at smaller counts again and again.
SHALLOWEST_QUEUE = 900
#: The queue may be full where as large a share of its places seems to be free: a recording that lacks more rows is not worth asking.
LOST_PLACES = 0.05
#: Of all launches by one call, this share is taken to wait for nothing: in a recording of a busy device most may wait.
QUICK = 0.25


class FullQueue(NamedTuple):
    """depth: launches of the rank that may be outstanding, 0 where the trace shows no limit. waited: the work whose launch waited for a
    place, in the order of the launches, and freed: the work whose end made that place. at_begin: the work whose launch waited for the end
    of work that was not recorded. Indices into DeviceWork."""

    depth: int
    waited: Int64
    freed: Int64
    at_begin: Int64


def full_queue(trace: Trace, work: DeviceWork, held_up: Int64) -> FullQueue:
    """How many launches may be outstanding, and which launches waited for a place. held_up: the first work of streams that work from before
    the recording kept busy (`held_up_at_begin`)."""
    launched = np.flatnonzero((work.call >= 0) & work.placed)
    launched = launched[np.argsort(work.issued[launched], kind="stable")]
    before = np.flatnonzero((work.call < 0) & (work.issued == np.iinfo(np.int64).min))
    by_end = np.append(before, launched)
    by_end = by_end[np.argsort(work.end[by_end], kind="stable")]
    ended = np.searchsorted(work.end[by_end], work.issued[launched], "left")
    next_end = by_end[np.minimum(ended, len(by_end) - 1)]
    ahead = len(before) + np.arange(len(launched)) - ended  # launches that had not ended, with those from before the recording
    call, most = work.call[launched], int(ahead.max(initial=0))
    near = ahead >= (1 - LOST_PLACES) * most
    early = np.zeros(len(call), bool)
    if len(held_up):  # of work that was not recorded no end can be seen
        near[:most] = False
        early = trace.start[call] < work.start[held_up].min()
    longer, over = _longer(trace, call, ~near), trace.start[call] + trace.duration[call] - work.end[next_end]
    waited, elsewhere = near & (over >= 0) & (over <= WAKE_UP), longer[~near & ~early]
    by_chance = 2 * elsewhere.sum() * waited.sum() / max(len(elsewhere), 1)
    if most < SHALLOWEST_QUEUE or longer[waited].sum() < max(LEAST_WAIT, by_chance, longer[near & ~waited].sum()):
        most, waited = 0, np.zeros_like(waited)
    return FullQueue(most, launched[waited], next_end[waited], launched[early & (longer >= LONG_CALL)])


def _longer(trace: Trace, call: Int32, free: NDArray[np.bool_]) -> Int64:
    """By how much each launch took longer than is usual of such a call, ns; 0 where it did not. free: those that found places; where there
    are none, nothing is usual."""
    took, name = trace.duration[call], trace.name[call]
    usual = np.full(len(call), np.quantile(took[free], QUICK) if free.any() else 0.0)
    for call_name in unique(name[free]).tolist():
        usual[name == call_name] = np.quantile(took[free & (name == call_name)], QUICK)
    longer: Int64 = np.maximum(took - usual, 0).astype(np.int64)
    return longer
