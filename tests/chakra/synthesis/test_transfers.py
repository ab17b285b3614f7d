"""Times and sizes of a family's transfers, with values that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from tests.chakra.synthesis.test_family import FACTS, KEYS, plan

from lumos.chakra.lower import lower
from lumos.chakra.synthesis.family import sample_family
from lumos.chakra.synthesis.model import learn
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


def test_no_part_is_negative_although_more_ranks_took_less_time() -> None:
    """With less than no time for each other rank, 100 ranks would take less than none."""
    found = fitted([timed(lower(plan(*facts)), 50_000, -3000, 0.5) for facts in FACTS])
    for weights in found.values():
        assert min(weights) >= 0
        assert transfer_times(weights, np.array([1000.0]), np.array([100.0]))[0] > 0


def test_transfers_that_take_no_time_have_no_parts() -> None:
    workload = lower(plan(2, 2, 4, 10))
    assert fitted([replace(workload, duration=0 * workload.duration)]) == {}


def test_a_sample_has_the_times_of_its_own_sizes() -> None:
    """A latency of 200 µs beside 40 to 160 KB is no power of the width; it must come out at a width that no set has."""
    sets = [timed(lower(plan(*facts)), 200_000, 0, 2.0) for facts in FACTS]
    model = learn(sets, [dict(zip(KEYS, facts, strict=True)) for facts in FACTS])
    drawn = lower(sample_family(model, 1, {"tp": 2, "dp": 2, "layers": 4, "width": 80}).graph)
    inner = drawn.communication.node[drawn.communication.size > 300_000]
    assert len(inner) == 4 * 4  # four layers on four ranks
    assert drawn.duration[inner] == pytest.approx(200_000 + 2.0 * 320_000 / 2, rel=0.04)


@pytest.mark.parametrize(("width", "spread"), [(10, 0.3), (40, 0.0)])
def test_a_transfer_varies_as_those_that_take_about_as_long(width: int, spread: float) -> None:
    """Of the shortest transfers every second one takes 30 % more or less, as whole microseconds would make it; of the longer ones none."""
    sets = [timed(lower(plan(*facts)), 1000, 0, 1.0) for facts in FACTS]
    for one, facts in zip(sets, FACTS, strict=True):
        inner = one.communication.node[one.communication.size == 4000 * facts[-1]]
        one.duration[inner] = np.rint(one.duration[inner] * (1 + (0.3 if facts[-1] == 10 else 0.0) * np.resize([1, -1], len(inner))))
    model = learn(sets, [dict(zip(KEYS, facts, strict=True)) for facts in FACTS])
    drawn = lower(sample_family(model, 1, {"tp": 2, "dp": 2, "layers": 6, "width": width}).graph)
    lasted = drawn.duration[drawn.communication.node[drawn.communication.size > 3000 * width]]
    assert lasted.std() / lasted.mean() == pytest.approx(spread, abs=0.1)
