"""Self-time slices, and hand-offs between threads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos._slices import slices as cut
from lumos.graph.build import build
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Dependency, Kind
from lumos.simulation import simulate

US = 1000


def names(graph):
    return [graph.names[i] for i in graph.name]


def test_nested_operators_are_cut_into_self_time(draw, trace):
    # outer 0..100 holds inner 20..50, which holds a call 30..40; python runs 100..130 until the next operator
    drawing = draw().op("outer", 0, 100).op("inner", 20, 30).call("cudaGetDevice", 30, 10).op("next", 130, 10)
    graph = rank_graph(trace(drawing))
    assert list(zip(names(graph), (graph.duration // US).tolist(), strict=True)) == [
        ("outer", 20),
        ("inner", 10),
        ("cudaGetDevice", 10),
        ("inner", 10),
        ("outer", 50),
        ("(between operators)", 30),
        ("next", 10),
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=20))
def test_slices_of_a_thread_follow_one_another(events):
    rows = sorted((lane, start, -(start + length), keep) for lane, start, length, keep in events)
    lane = np.array([r[0] for r in rows], np.int32)
    start = np.array([r[1] for r in rows], np.int64)
    end = np.array([-r[2] for r in rows], np.int64)
    keep = np.array([r[3] for r in rows], np.uint8)
    found = cut(lane, start, end, keep)
    event, at, begin, finish = found.event, found.lane, found.start, found.end
    assert set(event[begin == finish]) <= set(np.flatnonzero(keep))
    assert set(np.flatnonzero(keep)) <= set(event.tolist())
    for this in np.unique(lane[(end > start) | (keep > 0)]):
        mine = at == this
        assert (begin[mine][1:] == finish[mine][:-1]).all()
        assert finish[mine][-1] == end[lane == this].max()
        assert (finish - begin)[mine & (event >= 0)].sum() <= (end - start)[lane == this].sum()


def test_the_autograd_thread_waits_for_the_forward_pass_and_the_main_thread_for_the_backward(draw, trace):
    # main: forward 0..100, backward() returns at 305; autograd: 110..300. Each goes on by itself for 10 and 5 us.
    drawing = draw().op("forward", 0, 100).op("backward", 110, 190, tid=200).op("optimizer", 305, 20)
    graph = rank_graph(trace(drawing))
    timeline = simulate(graph)
    assert (timeline.start == graph.measured_start).all()
    slower = graph.duration.copy()
    slower[names(graph).index("forward")] += 50 * US
    later = simulate(graph, slower)
    assert later.start[names(graph).index("backward")] - timeline.start[names(graph).index("backward")] == 50 * US
    assert later.start[names(graph).index("optimizer")] - timeline.start[names(graph).index("optimizer")] == 50 * US
    faster = graph.duration.copy()
    faster[names(graph).index("forward")] = 40 * US
    assert simulate(graph, faster).start[names(graph).index("backward")] == 50 * US  # no measured start holds the thread back
    # the gap on the main thread is a wait, except for the 5 us after the other thread became idle
    gaps = graph.duration[graph.kind == Kind.HOST] // US
    assert sorted(gaps.tolist()) == [5, 10]


def test_a_node_of_the_backward_pass_may_come_from_a_thread_that_stays_busy(draw, trace):
    drawing = draw().op("forward", 0, 50)
    drawing.op("AddmmBackward0", 60, 100, tid=200).op("MulBackward0", 165, 200, tid=200)
    drawing.op("autograd::engine::evaluate_function: AccumulateGrad", 170, 10)  # handed over by the node that ended at 160
    graph = rank_graph(trace(drawing))
    edges = {
        (names(graph)[p], names(graph)[t])
        for t in range(len(graph))
        for p, k in zip(
            graph.pred[graph.pred_offset[t] : graph.pred_offset[t + 1]],
            graph.pred_kind[graph.pred_offset[t] : graph.pred_offset[t + 1]],
            strict=True,
        )
        if k == Dependency.HAND_OFF
    }
    assert ("AddmmBackward0", "(between operators)") in edges


def test_a_thread_that_only_polls_waits_for_no_one(draw, job):
    drawing = draw().op("a", 0, 100).op("b", 400, 100)
    for at in (10, 160, 310):
        drawing.call("cudaEventQuery", at, 2, tid=300)
    graph = build(job(drawing))
    assert [p.timer for p in graph.processors] == [False, True]
    assert not (graph.pred_kind == Dependency.HAND_OFF).any()
    slower = graph.duration.copy()
    slower[names(graph).index("a")] += 1000 * US
    polls = graph.processor == 1
    assert (simulate(graph, slower).start[polls] == graph.measured_start[polls]).all()


def test_what_a_hand_off_leaves_of_a_wait_is_reported(draw, trace):
    """The main thread pauses from 100 to 400. One thread finishes at 150, another works from 160 to 500. The 250 us after the first
    stay CPU work of the main thread, and for 240 of them the other thread worked: they are reported as waiting without a reason."""
    drawing = draw().op("a", 0, 100).op("b", 400, 100)
    drawing.op("quick", 90, 60, tid=200).op("long", 160, 340, tid=300)
    graph = rank_graph(trace(drawing))
    [task] = graph.unclaimed_wait_task
    assert graph.duration[task] == 250 * US and graph.unclaimed_wait_time.tolist() == [240 * US]


@pytest.mark.parametrize("named", [True, False], ids=["operator", "between"])
def test_time_beyond_the_usual_of_its_place_until_the_device_is_idle_is_kept(draw, trace, named):
    """Four times a kernel is launched, and 100 us of CPU work follow. The second time they take 530, and the kernel ends after 500."""
    drawing, at = draw(), 0
    for long in (False, True, False, False):
        drawing.launch((at, 5), (at + 5, 500 if long else 5))
        work = 530 if long else 100
        if named:
            drawing.op("aten::mul", at + 5, work)
        at += 5 + work
    assert rank_graph(trace(drawing.op("after", at, 5))).unclaimed_wait_time.tolist() == [430 * US]
