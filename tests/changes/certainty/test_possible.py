"""Answers that cannot be, on a job of two threads that launch to one stream (µs)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analyze.loop.test_bounds import graph_of

from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.changes.certainty.possible import check_size, schedulable
from lumos.changes.certainty.unmeasured import open_share
from lumos.errors import GraphError, LumosError
from lumos.graph.table import Dependency, Kind, Occupancy

US = 1000


@pytest.fixture
def base():
    """Thread 1 works 10, launches K1 of 10, waits for the stream and works 50. Thread 2 works 8 and launches K2 of 40.

    K2 is launched first: it runs 8 to 48, K1 48 to 58, and thread 1 is done at 108.
    """
    tasks = [
        (0, Kind.OPERATOR, "first", 10),
        (1, Kind.OPERATOR, "second", 8),
        (1, Kind.LAUNCH, "launch K2", 0),
        (0, Kind.LAUNCH, "launch K1", 0),
        (0, Kind.SYNC, "wait", 0),
        (0, Kind.RETURN, "return", 0),
        (0, Kind.OPERATOR, "after", 50),
        (2, Kind.KERNEL, "K2", 40),
        (2, Kind.KERNEL, "K1", 10),
    ]
    return steady(members(graph_of(tasks, [(8, 5, Dependency.SYNC), (2, 7, Dependency.LAUNCH), (3, 8, Dependency.LAUNCH)])))


def test_a_job_too_large_to_compute_says_what_it_would_take():
    check_size(1_000_000, {"layers": 96}, {"layers": 4, "microbatches": 2})  # 24 million tasks
    with pytest.raises(LumosError, match=r"--set layers=48, microbatches=8: .* about 48,000,000 tasks instead of 1,000,000.* 16 GB"):
        check_size(1_000_000, {"layers": 48, "microbatches": 8, "seq": 10}, {"layers": 4, "microbatches": 2})


def test_a_job_that_does_not_fit_together_says_which_change_did_it():
    orders = "ranks 0, 1 reach the same collectives in different orders"
    with (
        pytest.raises(LumosError, match=r"^microbatches = 2: .* \(2 tasks wait; ranks 0, 1 reach .* orders\)"),
        schedulable("microbatches = 2"),
    ):
        raise GraphError(f"2 tasks wait\n  rank 0 waits\n  {orders}\n  drop a dependency")


def test_what_is_left_open_may_be_shorter_than_what_a_kernel_holds(base):
    """K2 fills the device for all of its 40. At 10 the stream is done with K1 at 28, and thread 1 at 78 instead of 108."""
    graph = base.loop.graph
    held = Occupancy(np.array([7], np.int32), np.ones(1, np.float32), np.array([40 * US]))
    loop = steady(members(replace(graph, occupancy=held)))
    low = np.where(np.arange(len(graph)) == 7, 10 * US, graph.duration)
    assert open_share(loop, low < graph.duration, low, graph.duration) == pytest.approx(30 / 108)
