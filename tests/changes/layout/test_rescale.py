"""What an operator takes with other sizes: attention on an accelerator, recurrent layers on a CPU."""

from math import sqrt

import pytest

from lumos import load_cluster
from lumos.changes.layout.prices import Ratio
from lumos.changes.layout.rescale import Core, Devices, on_core, on_devices
from lumos.cost.gemm_model import gemm
from lumos.operators.kernels import in_tf32
from lumos.operators.shaped import ShapedOperator, has_causal_mask

LAYER = ((24, 8, 256), (1024, 256), (1024, 256), (1024,), (1024,), (8, 256), (8, 256))


def recurrent(steps, rows=8):
    shapes = ((steps, rows, 256), *LAYER[1:5], (rows, 256), (rows, 256))
    return ShapedOperator("aten::mkldnn_rnn_layer", shapes, ("float",) * 7)


def test_of_a_recurrent_layer_on_a_cpu_the_arithmetic_grows_and_the_work_on_its_weights_does_not():
    """24 steps of 8 sequences, 2 · 1,024 · 256 weights: 100.7 M multiplications, at 50 a ns 2.01 ms of the 4.03 ms that the layer takes. A
    product of 8 rows does not reach that rate, so that its share is between a half and one, their geometric mean: 0.707."""
    o = recurrent(24)
    core = Core(0.0, 0.0, 50.0, {o: 2 * 24 * 8 * 2 * 1024 * 256 / 50})
    assert core.ratio(o, recurrent(48)) == pytest.approx(1 + 0.5**0.5)
    assert core.ratio(o, recurrent(24, 16)) == pytest.approx(1 + 0.5**0.5)
    assert on_core(o, recurrent(48), core).high >= 2.0
    many = recurrent(24, 256)
    assert Core(0.0, 0.0, 50.0, {many: 2 * 24 * 256 * 2 * 1024 * 256 / 50}).ratio(many, recurrent(48, 256)) == pytest.approx(1.5)


def product_of(rows, dtype="float"):
    return ShapedOperator("aten::mm", ((rows, 1024), (1024, 1024)), (dtype, dtype))


def test_a_kernel_of_tf32_grows_as_tf32_does():
    """An A100 multiplies in tf32 eight times as fast as in fp32, so the model of few rows is bound by other things in the one than in the
    other."""
    a100 = load_cluster("a100-40gb").accelerator
    few, many = product_of(32), product_of(4096)
    single, rounded = (on_devices(Devices(a100, a100), *both) for both in ((few, many), (in_tf32(few), in_tf32(many))))
    exact = int(gemm(4096, 1024, 1024, a100, "tf32", cast=False).time) / int(gemm(32, 1024, 1024, a100, "tf32", cast=False).time)
    assert rounded.best == pytest.approx(exact)
    assert single.best != pytest.approx(exact, rel=0.2)


def test_a_much_larger_kernel_is_half_way_between_the_model_and_its_proportion():
    """A kernel of 10 us, modelled as 5, whose model grows by a factor of 16, is as slow as before or as modelled: 160 us or 80. The middle
    of the two is 113. Up to a factor of four it keeps its proportion; of one far slower than modelled, up to as much more."""
    far = Ratio(16.0, 15.0, 17.0, 0.0, 5000.0)
    assert far.far
    found = far.carried(10_000)
    assert found.best == pytest.approx(16 / sqrt(2))
    assert (found.low, found.high) == (pytest.approx(15 / 2), 17.0)
    near = far._replace(best=4.0)
    assert not near.far and near.carried(10_000) == near
    assert far.carried(5000 * 16).best == pytest.approx(16.0)
    faster = far.carried(2_500)
    assert (faster.best, faster.low, faster.high) == (pytest.approx(16 * sqrt(2)), 15.0, pytest.approx(17 * 2))


def test_what_takes_longer_than_any_launch_is_not_bound_by_it():
    """A loss by class reads and writes a number of each row, by the model: a launch. Recorded are 330 us, which grow with the rows."""
    a100 = load_cluster("a100-40gb").accelerator
    loss = ShapedOperator("aten::nll_loss_backward", ((), (2048, 50432), (2048,)), ("float", "float", "long int"))
    longer = on_devices(Devices(a100, a100), loss, loss._replace(shapes=((), (8192, 50432), (8192,))))
    assert longer.best == pytest.approx(1.0, abs=0.1) and 1000 < longer.modelled < longer.launch < 20_000
    assert longer.carried(longer.launch) == longer and on_devices(Devices(a100, a100), product_of(8), product_of(64)).launch == 0
    found = longer.carried(10 * longer.launch)
    assert found.best == pytest.approx(0.1 * longer.best + 0.9 * 4) and found.low == longer.low and found.high > found.best


def test_attention_grows_as_its_mask_says():
    """A causal mask leaves 10 of 4 by 4 blocks, and 136 of 16 by 16. This operator says it by a number. Where it is none, either may be."""
    devices = Devices(*2 * (load_cluster("h100").accelerator,))
    o, longer = (ShapedOperator("aten::_efficient_attention_forward", ((4, n, 16, 128),) * 3, ("c10::BFloat16",) * 3) for n in (512, 2048))
    whole, causal, either = (on_devices(devices, o, longer, causal=has_causal_mask(o.name, 9 * [""] + [said])) for said in ("0", "1", "-"))
    assert 16.0 > whole.best > 1.05 * causal.best and either.best == causal.best and either.high >= whole.best


@pytest.mark.parametrize("slower", [0.1, 0.5, 2, 10])
def test_more_work_never_takes_less_time(slower):
    times = [Ratio(ratio, ratio, ratio, 0.0, 1000.0).carried(1000 * slower).best for ratio in (0.01, 0.1, 0.3, 1, 3, 5, 10, 30, 300)]
    assert times == sorted(times)


@pytest.mark.parametrize(("blocks", "rows", "ratio"), [(16, 4, 1.0), (27, 4, 1.0), (54, 2, 1.0), (54, 8, 4.0)])
def test_more_attention_takes_no_more_time_as_long_as_cores_are_idle(blocks, rows, ratio):
    """An A100 has 108. In `blocks` blocks of one sequence, `rows` sequences have as many times that; what does not fit runs after it."""
    a100 = load_cluster("a100-40gb").accelerator
    o = ShapedOperator("aten::_efficient_attention_forward", ((1, 1024, 16, 64),) * 3, ("c10::BFloat16",) * 3)
    larger = o._replace(shapes=((rows, 1024, 16, 64),) * 3)
    factor = on_devices(Devices(a100, a100), o, larger, blocks / (16 * 1024), causal=True)
    assert factor.best == pytest.approx(ratio, rel=0.3 if ratio > 1 else 1e-6)
