"""Memory-bound kernels and host launches: bytes and caches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.cost.cluster import Accelerator, load_cluster
from lumos.cost.coefficients import Coefficients
from lumos.cost.estimate import Bound
from lumos.cost.memory_bound_model import TRAFFIC_CLASSES, moved
from lumos.errors import UsageError

CLASS = st.sampled_from(TRAFFIC_CLASSES)


def device(name: str = "h100") -> Accelerator:
    return load_cluster(name).accelerator


@given(CLASS, st.integers(1, 2**36), st.sampled_from(["h100", "a100-40gb", "v100", "b200"]))
def test_no_faster_than_its_bytes_once_they_outgrow_the_cache(kind: str, traffic: int, name: str) -> None:
    a = device(name)
    e = moved(traffic, a, kind)
    beyond = max(0.0, traffic - (a.cache_bytes or 0) * 2)
    assert e.roofline <= e.low <= e.time <= e.high
    assert e.low + 1 >= beyond / (a.memory_bytes_per_s or 1) * 1e9


@given(CLASS, st.integers(1, 2**34), st.integers(0, 2**34))
def test_more_bytes_never_take_less(kind: str, traffic: int, more: int) -> None:
    small, large = moved([traffic, traffic + more], device(), kind).time
    assert small <= large


def test_small_tensors_cost_the_launch_large_ones_the_memory() -> None:
    e = moved([6, 6 * 2**30], device())
    assert e.bounds() == ["latency", "memory"]
    ideal = 6 * 2**30 / 3.35e12
    assert ideal < e.time[1] / 1e9 < 1.3 * ideal


def test_a_class_that_was_not_fitted_on_a_device_starts_as_fast_as_its_contiguous_passes_do() -> None:
    def launching(launch_us: float) -> Coefficients:
        values: dict[str, float | list[float]] = {"launch_us": launch_us, "overhead": 0.1, "cache_speedup": 1.0, "cache_share": 0.5}
        return Coefficients(values, (0.8, 1.25), {})

    together = {"pointwise": launching(4.0), "normalisation": launching(6.0)}
    book = {"memory_bound": {"generic": together, "h100": {"pointwise": launching(2.0)}}}
    assert [int(moved(1, device(), kind, book=book).time) for kind in ("pointwise", "normalisation")] == [2000, 3000]
    assert int(moved(1, device("a100-40gb"), "normalisation", book=book).time) == 6000
    only = {"memory_bound": {"generic": {"normalisation": launching(6.0)}}}
    assert int(moved(1, device(), "normalisation", book=only).time) == 6000


def test_instructions_and_elements_in_turn_hold_a_kernel_back() -> None:
    """By hand on H100: 132 cores at 1.83 GHz issue 128 instructions a clock, and hold 2,048 threads that wait 479 clocks for an element."""
    short = float(moved(4, device()).time)
    issued = moved(4, device(), instructions=132 * 128 * 1.83e9 * 1e-3)
    fetched = moved(4, device(), in_turn=132 * 2048 * 1.83e9 / 479 * 1e-3)
    assert float(issued.time) - short == pytest.approx(1e6, rel=1e-3)
    assert float(fetched.time) - short == pytest.approx(1e6, rel=1e-3)
    assert Bound(int(issued.bound_by)) is Bound.COMPUTE
    assert moved(0, device(), instructions=1e9).time == 0
    with pytest.raises(UsageError, match="zero or more"):
        moved(4, device(), instructions=-1)
