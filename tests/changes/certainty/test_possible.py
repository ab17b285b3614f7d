"""Answers that cannot be, on a job of two threads that launch to one stream (µs)."""

from dataclasses import replace

import numpy as np
import pytest
from tests.analyze.loop.test_bounds import TWO_LAUNCHERS, graph_of

from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.changes.certainty.possible import check_size, schedulable
from lumos.changes.certainty.unmeasured import open_share
from lumos.errors import GraphError, LumosError
from lumos.graph.table import Occupancy

US = 1000


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


def test_what_is_left_open_may_be_shorter_than_what_a_kernel_holds():
    """K2 fills the device for all of its 40. At 10 the stream is done with K1 at 28, and thread 1 at 78 instead of 108."""
    graph = graph_of(*TWO_LAUNCHERS)
    held = Occupancy(np.array([7], np.int32), np.ones(1, np.float32), np.array([40 * US]))
    loop = steady(members(replace(graph, occupancy=held)))
    low = np.where(np.arange(len(graph)) == 7, 10 * US, graph.duration)
    assert open_share(loop, low < graph.duration, low, graph.duration) == pytest.approx(30 / 108)
