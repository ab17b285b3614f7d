"""The numbers by which a recording joins operators of a forward pass with the nodes of the backward pass that undo them.

Autograd counts the nodes that each thread makes. What a backward pass runs again, as a checkpoint does, is counted on the thread of the
backward pass, so its numbers are those of other operators as well. A node says on which thread it was made, as a number that only nodes
know; rows of operators say on which lane they ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.trace.once import once_a_trace
from lumos.trace.table import Category, Int64, unique

if TYPE_CHECKING:
    from lumos.trace.table import Trace


@once_a_trace
def autograd_numbers(trace: Trace) -> Int64:
    """For every row the number of its node that no node of another thread has; `ABSENT` for rows without one.

    The thread of nodes is the lane on which most of their numbers stand; of several such the first that is no other thread's. Recordings
    whose nodes do not say their thread have the numbers as they are.
    """
    number, thread = trace.dense("Sequence number"), trace.dense("Fwd thread id")
    numbered = (number >= 0) & trace.is_any(Category.OPERATOR)
    nodes, made = np.flatnonzero(numbered & (thread > 0)), np.flatnonzero(numbered & (thread <= 0))
    lanes, first = np.unique(trace.lane[made][np.argsort(trace.start[made], kind="stable")], return_index=True)
    if not len(nodes) or len(lanes) < 2:
        return number
    stride, out, free = int(number.max()) + 1, number.copy(), list(range(len(lanes)))
    on_lane = []
    for nth, lane in enumerate(lanes[np.argsort(first)].tolist()):
        rows = made[trace.lane[made] == lane]
        on_lane.append(unique(number[rows]))
        out[rows] += stride * nth
    for one in unique(thread[nodes]).tolist():
        mine = nodes[thread[nodes] == one]
        shares = [int(np.isin(number[mine], known).sum()) for known in on_lane]
        best = [i for i, share in enumerate(shares) if share == max(shares)]
        lane = next((i for i in best if i in free), best[0])
        free = [i for i in free if i != lane]
        out[mine] += stride * lane
    return out
