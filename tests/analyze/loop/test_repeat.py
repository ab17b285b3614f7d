"""Steps of a drawn job, repeated: what the passes consist of and depend on."""

from dataclasses import replace

import numpy as np

from lumos.analyze.loop.repeat import repeated
from lumos.analyze.loop.steps import members
from lumos.graph.table import Dependency, Kind, Processor, Step

US = 1000
THREAD, OTHER = Processor(0, False, "thread 1"), Processor(0, False, "thread 2")
STREAM = Processor(0, True, "stream 7", 0, 7)
D = Dependency


def predecessors(graph, task):
    """(task, kind) of each predecessor."""
    low, high = graph.pred_offset[task : task + 2].tolist()
    return [(int(graph.pred[e]), D(graph.pred_kind[e])) for e in range(low, high)]


def test_the_copies_have_the_tasks_of_the_step(draw_loop):
    owners = draw_loop([THREAD, STREAM], [(0, Kind.LAUNCH, "launch", 3), (1, Kind.KERNEL, "k", 9)], [(0, 1, D.LAUNCH)])
    loop = repeated(owners, [1], 3)
    assert loop.source.tolist() == [2, 3] * 3
    assert loop.graph.duration.tolist() == [3 * US, 9 * US] * 3
    assert [predecessors(loop.graph, kernel) for kernel in (1, 3, 5)] == [[(0, D.LAUNCH)], [(2, D.LAUNCH)], [(4, D.LAUNCH)]]
    assert [(step.name, step.previous) for step in loop.owners.job] == [("copy#0", -1), ("copy#1", 0), ("copy#2", 1)]
    assert [loop.owners.tasks(i).tolist() for i in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_a_dependency_on_the_step_before_is_one_on_the_copy_before(draw_loop):
    tasks = [(0, Kind.OPERATOR, "a", 1), (1, Kind.OPERATOR, "b", 1)]
    graph = repeated(draw_loop([THREAD, OTHER], tasks, across=[(1, 0, D.HAND_OFF, 1)]), [2], 3).graph
    assert [predecessors(graph, task) for task in (0, 2, 4)] == [[], [(1, D.HAND_OFF)], [(3, D.HAND_OFF)]]


def test_corresponding_tasks_are_as_far_from_the_end_of_their_steps(draw_graph):
    """The recording begins within step 0, which has one "a" less than step 1; c of step 1 waits for the last "a" of step 0."""
    names = ["a", "c", "a", "a", "c"]
    tasks = [(0, Kind.OPERATOR, name, 10 * i, 10 * i + 10) for i, name in enumerate(names)]
    marks = (Step(0, "ProfilerStep#0", 0, 20 * US), Step(0, "ProfilerStep#1", 20 * US, 50 * US))
    owners = members(draw_graph([THREAD], tasks, [(0, 4, D.HAND_OFF)], marks))
    # Tasks 0 to 2 are the two a and c of the first pass, 3 to 5 those of the second.
    loop = repeated(owners, [1], 2)
    assert predecessors(loop.graph, 5) == [(1, D.HAND_OFF)]
    assert (loop.crossing, loop.dropped) == (1, 0)


def alternating(draw_graph, waits_for):
    """Steps that run "a" and "b" in turn, b, a, b, a, of 10 each; the first counted one waits for the step before it."""
    names = ["b", "a", "b", "a"]
    tasks = [(0, Kind.OPERATOR, name, 10 * i, 10 * i + 10) for i, name in enumerate(names)]
    marks = tuple(Step(0, f"ProfilerStep#{i}", 10 * i * US, (10 * i + 10) * US) for i in range(4))
    return members(draw_graph([THREAD], tasks, [(0, waits_for, D.HAND_OFF)], marks))


def test_steps_of_other_kinds_follow_one_another_in_every_pass(draw_graph):
    """The pass is a, b, a. The b before its first step corresponds to the b in it, not to the a that is its last step."""
    loop = repeated(alternating(draw_graph, 1), [1, 2, 3], 2)
    assert [loop.graph.names[name] for name in loop.graph.name] == ["a", "b", "a"] * 2
    assert [step.name for step in loop.owners.job] == [f"copy#{i}" for i in range(6)]
    assert predecessors(loop.graph, 3) == [(1, D.HAND_OFF)]


TWO = [THREAD, Processor(1, False, "thread 1")]
MEET = [(0, Kind.COLLECTIVE, "all_reduce", 5), (1, Kind.COLLECTIVE, "all_reduce", 5)]


def meetings(graph):
    return [
        graph.rendezvous_task[low:high].tolist() for low, high in zip(graph.rendezvous_offset, graph.rendezvous_offset[1:], strict=False)
    ]


def test_ranks_meet_in_every_copy(draw_loop):
    loop = repeated(draw_loop(TWO, MEET, meets=[(0, 1)]), [1], 3)
    assert meetings(loop.graph) == [[0, 1], [2, 3], [4, 5]]
    assert len(loop.owners.job) == 3
    assert [len(step.parts) for step in loop.owners.job] == [2, 2, 2]


def test_ranks_that_meet_in_different_steps_do_so_in_the_copies(draw_loop):
    """The collective of rank 0 in a step meets that of rank 1 in the step before."""
    owners = draw_loop(TWO, MEET)
    graph = replace(owners.graph, rendezvous_offset=np.array([0, 2, 4]), rendezvous_task=np.array([2, 1, 4, 3], np.int32))
    for step in (0, 1, 2):
        loop = repeated(replace(owners, graph=graph), [step], 3)
        assert [sorted(found) for found in meetings(loop.graph) if len(found) > 1] == [[1, 2], [3, 4]]


def test_ranks_that_share_no_step_are_repeated_all_the_same(draw_graph):
    """Rank 0 recorded steps 0 to 2, rank 1 steps 5 and 6: a pass has the two counted ones of rank 0, in which rank 1 has no part."""
    at = [(0, 0, 0), (0, 10, 1), (0, 20, 2), (1, 0, 5), (1, 10, 6)]
    tasks = [(rank, Kind.OPERATOR, "work", start, start + 10) for rank, start, _ in at]
    marks = [Step(rank, f"ProfilerStep#{number}", start * US, (start + 10) * US, lane=1) for rank, start, number in at]
    owners = members(draw_graph([Processor(rank, False, "thread 1", lane=1) for rank in (0, 1)], tasks, [], marks))
    loop = repeated(owners, [1, 2], 3)
    assert [step.name for step in loop.owners.job] == [f"copy#{i}" for i in range(6)]
    assert len(loop.owners.steps) == len(loop.graph) == 6
