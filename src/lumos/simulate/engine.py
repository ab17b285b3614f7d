"""The event loop: what a graph's tasks do when nothing but its dependencies and durations is known.

Model. Events run in the order of (time, task id). A task starts when all its predecessors have ended, each plus the lag
of its kind, when its release has come, and
- on a thread: when the task before it (by id) has ended;
- on a stream: when the task enqueued before it has ended. A launch enqueues its device tasks when it ends; a device
  task without a launch is enqueued right after the task before it (by id), the first of a stream at time 0;
- a waiting return: when what was last enqueued on its target streams has ended, as seen at the start of the task
  before it on its thread (of its own, if it is the first);
- a launch of a rank with a queue depth: when fewer launches than that are outstanding, from their start to the end of
  their last device task; blocked launches go in the order in which they blocked;
- a kernel with an occupancy: when the kernels of other streams hold less than the whole device (within 1e-6); blocked
  kernels are tried in the order in which they blocked. Its hold scales with its duration.
A task without any of these is ready at time 0. The members of a rendezvous start when they are ready, and all end their
own duration after the last of them is. The lags of RENDEZVOUS and OCCUPANCY are not used.

Memory: about 40 bytes a task and edge, beside the graph. `graph.ignored` switches kinds off, THREAD_ORDER and
STREAM_ORDER the implicit orders; without LAUNCH every device task counts as enqueued from the start.
"""

from __future__ import annotations

import numpy as np

from lumos import _engine
from lumos.graph.table import Graph
from lumos.simulate.deadlock import no_schedule
from lumos.simulate.tables import durations_of, tables
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64


def simulate(graph: Graph, durations: Int64 | None = None) -> Timeline:
    """Run `graph` with its own durations, or with `durations` (int64[n] ns).

    GraphError where the graph is malformed, or has no schedule (a cycle, a rendezvous that never completes): the message
    names the tasks that wait for each other. The global interpreter lock is released while it runs.
    """
    view = tables(graph)
    duration = durations_of(graph, durations)
    start, end = np.empty(len(graph), np.int64), np.empty(len(graph), np.int64)
    cycle = _engine.simulate(view, duration, start, end)
    if cycle:
        raise no_schedule(graph, cycle)
    return Timeline(graph, start, end, "replayed")
