"""How many times as long as the models say operators took, and how far that may be of another."""

from types import SimpleNamespace

import numpy as np
import pytest

from lumos.scripted.residual import Residuals
from lumos.scripted.script import Slot


def kindred(**modelled):
    process = SimpleNamespace(operators=[SimpleNamespace(name=name) for name in modelled], exchanges=[])
    return SimpleNamespace(process=process, modelled=np.tile(list(modelled.values()), (len(Slot), 1)))


def test_the_interval_of_another_operator_holds_what_operators_differ_by_whatever_their_share():
    recorded = kindred(mm=1e5, add=10.0, mul=10.0)
    found = Residuals([(recorded, recorded.modelled * np.array([1.0, 0.5, 2.0]))]).columns(kindred(norm=50.0, add=50.0), Slot.DEVICE)
    assert found[:, 1] == pytest.approx(0.5)
    best, low, high = found[:, 0]
    assert best == pytest.approx(1.0, abs=1e-3) and low < 0.7 and high > 1.7
