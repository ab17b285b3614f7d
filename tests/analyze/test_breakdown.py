import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.analyze.breakdown import NamedParts, breakdowns, four_way, mean_parts, variability
from lumos.analyze.loop.steps import members, step_times
from lumos.analyze.waiting.idle import Idle
from lumos.graph.table import Kind, Processor, Step
from lumos.simulation.timeline import measured
from lumos.vocabulary import Basis

US = 1000


def test_the_four_parts_by_hand(two_steps):
    """Step 0 is 0 … 80, known by its latency; step 1 is 80 … 150, from the completion of step 0 to the end of k2."""
    first, second = breakdowns(measured(two_steps))
    assert first.breakdown == (16 * US, 10 * US, 20 * US, 34 * US)
    assert second.breakdown == (31 * US, 0, 0, 39 * US)
    assert (first.basis, first.duration_ns, first.latency_ns) == (Basis.LATENCY, 80 * US, 80 * US)
    assert (second.basis, second.duration_ns, second.latency_ns) == (Basis.PERIOD, 70 * US, 45 * US)


def test_work_of_an_earlier_step_counts_where_it_runs(two_steps, shifted):
    """Kernels of both steps overlap: the collective of step 0 now runs 110–140, beside k2 of step 1 at 119–150. Nobody waits for it, so
    step 0 is complete with B, at 80, and the collective counts in step 1, where it runs."""
    late = shifted(two_steps, {10: (80, 80)})
    first, second = breakdowns(late)
    assert first.breakdown == (26 * US, 0, 0, 54 * US)
    assert second.breakdown == (10 * US, 21 * US, 9 * US, 30 * US)


def test_idle_by_cause_by_hand(two_steps):
    first, second = breakdowns(measured(two_steps))
    assert first.idle == Idle(14 * US + 20 * US, 0, 0, 0)  # before the first launch arrives, and with nothing queued
    assert second.idle == Idle(39 * US, 0, 0, 0)
    assert sum(first.idle) == first.breakdown.other_ns


def test_without_devices_operators_compute_and_collectives_communicate(draw_graph):
    threads = [Processor(0, False, "main"), Processor(0, False, "gloo")]
    tasks = [(0, Kind.OPERATOR, "mm", 0, 10), (0, Kind.HOST, "python", 10, 15), (1, Kind.COLLECTIVE, "gloo:all_reduce", 5, 20)]
    (step,) = breakdowns(measured(draw_graph(threads, tasks, steps=(Step(0, "s", 0, 50 * US),))))
    assert step.breakdown == (5 * US, 5 * US, 10 * US, 0)
    assert step.idle is None


SPANS = st.tuples(st.integers(0, 50), st.integers(0, 30))


@given(st.lists(SPANS, max_size=12), st.lists(SPANS, max_size=12), st.lists(SPANS, min_size=1, max_size=5))
def test_the_parts_sum_to_the_step_and_match_a_count_of_moments(draw_graph, compute, communication, operators):
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.OPERATOR, "op", s, s + d) for s, d in sorted(operators)]
    tasks += [(1, Kind.KERNEL, "k", s, s + d) for s, d in compute] + [(2, Kind.COLLECTIVE, "c", s, s + d) for s, d in communication]
    graph = draw_graph(processors, tasks, steps=(Step(0, "s", 0, 500 * US),))
    timeline, owners = measured(graph), members(graph)
    (parts,) = four_way(timeline, owners, step_times(timeline, owners).job_intervals())
    ends = [(t[3], t[4]) for t in tasks]
    step = set(range(min(s for s, _ in ends), max(e for _, e in ends)))
    a = {t for s, d in compute for t in range(s, s + d)} & step
    b = {t for s, d in communication for t in range(s, s + d)} & step
    if not compute and not communication:
        a = {t for s, d in operators for t in range(s, s + d)} & step
    assert [p // US for p in parts] == [len(a - b), len(a & b), len(b - a), len(step - a - b)]
    (found,) = breakdowns(timeline)
    assert sum(found.parts) == found.duration_ns
    assert found.parts.compute_ns == parts.exposed_compute_ns + parts.overlapped_ns
    assert found.parts.communication_ns == parts.exposed_communication_ns


def test_steps_of_a_rank(cpu_ahead):
    """The periods of the second and third step; the first has none."""
    graph = cpu_ahead((30, 30, 40))
    (found,) = variability(measured(graph), members(graph))
    assert (found.steps, found.min_ns, found.max_ns, found.mean_ns) == (2, 30_000, 40_000, 35_000)
    assert found.variation == pytest.approx(float(np.std([30, 40], ddof=1) / 35))


def test_the_steps_of_a_job_tile_its_time(cpu_ahead):
    """Two ranks, kernels from 10 µs on. Rank 0 completes its steps at 40, 70, 110, rank 1 at 50, 75, 105: the job at 50, 75, 110."""
    graph = cpu_ahead((30, 30, 40), (40, 25, 30))
    steps = breakdowns(measured(graph))
    assert [s.duration_ns // US for s in steps] == [50, 25, 35] * 2
    assert [s.breakdown.exposed_compute_ns // US for s in steps] == [40, 25, 35, 40, 25, 30]  # rank 1 ends 5 µs before rank 0
    assert mean_parts(steps) == {**dict.fromkeys(NamedParts._fields, 0), "compute_ns": 28_750, "host_ns": 1_250}
