"""Waiting for collectives that other CPU threads carry out. All times in the drawings are ms."""

import numpy as np

from lumos.analyze.replay import replay
from lumos.graph.build import build
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Kind
from lumos.simulation import simulate

MS = 1_000_000
GLOO = (300, 301)
DIMS = {"Input Dims": [[100]], "Input type": ["float"]}
LISTED = {"Input Dims": [[[100]], []], "Input type": ["TensorList", ""]}


class Loop:
    """A rank of a loop whose steps each last `period` ms, in ms."""

    def __init__(self, drawing, period=400):
        self.drawing, self.period = drawing, period

    def step(self, number):
        self.origin = number * self.period
        self.drawing.row("user_annotation", f"ProfilerStep#{number}", 1e3 * self.origin, 1e3 * self.period)
        return self

    def op(self, name, begin, end, **args):
        self.drawing.op(name, 1e3 * (self.origin + begin), 1e3 * (end - begin), **args)
        return self

    def issue(self, at):
        return self.op("c10d::allreduce_", at, at + 1, **LISTED)

    def carry(self, begin, end, thread=0):
        """A collective in [begin, end) on a thread of gloo's."""
        self.drawing.row("user_annotation", "gloo:all_reduce", 1e3 * (self.origin + begin), 1e3 * (end - begin), GLOO[thread], **DIMS)
        return self


def waits(graph):
    """The collectives that the main thread's returns wait for, by their measured start in ms, in the order of the returns."""
    found = []
    main = {i for i, p in enumerate(graph.processors) if p.lane == 0}
    for task in np.flatnonzero((graph.kind == Kind.RETURN) & np.isin(graph.processor, list(main))):
        before = graph.pred[graph.pred_offset[task] : graph.pred_offset[task + 1]]
        found += [round((graph.measured_start[i] - graph.measured_start.min()) / MS) for i in before if graph.kind[i] == Kind.COLLECTIVE]
    return found


def waited(graph):
    return np.flatnonzero(graph.kind == Kind.COLLECTIVE).tolist()


def named(graph, name):
    return [i for i in range(len(graph)) if graph.names[graph.name[i]] == name]


def test_a_collective_whose_row_ends_late_is_what_was_awaited(draw, trace):
    """The main thread computes 0 to 100, issues, and goes on at 300. The row of the collective, 110 to 305, ends 5 ms late: the
    collective took 190, not 195. With half of that the main thread goes on at 205."""
    loop = Loop(draw()).step(0).op("forward", 0, 100).issue(100).carry(110, 305).op("copy", 300, 310)
    graph = rank_graph(trace(loop.drawing))
    [collective], [copy] = np.flatnonzero(graph.kind == Kind.COLLECTIVE), named(graph, "copy")
    assert waits(graph) == [110] and graph.duration[collective] == 190 * MS
    assert len(graph.unclaimed_wait_task) == 0
    duration = graph.duration.copy()
    duration[collective] //= 2
    timeline = simulate(graph, duration)
    assert timeline.start[copy] - timeline.start.min() == 205 * MS


def test_time_after_a_wait_is_not_waiting_for_a_collective_that_goes_on(draw, trace):
    """The main thread waits for the first collective until 120 and works until 125; the second ends at 160, 35 ms later: no one waited
    for it there, and the row stays as long as it is."""
    loop = Loop(draw()).step(0).issue(0).issue(1).carry(5, 120).carry(6, 160, thread=1).op("copy", 125, 200)
    graph = rank_graph(trace(loop.drawing))
    assert waits(graph) == [5]
    assert graph.duration[graph.kind == Kind.COLLECTIVE].tolist() == [115 * MS, 154 * MS]


def test_an_operator_that_only_waits_is_no_work(draw, trace):
    """wait_tensor from 102 to 300 waits for the collective, which ends at 299; the last 1 is its own time. With the collective half as
    long, 94.5, the next operator starts at 110 + 94.5 + 1 = 205.5."""
    loop = Loop(draw()).step(0).op("forward", 0, 100).issue(100).carry(110, 299)
    loop.op("_c10d_functional::wait_tensor", 102, 300).op("next", 300, 310)
    graph = rank_graph(trace(loop.drawing))
    [wait], [after], [collective] = (*(named(graph, n) for n in ("_c10d_functional::wait_tensor", "next")), waited(graph))
    assert graph.duration[wait] == 1 * MS
    duration = graph.duration.copy()
    duration[collective] //= 2
    timeline = simulate(graph, duration)
    assert 2 * (timeline.start[after] - timeline.start.min()) == 411 * MS


def test_a_barrier_is_awaited_by_its_thread(draw, trace):
    """A barrier's operator has a tensor and its row on gloo's thread has none; they are one collective, whose row ends 3 late."""
    drawing = draw().op("c10d::barrier", 0, 1e3, **{"Input Dims": [[1], []], "Input type": ["float", ""]})
    drawing.row("user_annotation", "gloo:barrier", 2e3, 61e3, GLOO[0]).op("next", 60e3, 5e3)
    graph = rank_graph(trace(drawing))
    assert waits(graph) == [2] and len(graph.unclaimed_wait_task) == 0


def test_a_collective_on_a_busy_thread_still_waits_for_its_issuer(draw, trace):
    """The second collective, issued at 50 ms, begins at 100 as soon as the first has ended. Issued at 150, after work that takes 100 ms
    longer, it begins then and takes until 200."""
    loop = Loop(draw()).step(0).issue(0).op("more", 1, 49).issue(49).op("rest", 50, 90).carry(1, 100).carry(100, 150)
    graph = rank_graph(trace(loop.drawing))
    second = waited(graph)[1]
    assert simulate(graph).start[second] == 100 * MS
    duration = graph.duration.copy()
    duration[named(graph, "more")] += 100 * MS
    later = simulate(graph, duration)
    assert (later.start[second], later.end[second]) == (150 * MS, 200 * MS)


def test_a_faster_straggler_makes_the_job_faster(draw, job):
    """Two ranks, three steps. Rank 1 computes 300 ms, rank 0 100; the transfer takes 20 ms, and on rank 0 the row ends 5 ms late. With
    rank 1 ten times faster, 30 ms, rank 0 sets the pace: the last copy starts at 2 × (100 + 10 + 20 + 70) + 130 = 530, not at 1130."""
    drawings = [draw(rank, 2) for rank in range(2)]
    for rank, drawing in enumerate(drawings):
        loop, work = Loop(drawing, 400), (100, 300)[rank]
        for number in range(3):
            loop.step(number).op("forward", 0, work).issue(work).carry(work + 10, 335 if rank == 0 and number else 330)
            loop.op("copy", 330, 340).op("rest", 340, 400)
    graph = build(job(*drawings))
    copies = [i for i in named(graph, "copy") if graph.rank_of_task[i] == 0]
    assert simulate(graph).start[copies[-1]] == 1130 * MS
    assert [s.kept_wait for s in replay(graph).steps] == [0] * 6
    duration = graph.duration.copy()
    forward = [i for i in named(graph, "forward") if graph.rank_of_task[i] == 1]
    duration[forward] //= 10
    faster = simulate(graph, duration)
    assert faster.start[copies[-1]] == 530 * MS
