"""Times and sizes of a family's transfers, with values that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from tests.chakra.synthesis.test_family import FACTS, plan

from lumos.chakra.lower import lower
from lumos.chakra.synthesis.trends import fitted, ranks_of, transfer_times
from lumos.chakra.workload import Workload


def timed(workload: Workload, latency: int, hop: int, byte: float) -> Workload:
    """The workload whose transfers take a latency, a time for each other rank, and a time for each byte that passes a link of a ring."""
    others, facts = ranks_of(workload) - 1, workload.communication
    duration = workload.duration.copy()
    duration[facts.node] = np.rint(latency + hop * others + byte * facts.size * others / (others + 1)).astype(np.int64)
    return replace(workload, duration=duration)


def test_a_transfer_of_a_size_and_ranks_that_no_set_has_takes_its_parts() -> None:
    """Learned from groups of 2, 4 and 8 ranks: 5 µs, 2 µs for each other rank, and 0.5 ns a byte that passes a link."""
    found = fitted([timed(lower(plan(*facts)), 5000, 2000, 0.5) for facts in FACTS])
    for weights in found.values():
        [time] = transfer_times(weights, np.array([1e6]), np.array([4.0]))
        assert time == pytest.approx(5000 + 2000 * 3 + 0.5 * 1e6 * 3 / 4, rel=0.03)
        assert min(weights) >= 0
