"""The GEMM model: physical properties, and shapes whose time can be checked by hand."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.cost.cluster import Accelerator, load_cluster
from lumos.cost.gemm_model import GEMM_PRIOR, GemmWork, gemm, gemm_seconds
from lumos.cost.power import held_clock
from lumos.errors import UsageError
from lumos.vocabulary import DType

SIZE = st.integers(1, 60_000)
CASES = st.sampled_from([("h100", "bf16"), ("a100-80gb", "bf16"), ("b200", "fp8"), ("gb200", "bf16"), ("mi300x", "bf16"), ("v100", "fp16")])


def device(name: str) -> Accelerator:
    return load_cluster(name).accelerator


@given(SIZE, SIZE, SIZE, CASES)
def test_never_faster_than_the_roofline(m: int, n: int, k: int, case: tuple[str, str]) -> None:
    name, dtype = case
    a = device(name)
    size = 1 if dtype == "fp8" else 2
    compute = 2 * m * n * k / a.peak(dtype)
    memory = ((m * k + k * n) * size + 2 * m * n) / (a.memory_bytes_per_s or 0)
    e = gemm(m, n, k, a, dtype)
    assert e.low <= e.time <= e.high
    assert e.low + 1 >= max(compute, memory) * 1e9
    assert 0 <= e.fraction_of_peak <= 1


@given(SIZE, SIZE, SIZE, st.sampled_from(["m", "n", "k"]), st.integers(1, 5000), CASES)
def test_monotone_in_every_size(m: int, n: int, k: int, grown: str, more: int, case: tuple[str, str]) -> None:
    small = {"m": m, "n": n, "k": k}
    large = {**small, grown: small[grown] + more}
    assert gemm(**small, accelerator=device(case[0]), dtype=case[1]).time <= gemm(**large, accelerator=device(case[0]), dtype=case[1]).time


def test_one_tile_more_than_a_wave_costs_another_wave() -> None:
    """132 cores and tiles of 128 x 128: 132 tiles fill one wave, 133 need two; with compute alone, twice the time."""
    work = GemmWork(1e15, 1e30, 132, 1e30, 2, 2, False, False, 1.0)
    only = GEMM_PRIOR._replace(
        launch_us=1e-9, prologue_us=1e-9, throttle=1e-9, compute_overhead=1e-9, tile_overhead=(9, 9, 1e-9, 9, 9, 9, 9)
    )
    k = np.array([65536.0])
    one, two = (gemm_seconds(np.array([128.0 * t]), np.array([128.0]), k, work, only)[0] for t in (132, 133))
    flops = 2 * 128 * 128 * 65536
    assert one == pytest.approx(132 * flops / 1e15, rel=1e-3)
    assert one * 1.12 < two <= 2 * one  # a split along k fills part of the second wave


def test_groups_cost_their_tiles() -> None:
    a = device("h100")
    even, uneven = gemm([[512] * 8, [4089] + [1] * 7], 4096, 4096, a, grouped=True).time
    assert even <= uneven
    assert gemm([4096], 4096, 4096, a, grouped=True).time == gemm(4096, 4096, 4096, a).time
    assert gemm([0, 0], 4096, 4096, a, grouped=True).time == 0


def test_fp8_is_faster_than_bf16_and_its_cast_costs() -> None:
    a = device("h100")
    with_cast, without = gemm(8192, 8192, 8192, a, "fp8"), gemm(8192, 8192, 8192, a, "fp8", cast=False)
    assert without.time < with_cast.time < gemm(8192, 8192, 8192, a, "bf16").time


def test_a_slower_clock_slows_what_power_limits_in_a_step() -> None:
    a = device("b200")
    fast, slow = (gemm(16384, 16384, 16384, a, clock=clock, in_step=True) for clock in (1.0, 0.8))
    assert slow.time == pytest.approx(fast.time / 0.8, rel=0.02)
    assert gemm(8192, 8192, 8192, a, clock=0.8).time == gemm(8192, 8192, 8192, a).time  # alone it is short


def test_power_does_not_limit_products_in_fp32() -> None:
    """On an A100 of 300 W the largest product of a mixture of experts took 5.58 ms: 105 GFLOP at 96 % of the 19.5 TFLOP/s in fp32."""
    a = device("a100-pcie")
    clock = held_clock(a, DType.FP32)
    in_step, alone = (int(gemm(512, 100_000, 1024, a, "fp32", clock=clock, in_step=how).time) for how in (True, False))
    assert in_step - 2200 == alone == pytest.approx(5.58e6, rel=0.03)  # in a step it starts for itself
    in_half = [int(gemm(8192, 8192, 8192, a, "bf16", clock=clock, in_step=how).time) for how in (True, False)]
    assert in_half[0] > in_half[1]


def test_fp32_is_split_along_k_only_where_tiles_leave_cores_idle() -> None:
    """128 tiles of 64 x 64 fill the 108 cores of an A100 more than once: two waves of k = 4,096. 16 tiles are split."""
    a = device("a100-80gb")
    whole, split = (int(gemm(rows, 1024, 4096, a, "fp32").time) for rows in (512, 64))
    wave = 64 * 64 * 4096 * 2 / (19.5e12 / 108) * 1e9
    assert 2 * wave < whole < 2.2 * wave and split < wave / 2


def test_beyond_the_fitted_range_is_answered_marked_and_wider() -> None:
    a = device("h100")
    inside, outside = gemm(4096, 4096, 4096, a), gemm(4096, 4096, 100_000, a)
    assert not inside.extrapolated and outside.extrapolated
    assert [d.code for d in outside.diagnostics] == ["extrapolated"]
    assert outside.high / outside.time > inside.high / inside.time


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"m": -1}, "m must be zero or more"), ({"m": float("nan")}, "m must be zero or more"), ({"clock": 0.0}, "clock is a fraction"),
     ({"dtype": "fp9"}, "dtype 'fp9' is not known"), ({"batch": -2}, "batch must be zero or more")],
)  # fmt: skip
def test_bad_input_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        gemm(**{"m": 1, "n": 1, "k": 1, "accelerator": device("h100"), **change})  # type: ignore[arg-type]


def test_kernels_of_the_generation_before_are_those_of_its_device_at_their_share_of_the_rate():
    h100, a100 = device("h100"), device("a100-80gb")
    older = h100.with_older_kernels()
    assert older.peak("bf16") == pytest.approx(0.629 * h100.peak("bf16"))
    e = gemm(8192, 8192, 8192, older)
    assert e.time > gemm(8192, 8192, 8192, h100).time
    # As on an A100 with the cores, clock, memory and rate of these kernels.
    same = msgspec.structs.replace(older, name="a100-80gb", fitted_as=())
    assert e.time == gemm(8192, 8192, 8192, same).time
    assert [note.code for note in e.diagnostics] == ["coefficients-of-kin"]
    assert a100.with_older_kernels() is a100, "nothing is known of those"


def test_an_image_that_several_taps_read_comes_from_memory_once():
    """A has 1,152 MB and C 64 MB: with nine taps a ninth of A is read."""
    whole, shared = (gemm(4_000_000, 8, 144, load_cluster("h100").accelerator, taps=taps) for taps in (1, 9))
    assert whole.roofline / shared.roofline == pytest.approx((1152 + 64) / (128 + 64), rel=1e-3)
    assert shared.time < whole.time
    with pytest.raises(UsageError, match="taps"):
        gemm(1, 1, 1, load_cluster("h100").accelerator, taps=0)
