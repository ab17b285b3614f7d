"""Kernels whose dispatch is a gap: behind a kernel that runs for a moment, while a collective may run. Times in us.

    stream 7   | long 10 | a 4 |3.4| b 0.6 |3.4| c 5 | d 20 | e 4 | after
    stream 20            | all-reduce 40                          |

a includes its dispatch and runs for 0.6, so b is taken from the queue behind it. b runs for 0.6, and c is taken behind it as well. c and d
run for long enough, so d and e follow at once. e runs for 0.6 again, but what follows it waits for the all-reduce.
"""

import numpy as np
import pytest

from lumos.graph.calls import classify
from lumos.graph.dispatch import dispatches
from lumos.graph.launches import device_work
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


def test_no_gap_where_no_collective_runs(trace, draw):
    drawn = drawing(draw, MOMENTS)
    drawn.rows = [row for row in drawn.rows if "nccl" not in row["name"]]
    assert found(trace(drawn)) == ([], 0)


def test_nothing_to_explain_where_every_kernel_has_a_gap(trace, draw):
    """As CUDA records them: each kernel 1.2 us after the one before."""
    even = [(name, start + 1.2 * i, duration) for i, (name, start, duration) in enumerate(MOMENTS)]
    assert found(trace(drawing(draw, even))) == ([], 0)


def test_kernels_that_overlap_by_rounding_have_no_dispatch_between_them(trace, draw):
    """A dispatch takes time: b begins 2 ns before a ends, and c before b ends."""
    overlapping = (("long", 100, 10), ("a", 110, 0.5), ("b", 110.498, 0.5), ("c", 110.996, 5), ("d", 115.996, 20), ("e", 135.996, 4))
    assert found(trace(drawing(draw, overlapping))) == ([], 0)


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
