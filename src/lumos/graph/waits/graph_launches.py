"""Launches of whole graphs of device work, in the order of streams.

A graph is launched to the launching thread's current stream, which is taken to be the one that the thread last launched other work to. All
of the graph's work follows what was issued to that stream before, and comes before what is issued to it next, also where it runs on
streams of the graph's own. What the work of one graph waits for among itself is not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.launches import of_graph_launches
from lumos.graph.waits.issued import Issued
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int64, Trace


def graph_order(trace: Trace, work: DeviceWork) -> tuple[Int64, Int64]:
    """Pairs of device work, one of each pair part of a graph: the second follows the first. int64[k] indices into `work`."""
    in_graph = of_graph_launches(trace, work)
    pairs: set[tuple[int, int]] = set()
    if in_graph.any():
        issued = Issued(work)
        plain = np.flatnonzero((work.call >= 0) & ~in_graph)
        plain = plain[np.argsort(trace.start[work.call[plain]], kind="stable")]
        for call in np.unique(work.call[in_graph]).tolist():
            stream = _current_stream(trace, work, plain, call)
            if stream != ABSENT:
                pairs |= _around(trace, issued, call, stream)
    found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _current_stream(trace: Trace, work: DeviceWork, plain: Int64, call: int) -> int:
    """The stream that the thread of a graph launch last launched to before it, or first after it; ABSENT where it never does."""
    mine = plain[trace.lane[work.call[plain]] == trace.lane[call]]
    if not len(mine):
        return ABSENT
    before = int(np.searchsorted(trace.start[work.call[mine]], trace.start[call], "left"))
    return int(work.stream[mine[max(before - 1, 0)]])


def _around(trace: Trace, issued: Issued, call: int, stream: int) -> set[tuple[int, int]]:
    """The pairs of one graph launch: its work on other streams between the work on `stream` before and after it."""
    work, time = issued.work, trace.start[call]
    before, after = int(issued.last_before(stream, time)), int(issued.next_after(stream, time + 1))
    members = np.flatnonzero(work.call == call)
    pairs = set()
    for other in np.unique(work.stream[members]).tolist():
        if other != stream:
            mine = members[work.stream[members] == other]
            pairs |= {(before, int(mine[0])), (int(mine[-1]), after)}
    return {pair for pair in pairs if ABSENT not in pair}
