"""The event loop: simulates a graph from its dependencies and durations alone.

Model. Events are processed in the order of (time, task id). A task starts when all its predecessors have ended, each plus
the lag of the edge's kind, when its release time has come, and
- on a thread: when the task before it (by id) has ended;
- on a stream: when the task enqueued before it has ended. A launch enqueues its device tasks when it ends; a device
  task without a launch is enqueued right after the task before it (by id), the first of a stream at time 0;
- a waiting return: when the task that was last enqueued on each of its target streams has ended. Which task that is, is
  determined at the start of the task before the return on its thread (at its own start, if it is the first);
- a launch of a rank with a queue depth: when fewer launches than that are outstanding. A launch is outstanding from its
  start to the end of its last device task. Blocked launches proceed in the order in which they blocked;
- a kernel with an occupancy: when the kernels of other streams hold less than the whole device (within 1e-6). Blocked
  kernels are tried in the order in which they blocked. A kernel's hold scales with its duration.
A task without any of these is ready at time 0. A member of a rendezvous starts when it is ready, and ends its own duration
after the last member became ready. The lag of RENDEZVOUS is not used, that of OCCUPANCY only on edges.

Memory: about 40 bytes per task and edge, besides the graph. `graph.ignored` switches kinds of dependencies off; THREAD_ORDER
and STREAM_ORDER there mean the implicit orders; without LAUNCH every device task counts as enqueued from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos import _engine
from lumos.simulation.deadlock import no_schedule
from lumos.simulation.tables import durations_of, tables
from lumos.simulation.timeline import replayed
from lumos.stages import stage

if TYPE_CHECKING:
    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64


@stage("simulating")
def simulate(graph: Graph, durations: Int64 | None = None) -> Timeline:
    """Run `graph` with its own durations, or with `durations` (int64[n] ns). Tasks that it leaves out have no time and no part in it: they
    stand where the work before them on their thread or stream ended.

    Raises GraphError where the graph is malformed, or has no schedule (a cycle, a rendezvous that never completes): the message
    then names the tasks that wait for each other. Other Python threads run during the simulation.
    """
    view = tables(graph)
    start, end = np.empty(len(graph), np.int64), np.empty(len(graph), np.int64)
    cycle = _engine.simulate(view, durations_of(graph, durations), start, end)
    if cycle:
        raise no_schedule(graph, cycle)
    return replayed(graph, start, end)
