"""Launches of whole graphs of device work, in the order of streams.

A graph is launched to the launching thread's current stream, taken to be the one that the thread last launched other work to: no
collective, as these have streams of their own. All of the graph's work follows what was issued to that stream before, and comes before
what is issued to it next, also on streams of the graph's own. What its work waits for among itself is not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.launches import of_graph_launches
from lumos.graph.places import Ranges
from lumos.graph.waits.issued import Issued
from lumos.trace.table import ABSENT, unique

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.trace.table import Int32, Int64, Trace


def graph_order(trace: Trace, work: DeviceWork) -> tuple[Int64, Int64]:
    """Pairs of device work, one of each pair part of a graph: the second follows the first. int64[k] indices into `work`."""
    in_graph = of_graph_launches(trace, work)
    if not in_graph.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    graphs, issued = unique(work.call[in_graph]), Issued.of(work)
    stream = _current_streams(trace, work, np.flatnonzero((work.call >= 0) & ~in_graph & ~work.communicates), graphs)
    before, after = issued.last_before(stream, trace.start[graphs]), issued.next_after(stream, trace.start[graphs] + 1)
    members = np.flatnonzero(in_graph)
    graph = np.searchsorted(graphs, work.call[members])
    elsewhere = work.stream[members] != stream[graph]
    members, graph = members[elsewhere], graph[elsewhere]
    branch = graph * len(work.streams) + work.stream[members]
    first = np.unique(branch, return_index=True)[1]
    last = len(branch) - 1 - np.unique(branch[::-1], return_index=True)[1]
    earlier, later = np.append(before[graph[first]], members[last]), np.append(members[first], after[graph[last]])
    pairs = np.unique(np.stack((earlier, later))[:, (earlier != ABSENT) & (later != ABSENT)], axis=1)
    return pairs[0], pairs[1]


def _current_streams(trace: Trace, work: DeviceWork, plain: Int64, graphs: Int32) -> Int64:
    """The streams that the threads of graph launches launched `plain` work to, last before them or else first after them; ABSENT without
    any."""
    launches, stream = Ranges(trace, work.call[plain]), np.full(len(trace) + 1, ABSENT, np.int64)
    stream[work.call[plain]] = work.stream[plain]
    last = launches.last(trace.lane[graphs], trace.start[graphs])
    first = np.append(launches.rows, ABSENT)[np.searchsorted(launches.lane, trace.lane[graphs])]
    own = (first != ABSENT) & (trace.lane[first] == trace.lane[graphs])
    return stream[np.where(last != ABSENT, last, np.where(own, first, ABSENT))]
