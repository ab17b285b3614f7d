from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.steps import members
from lumos.analyze.variability import variability
from lumos.simulate.timeline import measured


def test_steps_of_a_rank(two_steps):
    (found,) = variability(measured(two_steps), members(two_steps))
    assert (found.steps, found.min_ns, found.max_ns, found.mean_ns) == (2, 45_000, 80_000, 62_500)
    assert found.variation == pytest.approx(float(np.std([45, 80], ddof=1) / 62.5))


def test_one_step_does_not_vary(two_steps):
    graph = replace(two_steps, steps=two_steps.steps[:1])
    assert variability(measured(graph), members(graph))[0].variation is None
