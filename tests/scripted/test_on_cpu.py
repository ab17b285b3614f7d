"""What sizes make of operators on a CPU: the time of one whose size does not show says nothing of larger ones."""

from types import SimpleNamespace

import numpy as np
import pytest

from lumos.emulation.record import Operator, Tensor
from lumos.scripted.on_cpu import HostSizes
from lumos.scripted.script import Slot


def operator(name, *shape):
    return Operator(name=name, thread=0, begin=0, end=1, inputs=[Tensor(shape, "float32", (), 1, "cpu")], leaf=True)


def test_a_new_large_operator_takes_the_rate_of_large_ones_and_a_small_one_is_not_scaled_to_it():
    # an addition of one element, 1.2 us, and a square root of 100,000, 51 us, beside a fixed time of 1 us
    recorded = [(operator("aten::add_", 1), 1_200.0), (operator("aten::neg_", 1), 800.0), (operator("aten::sqrt_", 100_000), 51_000.0)]
    kindred = SimpleNamespace(process=SimpleNamespace(operators=[each for each, _ in recorded]))
    prices = np.zeros((len(Slot), len(recorded)))
    prices[Slot.OWN] = [time for _, time in recorded]
    sizes = HostSizes([(kindred, prices)])
    assert sizes.new(operator("aten::add_", 200_000)) == pytest.approx(101_000.0)
    assert sizes.factor(operator("aten::add_", 1), operator("aten::add_", 200_000)) is None
    assert sizes.factor(operator("aten::sqrt_", 100_000), operator("aten::sqrt_", 200_000)).best == pytest.approx(2.0)
