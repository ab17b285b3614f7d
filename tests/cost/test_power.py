"""Power limits: whose kernels stand for a device's, and the clock that its own limit allows."""

import msgspec
import pytest

from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import shipped_coefficients
from lumos.cost.power import attention_clock, held_clock, measured_relative
from lumos.vocabulary import DType


def accelerator(name):
    return load_cluster(name).accelerator


@pytest.mark.parametrize(
    ("name", "dtype", "relative"),
    [
        ("h100", DType.BF16, "h100"),
        ("h100-96gb", DType.BF16, "h100"),
        ("gb200", DType.BF16, "gb200"),
        ("gb200", DType.FP8, "b200"),  # whose multiplications in fp8 were measured
        ("gb300", DType.BF16, "gb200"),
        ("mi355x", DType.BF16, None),
    ],
)
def test_whose_multiplications_stand_for_a_device(name, dtype, relative):
    assert measured_relative(accelerator(name), dtype) == relative


def test_the_clock_follows_the_power_of_a_unit():
    assert held_clock(accelerator("h100")) == 1.0
    assert held_clock(accelerator("h100-96gb")) == pytest.approx((500 / 700) ** 0.75)
    assert held_clock(accelerator("gb300")) == pytest.approx((1400 / 1200) ** 0.75)
    # 1,200 W for 2.5 PFLOP/s, where the measured device has 1,000 W for 2.25
    assert held_clock(accelerator("gb200"), DType.FP8) == pytest.approx((480 / 444.4) ** 0.75, rel=0.001)
    assert held_clock(accelerator("mi355x")) == 1.0  # nothing of its kind was measured


@pytest.mark.parametrize("name", ["h100", "mi300x", "mi355x"])  # the first has its own measured kernels
def test_a_stated_limit_slows_multiplications_and_attention(name):
    whole = accelerator(name)
    limited = msgspec.structs.replace(whole, power_w=0.7 * whole.power_w)
    for clock in (held_clock, attention_clock):
        assert clock(limited) / clock(whole) == pytest.approx(0.7**0.75)


def test_attention_runs_at_the_clock_that_power_leaves():
    """AMD states 708 of 1,307.4 TFLOP/s in 16 bit for the MI300X (750 W), 843 for the MI325X (1,000 W)."""
    sustained = shipped_coefficients()["gemm"]["generic"]["bf16"].values["sustained"]
    assert attention_clock(accelerator("mi300x")) == pytest.approx(708 / 1307.4 / sustained)
    assert attention_clock(accelerator("mi325x")) == pytest.approx(843 / 1307.4 / sustained)
    assert attention_clock(accelerator("mi300x")) < attention_clock(accelerator("mi325x")) < 1
    assert attention_clock(accelerator("h100")) == 1.0  # its attention was measured
    assert attention_clock(accelerator("h100-96gb")) == held_clock(accelerator("h100-96gb"))
