"""Kernels whose dispatch is a gap: behind a kernel that runs for a moment, while a collective may run. Times in us.

    stream 7   | long 10 | a 4 |3.4| b 0.6 |3.4| c 5 | d 20 | e 4 | after
    stream 20            | all-reduce 40                          |

a includes its dispatch and runs for 0.6, so b is taken from the queue behind it. b runs for 0.6, and c is taken behind it as well. c and d
run for long enough, so d and e follow at once. e runs for 0.6 again, but what follows it waits for the all-reduce.
"""

import numpy as np
import pytest

from lumos.graph.constants import dispatches
from lumos.graph.launches import classify, device_work
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Dependency
from lumos.graph.waits.streams import stream_waits
from lumos.simulation import simulate
from lumos.simulation.durations import with_durations

#: Name, start and duration of the work of stream 7.
MOMENTS = (("long", 100, 10), ("a", 110, 4), ("b", 117.4, 0.6), ("c", 121.4, 5), ("d", 126.4, 20), ("e", 146.4, 4))


def drawing(draw, kernels):
    """The work of stream 7, launched long before, with an all-reduce behind the first and a kernel that awaits it."""
    drawn = draw(0, 2)
    for i, (name, start, duration) in enumerate(kernels):
        drawn.op(f"aten::{name}", 4 * i, 3).launch((4 * i + 1, 1), (start, duration), name=name)
        if i == 0:
            drawn.call("hipStreamWaitEvent", 2.2, 0.2).launch(
                (2.5, 0.4), (kernels[0][1] + kernels[0][2], 50), stream=20, name="ncclDevKernel_AllReduce_Sum_f32"
            )
    return drawn.call("hipStreamWaitEvent", 40, 2).op("aten::after", 43, 3).launch((44, 1), (160, 10), name="after")


def found(trace):
    """The names of the kernels whose dispatch is a gap, and the delay."""
    work = device_work(trace)
    waits = stream_waits(trace, classify(trace), work)
    gaps = dispatches(work, waits)
    return [trace.strings[trace.name[work.row[i]]] for i in gaps.work], gaps.delay


def test_the_kernels_behind_those_that_run_for_a_moment(trace, draw):
    assert found(trace(drawing(draw, MOMENTS))) == (["b", "c"], 3400)


def test_the_replay_has_the_gaps_where_they_were(trace, draw):
    graph = rank_graph(trace(drawing(draw, MOMENTS)))
    assert graph.lag[0, Dependency.OCCUPANCY] == 3400
    assert graph.lag[0, Dependency.STREAM_ORDER] == 0
    device = np.flatnonzero(graph.on_device)
    start = simulate(graph).start - graph.measured_start
    assert np.abs(start[device] - start[device[0]]).max() == 0


@pytest.mark.parametrize(("factor", "later"), [(2, 5), (3, 10)])
def test_longer_kernels_move_what_follows_and_keep_the_gaps(trace, draw, factor, later):
    graph = rank_graph(trace(drawing(draw, MOMENTS)))
    task = {graph.names[graph.name[i]]: i for i in np.flatnonzero(graph.on_device)}
    duration = graph.duration.copy()
    duration[task["c"]] *= factor
    changed = simulate(with_durations(graph, duration)).start - simulate(graph).start
    assert {name: int(changed[task[name]]) // 1000 for name in "bcde"} == {"b": 0, "c": 0, "d": later, "e": later}
