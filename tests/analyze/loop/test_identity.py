"""The base of an answer, held against the measured step, on jobs drawn by hand (µs)."""

import pytest

from lumos.analyze.loop.noise import identity
from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members, step_times
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulation.timeline import measured
from lumos.vocabulary import Grade

US = 1000


@pytest.fixture
def pauses(draw_graph):
    """Four steps of 100 on one thread. In each that counts, a part of the time passes without any task: the base lacks it."""

    def job(idle):
        tasks = [(0, Kind.OPERATOR, "work", 100 * i + (idle if i else 0), 100 * i + 100) for i in range(4)]
        marks = [Step(0, f"ProfilerStep#{i}", 100 * i * US, 100 * (i + 1) * US, lane=1) for i in range(4)]
        return draw_graph([Processor(0, False, "thread 1", lane=1)], tasks, [], marks)

    return job


def found(graph, **changes):
    owners = members(graph)
    times = step_times(measured(graph), owners)
    return identity(graph, steady(owners, **changes), times)


@pytest.mark.parametrize(("idle", "grade"), [(0, None), (3, Grade.LIMITED), (12, Grade.UNSOUND)])
def test_a_base_that_is_not_the_recorded_job_is_not_sound(pauses, idle, grade):
    off, evidence = found(pauses(idle))
    assert off == pytest.approx(-idle / 100)
    assert [each.grade for each in evidence] == ([] if grade is None else [grade])
    for each in evidence:
        assert each.code == "base-off" and f"{100 - idle}.00 µs a step, and 100.0 µs were measured" in each.message


def test_the_loop_of_a_single_step_is_held_against_nothing(draw_graph):
    """A launch of 10 and a kernel of 30: the latency is 40 and the loop takes 30, which nothing says is right."""
    processors = [Processor(0, False, "thread 1"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.LAUNCH, "launch", 0, 10), (1, Kind.KERNEL, "k", 10, 40)]
    graph = draw_graph(processors, tasks, [(0, 1, Dependency.LAUNCH)], [Step(0, "ProfilerStep#0", 0, 40 * US)])
    assert found(graph) == (0.0, ())
    off, (evidence,) = found(graph, repeat=True)
    assert (off, evidence.code, evidence.grade) == (0.0, "no-period", Grade.LIMITED)
