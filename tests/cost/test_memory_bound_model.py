"""Memory-bound kernels and host launches: bytes, caches, fusion."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.cost.cluster import Accelerator, load_cluster
from lumos.cost.coefficients import Coefficients
from lumos.cost.estimate import Bound
from lumos.cost.memory_bound_model import WORK, bytes_per_element, fused, memory_bound, moved
from lumos.errors import LumosError, UsageError

KIND = st.sampled_from(sorted(WORK))


def device(name: str = "h100") -> Accelerator:
    return load_cluster(name).accelerator


@given(KIND, st.integers(1, 2**34), st.sampled_from(["h100", "a100-40gb", "v100", "b200"]))
def test_no_faster_than_its_bytes_once_they_outgrow_the_cache(kind: str, elements: int, name: str) -> None:
    a = device(name)
    e = memory_bound(kind, elements, a, "fp16")
    beyond = max(0.0, elements * bytes_per_element(kind, "fp16") - (a.cache_bytes or 0) * 2)
    assert e.roofline <= e.low <= e.time <= e.high
    assert e.low + 1 >= beyond / (a.memory_bytes_per_s or 1) * 1e9


@given(KIND, st.integers(1, 2**32), st.integers(0, 2**32))
def test_more_elements_never_take_less(kind: str, elements: int, more: int) -> None:
    small, large = memory_bound(kind, [elements, elements + more], device()).time
    assert small <= large


def test_bytes_of_known_kernels() -> None:
    assert bytes_per_element("residual", "bf16") == 6
    assert bytes_per_element("gradient_accumulation", "bf16") == 10
    assert bytes_per_element("adam", "bf16") == 30  # 4 read + 8 + 8 moments + 8 master + 2 written
    assert bytes_per_element("cast_to_fp32", "bf16") == 6


def test_doubling_the_memory_never_slows() -> None:
    base = device()
    faster = msgspec.structs.replace(base, memory_bytes_per_s=2 * (base.memory_bytes_per_s or 0))
    for elements in (1, 10**6, 10**9):
        assert memory_bound("residual", elements, faster).time <= memory_bound("residual", elements, base).time


def test_small_tensors_cost_the_launch_large_ones_the_memory() -> None:
    e = memory_bound("residual", [1, 2**30], device())
    assert e.bounds() == ["latency", "memory"]
    ideal = 6 * 2**30 / 3.35e12
    assert ideal < e.time[1] / 1e9 < 1.3 * ideal


def test_fusion_saves_what_is_not_written() -> None:
    apart = [memory_bound(k, 2**28, device()) for k in ("dropout", "residual", "layer_norm")]
    together = fused(["dropout", "residual", "layer_norm"], 2**28, device())
    assert together.time < 0.75 * sum(int(e.time) for e in apart)
    assert fused(["activation"], 2**28, device()).time == memory_bound("activation", 2**28, device()).time
    with pytest.raises(UsageError, match="no kinds"):
        fused([], 1, device())


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


def test_no_bytes_no_time() -> None:
    assert moved(0, device()).time == 0


def test_bad_input_is_refused() -> None:
    with pytest.raises(UsageError, match="'norm' is not known; valid: copy"):
        memory_bound("norm", 1, device())
    with pytest.raises(UsageError, match="zero or more"):
        memory_bound("copy", -1, device())
    with pytest.raises(LumosError, match="not published"):
        memory_bound("copy", 1, device("m2-inference"))
