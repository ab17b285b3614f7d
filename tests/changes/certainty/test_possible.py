"""Answers that cannot be."""

import pytest

from lumos.changes.certainty.possible import check_size, schedulable
from lumos.errors import GraphError, LumosError


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
