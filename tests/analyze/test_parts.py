"""The named parts of steps drawn by hand: how long a rank waits, and for what."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_collectives

from lumos.analyze.breakdown import breakdowns
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulation.timeline import measured
from lumos.trace.table import Category, Job

US = 1000


def parts(timeline, job=None):
    """For every step the parts that take time, µs."""
    return [{key: ns // US for key, ns in step.parts._asdict().items() if ns} for step in breakdowns(timeline, job=job)]


def between_two(graph, tasks):
    """The graph with those of its collectives as a send and a receive."""
    calls = [(tasks[0], "send", -1, 0, -1, 1), (tasks[1], "receive", -1, 0, -1, 0)]
    return replace(graph, collectives=drawn_collectives(calls, ["pair"]))


def test_one_rank_by_hand(two_steps):
    """Step 0 (0–80): k1 14–40, the collective alone 40–60. The CPU works 0–14 and 70–80; between, from 60 on, it pauses. Step 1 (80–150):
    it pauses until 105, works until 117, and 2 µs later k2 runs."""
    first, second = parts(measured(two_steps))
    assert first == {"compute_ns": 26, "communication_ns": 20, "host_ns": 24, "host_between_operators_ns": 10}
    assert second == {"compute_ns": 31, "host_between_operators_ns": 25, "host_ns": 14}


def test_waiting_for_a_rank_that_arrives_later_is_imbalance(two_ranks):
    """Rank 0 is in the all-reduce from 14 on, rank 1 from 44. The transfer ends at 64; rank 1 completes the step at 72."""
    zero, one = parts(measured(two_ranks))
    assert zero == {"host_ns": 14 + 3, "imbalance_ns": 30, "communication_ns": 20, "compute_ns": 5}
    assert one == {"host_ns": 44, "communication_ns": 20, "compute_ns": 8}


def test_waiting_in_a_send_or_receive_is_a_pipeline_bubble(two_ranks):
    zero, one = parts(measured(between_two(two_ranks, [3, 8])))
    assert zero == {"host_ns": 14 + 3, "pipeline_bubble_ns": 30, "communication_ns": 20, "compute_ns": 5}
    assert one == {"host_ns": 44, "communication_ns": 20, "compute_ns": 8}


@pytest.fixture
def cpu_ranks(draw_graph):
    """Two ranks without devices: work 0–10 and 0–30, a transfer together 30–35; then rank 1 pauses until 40 and works until 50."""
    processors = [Processor(0, False, "thread 1"), Processor(1, False, "thread 1")]
    tasks = [
        (0, Kind.OPERATOR, "A", 0, 10),
        (0, Kind.COLLECTIVE, "gloo", 10, 35),
        (1, Kind.OPERATOR, "A", 0, 30),
        (1, Kind.COLLECTIVE, "gloo", 30, 35),
        (1, Kind.HOST, "between", 35, 40),
        (1, Kind.OPERATOR, "B", 40, 50),
    ]
    graph = draw_graph(processors, tasks, steps=(Step(0, "s", 0, 100 * US), Step(1, "s", 0, 100 * US)))
    return replace(graph, rendezvous_offset=np.array([0, 2]), rendezvous_task=np.array([1, 3], np.int32))


def test_a_rank_without_devices_that_runs_nothing_waits_for_the_others(cpu_ranks):
    zero, one = parts(measured(cpu_ranks))
    assert zero == {"compute_ns": 10, "imbalance_ns": 20 + 15, "communication_ns": 5}
    assert one == {"compute_ns": 40, "communication_ns": 5, "host_between_operators_ns": 5}


@pytest.fixture
def loader(draw_graph, record):
    """A step that works 0–10, is between operators until 60, launches until 62; the kernel runs 64–80.

    The rows of the trace say where the data loader runs: on the thread of the loop (lane 0) or beside it (lane 1).
    """

    def job(*rows):
        threads = [Processor(0, False, "thread 1", lane=0), Processor(0, False, "pt_data_worker", lane=1)]
        tasks = [
            (0, Kind.OPERATOR, "A", 0, 10),
            (0, Kind.HOST, "between", 10, 60),
            (0, Kind.LAUNCH, "launch", 60, 62),
            (1, Kind.OPERATOR, "read", 12, 58),
            (2, Kind.KERNEL, "k", 64, 80),
        ]
        processors = [*threads, Processor(0, True, "stream 7", 0, 7)]
        steps, lag = [Step(0, "ProfilerStep#1", 0, 100 * US, lane=0)], {Dependency.LAUNCH: 2}
        graph = draw_graph(processors, tasks, [(2, 4, Dependency.LAUNCH)], steps, lag, release=[(0, 0), (3, 12)])
        return graph, Job((record(*((category, name, lane, a * US, (b - a) * US) for category, name, lane, a, b in rows)),))

    return job


@pytest.mark.parametrize(
    ("category", "name"),
    [
        (Category.ANNOTATION, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        (Category.OPERATOR, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        (Category.PYTHON, "torch/utils/data/dataloader.py(630): __next__"),
        (Category.ANNOTATION, "## data_load ##"),
    ],
)
def test_data_loading_and_the_pauses_around_it(loader, category, name):
    """Of the 50 µs between operators, the thread spends 20–50 in the data loader."""
    graph, job = loader((category, name, 0, 20, 50))
    (found,) = parts(measured(graph), job)
    assert found == {"data_loading_ns": 30, "host_between_operators_ns": 20, "host_ns": 10 + 2 + 2, "compute_ns": 16}


@pytest.mark.parametrize(
    "row",
    [
        (Category.ANNOTATION, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, 20, 50),
        (Category.PYTHON, "train_with_dataloader.py(3): <module>", 0, 0, 90),
    ],
    ids=["beside the loop", "another name"],
)
def test_what_is_no_data_loading(loader, row):
    graph, job = loader(row)
    for known in (job, None):
        (found,) = parts(measured(graph), known)
        assert found == {"host_between_operators_ns": 50, "host_ns": 14, "compute_ns": 16}


def test_gaps_waits_and_what_is_unexplained(draw_graph):
    """Two streams: k1 1–10, k2 13–20 (a gap of 3), k3 90–100 (70 µs later, for no known cause), m 105–110 (waits for k3, 5 µs)."""
    processors = [Processor(0, False, "t"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [(0, Kind.LAUNCH, "l", i, i + 1) for i in range(4)]
    tasks += [(1, Kind.KERNEL, "k", 1, 10), (1, Kind.KERNEL, "k", 13, 20), (1, Kind.KERNEL, "k", 90, 100), (2, Kind.KERNEL, "m", 105, 110)]
    edges = [(i, 4 + i, Dependency.LAUNCH) for i in range(4)] + [(6, 7, Dependency.STREAM_WAIT)]
    graph = draw_graph(processors, tasks, edges, (Step(0, "s", 0, 200 * US),), lag={Dependency.STREAM_WAIT: 4})
    (found,) = parts(measured(graph))
    assert found == {"compute_ns": 31, "host_ns": 1, "kernel_gap_ns": 3, "wait_ns": 5, "unexplained_ns": 70}
