"""Prices: each piece of work once, in batches; effects of the step's coefficients."""

import pytest

from lumos.blocks.price import SLOWER_KERNELS, Pricer, StepCoefficients, kernel_by_kernel, shipped_step_coefficients
from lumos.blocks.work import Attention, Collective, Contention, Fixed, Gemm, GroupedGemm, Traffic
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.gemm_model import gemm
from lumos.vocabulary import AttentionKernel, CollectiveKind, Direction

PLAIN = StepCoefficients(contention=0.25)
H100 = load_cluster("h100")
FLASH = Attention(1, 4096, 4096, 32, 8, 128, 128, True, Direction.FORWARD, AttentionKernel.FA2)


def times(*work, cluster=H100, coefficients=PLAIN):
    return [p.times.best for p in Pricer(cluster, coefficients)(work)]


def test_prices_are_those_of_the_cost_models():
    assert PLAIN.gemm == 1.0
    (mm, move) = times(Gemm(4096, 4096, 4096, "bf16"), Collective(CollectiveKind.ALL_GATHER, 8, 1 << 26, 8, 1, 8))
    assert mm == int(gemm(4096, 4096, 4096, H100.accelerator, "bf16", out_bytes=2, in_step=True).time)
    assert move == int(collective("all_gather", 8, 1 << 26, H100, per_node=8).time)


def test_where_every_kernel_is_known_each_takes_what_its_model_says():
    work = (Gemm(4096, 4096, 4096, "bf16"), FLASH, Traffic(1 << 28))
    assert times(*work, coefficients=kernel_by_kernel()) == times(*work)
    exchange = Collective(CollectiveKind.ALL_GATHER, 8, 1 << 26, 8, 1, 8)
    assert times(exchange, coefficients=kernel_by_kernel()) == times(exchange, coefficients=shipped_step_coefficients()) != times(exchange)


def test_one_by_one_and_together_agree():
    work = [Gemm(64 * i, 512, 1024, "bf16") for i in range(1, 6)] + [FLASH, Traffic(1 << 20), Traffic(1 << 20, 2, "strided"), Fixed(7)]
    assert times(*work) == [times(w)[0] for w in work]


def test_a_power_limit_lowers_what_a_long_multiplication_reaches():
    limited = load_cluster("h100-96gb")  # 500 W where the measured devices have 700
    work = Gemm(16384, 16384, 16384, "bf16")
    assert times(work, cluster=limited)[0] / times(work)[0] == pytest.approx((700 / 500) ** 0.75, rel=0.02)


def test_contention_is_a_share_of_the_concurrent_collective():
    move = Collective(CollectiveKind.ALL_GATHER, 8, 1 << 26, 8, 1, 8)
    whole, lost = times(move, Contention(move))
    assert lost == pytest.approx(0.25 * whole, abs=1)
    brief = Gemm(1024, 1024, 1024, "bf16")  # compute that ends before the exchange loses nothing afterwards
    alone, lost = times(brief, Contention(move, beside=(brief,)))
    assert lost == pytest.approx(0.25 * alone, abs=1)


def test_attention_of_earlier_years():
    new, old = times(FLASH, FLASH._replace(kernel="fa1"))
    assert old == pytest.approx(SLOWER_KERNELS["fa1"][1] * new, rel=0.001)


def test_kernels_nobody_measured_fall_back_and_say_so():
    pricer = Pricer(load_cluster("a100-80gb"), PLAIN)
    wanted, known = pricer([FLASH._replace(kernel="cudnn"), FLASH._replace(kernel="flash")])
    assert wanted == known
    assert any(d.code == "attention-kernel" for d in pricer.diagnostics)


def test_a_kernel_that_a_device_cannot_run_is_another_and_says_so():
    pricer = Pricer(load_cluster("b200"), PLAIN)
    wanted, known = pricer([FLASH._replace(kernel="fa3"), FLASH._replace(kernel="flash")])
    assert wanted == known
    assert any("fa3 is not written for b200" in d.message for d in pricer.diagnostics)


def test_uneven_experts_take_longer():
    even = GroupedGemm(512, 8, 4096, 4096, "bf16", skew=1.0)
    assert times(even._replace(skew=1.5))[0] >= times(even)[0]
