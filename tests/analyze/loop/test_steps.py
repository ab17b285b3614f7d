"""When steps begin and are complete, and what a step takes, on jobs drawn by hand (µs)."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.loop.steps import members, step_times
from lumos.analyze.loop.window import cycle_of, lacks_work_ahead
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Kind, OneOff, Processor, Step
from lumos.simulation.timeline import Timeline, measured
from lumos.vocabulary import Basis

US = 1000


def times_of(graph):
    return step_times(measured(graph), members(graph))


def figures(times):
    """(name, basis, time µs, latency µs) of each of the job's steps."""
    return [(t.name, t.basis.value, t.length_ns / US, t.latency_ns / US) for t in times.job]


def test_a_cpu_that_runs_ahead_does_not_lengthen_the_step(cpu_ahead):
    """The devices take 30 for a step. Launched at 30, step 3 is complete at 130: the loop takes 30, though its latency is more than
    three times that."""
    times = times_of(cpu_ahead((30, 30, 30, 30)))
    assert figures(times) == [
        ("ProfilerStep#0", "latency", 40, 40),
        ("ProfilerStep#1", "period", 30, 60),
        ("ProfilerStep#2", "period", 30, 80),
        ("ProfilerStep#3", "period", 30, 100),
    ]
    assert times.headline == (30 * US, 80 * US, Basis.PERIOD, 30 * US, 3)


def test_python_between_the_steps_is_part_of_the_step(draw_graph):
    """Each step works for 30; the loop begins one every 50: what it takes is 50."""
    processors = [Processor(0, False, "thread 1", lane=1), Processor(0, True, "stream 7", 0, 7)]
    tasks, edges = [], []
    for i in range(3):
        edges.append((len(tasks), len(tasks) + 1, Dependency.LAUNCH))
        tasks += [(0, Kind.LAUNCH, "launch", 50 * i, 50 * i + 10), (1, Kind.KERNEL, "k", 50 * i + 10, 50 * i + 30)]
        tasks += [(0, Kind.HOST, "between", 50 * i + 10, 50 * i + 50)] if i < 2 else []
    marks = [Step(0, f"ProfilerStep#{i}", 50 * i * US, (50 * i + 35) * US, lane=1) for i in range(3)]
    times = times_of(draw_graph(processors, tasks, edges, marks))
    assert figures(times)[1:] == [("ProfilerStep#1", "period", 50, 30), ("ProfilerStep#2", "period", 50, 30)]
    assert times.headline == (50 * US, 30 * US, Basis.PERIOD, 50 * US, 2)


def beside(draw_graph, awaited=False):
    """Five steps of 90: a launch of 10 and a kernel of 80. Step 1 also starts a copy of 350 on a stream of its own. awaited: whether the
    kernel of step 2 waits for the copy."""
    streams = [Processor(0, True, f"stream {i}", 0, i) for i in (7, 8)]
    tasks = [(0, Kind.LAUNCH, "launch", 90 * i, 90 * i + 10) for i in range(5)]
    tasks += [(1, Kind.KERNEL, "k", 90 * i + 10, 90 * i + 90) for i in range(5)] + [(2, Kind.MEMCPY, "copy", 100, 450)]
    edges = [(i, 5 + i, Dependency.LAUNCH) for i in range(5)] + [(1, 10, Dependency.LAUNCH)]
    edges += [(10, 7, Dependency.STREAM_WAIT)] * awaited
    marks = [Step(0, f"ProfilerStep#{i}", 90 * i * US, (90 * i + 90) * US, lane=1) for i in range(5)]
    return draw_graph([Processor(0, False, "thread 1", lane=1), *streams], tasks, edges, marks)


def test_a_copy_that_nobody_awaits_completes_no_step(draw_graph):
    """The copy ends with step 4, and every step is complete with its own kernel."""
    times = times_of(beside(draw_graph))
    assert [t.completion_ns // US for t in times.job] == [90, 180, 270, 360, 450]
    assert times.headline.step_time_ns == 90 * US


def test_work_that_the_next_step_waits_for_completes_its_step(draw_graph):
    assert [t.completion_ns // US for t in times_of(beside(draw_graph, awaited=True)).job][:2] == [90, 450]


def test_the_step_of_the_job_is_complete_when_it_is_on_every_rank(cpu_ahead):
    """Rank 0 takes 30 a step and rank 1 takes 40: so does the job. Each rank's own steps keep their own times."""
    times = times_of(cpu_ahead((30, 30, 30), (40, 40, 40)))
    assert figures(times) == [
        ("ProfilerStep#0", "latency", 50, 50),
        ("ProfilerStep#1", "period", 40, 80),
        ("ProfilerStep#2", "period", 40, 110),
    ]
    assert [t.length_ns // US for t in times.ranks] == [40, 30, 30, 50, 40, 40]
    assert times.rank_steps_counted().tolist() == [False, True, True] * 2


def test_without_any_period_the_latency_is_the_time_of_the_step(cpu_ahead):
    times = times_of(cpu_ahead((30,)))
    assert times.headline == (40 * US, 40 * US, Basis.LATENCY, 40 * US, 1)
    assert times.rank_steps_counted().all()


def with_one_off(graph, *steps):
    """The graph with something in the launches of these steps that happens once."""
    tasks = np.array([2 * step for step in steps], np.int32)
    return replace(graph, one_off=OneOff(tasks, np.full(len(tasks), 0.5), np.ones(len(tasks), np.int8)))


def counted(times):
    return [time.name[-1] for time in times.counted]


def test_a_step_in_which_something_happens_once_is_left_out_whatever_it_takes(cpu_ahead):
    """Steps 1 and 5 load code, and step 3 takes long: the longest run without loading is 2 to 4, of which step 2 shows when 3 begins."""
    times = times_of(with_one_off(cpu_ahead((30, 30, 30, 90, 30, 30)), 1, 5))
    assert counted(times) == ["3", "4"]
    assert times.headline.step_time_ns == 60 * US
    assert [step.once != "" for step in times.owners.job] == [False, True, False, False, False, True]
    (finding,) = (found for found in times.findings() if found.code == "step-left-out")
    assert "ProfilerStep#1 (30.00 µs, module-loading)" in finding.message and "#3" not in finding.message


def test_a_long_step_counts(cpu_ahead):
    """Periods of 30, 200 and 30: their mean is said beside the median, which is far from it."""
    times = times_of(cpu_ahead((30, 30, 200, 30)))
    assert counted(times) == ["1", "2", "3"]
    assert times.headline[:1] == (round(260 / 3 * US),)
    assert times.headline.median_ns == 30 * US
    assert [found.code for found in times.findings()] == ["steps-uneven"]


@pytest.mark.parametrize(
    ("periods", "kinds", "left_out"),
    [
        ("93939", "00000", 1),
        ("3393393", "0000000", 1),
        ("9393", "0000", 0),
        ("93485", "01010", 0),
        ("55555", "00000", 0),
        ("33933", "01001", 2),  # the cycle of three is not there twice, but what the steps do comes round with it
        ("33943", "01001", 2),
        ("33933", "01100", 0),
        ("585958", "000100", 2),  # what the steps do comes round after four, not after two
        ("585958", "010101", 0),
    ],
)
def test_of_steps_that_come_round_in_a_cycle_only_whole_cycles_count(periods, kinds, left_out):
    cycle = cycle_of(np.array([int(period) for period in periods]), lambda: [int(kind) for kind in kinds])
    assert (len(periods) % cycle if cycle else 0) == left_out


def test_steps_that_differ_by_design_are_listed_as_kinds(draw_graph):
    """Two steps accumulate, the third updates as well; of the five steps with a period, the last three are a whole cycle."""
    names = [["forward"], ["forward"], ["forward", "update"], ["forward"], ["forward"], ["forward", "update"]]
    tasks, marks = [], []
    for i, step in enumerate(names):
        marks.append(Step(0, f"ProfilerStep#{i}", 20 * i * US, (20 * i + 20) * US, lane=1))
        tasks += [(0, Kind.OPERATOR, name, 20 * i + 10 * j, 20 * i + 10 * j + 10) for j, name in enumerate(step)]
    times = times_of(draw_graph([Processor(0, False, "thread 1", lane=1)], tasks, [], marks))
    (finding,) = (found for found in times.findings() if found.code == "step-kinds")
    assert finding.message == "the 3 steps that count are of 2 kinds: 2 like ProfilerStep#3, 1 like ProfilerStep#5"


def test_a_job_without_work_in_its_steps_has_no_time(two_steps):
    with pytest.raises(GraphError, match="no step that owns any work"):
        _ = times_of(replace(two_steps, steps=(Step(0, "ProfilerStep#9", -9 * US, 0),))).headline


def test_work_launched_before_the_window_belongs_to_no_step(draw_graph):
    thread, stream = Processor(3, False, "thread 1"), Processor(3, True, "stream 7", 0, 7)
    tasks = [
        (0, Kind.OPERATOR, "A", 0, 10),
        (0, Kind.LAUNCH, "launch", 10, 12),
        (1, Kind.KERNEL, "early", 0, 20),
        (1, Kind.KERNEL, "mine", 20, 30),
        (1, Kind.KERNEL, "orphan", 30, 35),
    ]
    graph = draw_graph([thread, stream], tasks, [(1, 3, Dependency.LAUNCH)], (Step(3, "s", 0, 100 * US),), release=[(0, 0), (2, 0)])
    owners = members(graph)
    assert owners.prefix.tolist() == [False, False, True, False, False]
    assert owners.tasks(0).tolist() == [0, 1, 3, 4]


def test_an_assembled_graph_is_one_step_a_rank(two_steps):
    graph = replace(two_steps, measured_start=None, measured_end=None, steps=())
    timeline = Timeline(graph, two_steps.measured_start, two_steps.measured_end, "replayed")
    times = step_times(timeline, members(graph))
    assert figures(times) == [("step", "latency", 150, 150)]


def test_the_end_of_a_recording_cuts_what_a_thread_prepares():
    """A loader makes two batches, one, or none in a step; in the last it has made one of two. Without a cycle, any step may be its like."""
    ahead = np.array([[2], [1], [0], [2], [1], [0], [1]])
    assert lacks_work_ahead(ahead, 3) and not lacks_work_ahead(ahead[:-1], 3) and not lacks_work_ahead(ahead, 0)
    assert lacks_work_ahead(np.array([[1], [1], [0]]), 0) and not lacks_work_ahead(ahead[:1], 0)
