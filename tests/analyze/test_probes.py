import pytest

from lumos.analyze.replay import probes
from lumos.graph.table import Dependency, Kind, Processor, Step

US = 1000


def gpu_bound(draw_graph):
    """A launch of 10 µs and a kernel of 90 µs, awaited: the kernel sets the pace."""
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.LAUNCH, "l", 0, 10), (0, Kind.OPERATOR, "after", 100, 110), (1, Kind.KERNEL, "k", 10, 100)]
    edges = [(0, 2, Dependency.LAUNCH), (2, 1, Dependency.SYNC)]
    return draw_graph(processors, tasks, edges, (Step(0, "s", 0, 200 * US),))


def test_gpu_time_and_cpu_time_by_hand(draw_graph):
    found = probes(gpu_bound(draw_graph))
    assert found.gpu_zero == pytest.approx(20 / 110)
    assert found.cpu_double == pytest.approx(130 / 110)
    assert found.slow_rank == (None,)


def test_a_copied_start_shows(draw_graph):
    """The same job with its last task's start taken from the trace, so that device work of no duration does not make it earlier."""
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.LAUNCH, "l", 0, 10), (0, Kind.OPERATOR, "after", 100, 110), (1, Kind.KERNEL, "k", 10, 100)]
    graph = draw_graph(processors, tasks, [(0, 2, Dependency.LAUNCH)], (Step(0, "s", 0, 200 * US),), release=[(1, 100)])
    assert probes(graph).gpu_zero == pytest.approx(1.0)


def test_a_slow_rank_slows_the_others_only_where_they_meet(draw_graph):
    processors = [Processor(rank, False, "t") for rank in (0, 1)]
    tasks = [
        (0, Kind.OPERATOR, "a", 0, 100),
        (0, Kind.OPERATOR, "b", 100, 200),
        (1, Kind.OPERATOR, "a", 0, 100),
        (1, Kind.OPERATOR, "b", 100, 200),
    ]
    steps = tuple(Step(rank, "s", 0, 500 * US) for rank in (0, 1))
    apart = probes(draw_graph(processors, tasks, steps=steps))
    assert apart.slow_rank == (1.0, 1.0)
    meet = probes(draw_graph(processors, tasks, [(0, 3, Dependency.DATA)], steps))
    assert meet.slow_rank == (pytest.approx(1.25), 1.0)


def test_steps_are_compared_by_their_periods(draw_graph):
    """Three launches of 10 µs, whose kernels of 30 µs follow one another: the last two steps take 30 µs each as completed, 10 without the
    kernels' time. The first step has no period and does not count."""
    processors = [Processor(0, False, "t", lane=1), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.LAUNCH, "l", 10 * i, 10 * i + 10) for i in range(3)]
    tasks += [(1, Kind.KERNEL, "k", 10 + 30 * i, 40 + 30 * i) for i in range(3)]
    edges = [(i, 3 + i, Dependency.LAUNCH) for i in range(3)]
    steps = [Step(0, f"ProfilerStep#{i}", 10 * i * US, (10 * i + 10) * US) for i in range(3)]
    found = probes(draw_graph(processors, tasks, edges, steps))
    assert found.gpu_zero == pytest.approx(20 / 60)
    assert found.cpu_double == pytest.approx(60 / 60)
