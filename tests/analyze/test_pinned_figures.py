"""The replay of every public trace says what it said: each figure within 0.1 % of the step, counts and grades exactly.

`python -m tools.pin_figures` writes the table anew, where a change is meant to move a figure.
"""

import os
from pathlib import Path

import pytest
from tools.pin_figures import Figures, figures, jobs, pinned

from lumos.errors import LumosError

#: How far a share of the step may move.
MARGIN = 0.001
ROOT = os.environ.get("LUMOS_TRACES")
traces = pytest.mark.skipif(ROOT is None, reason="LUMOS_TRACES is not set: the public traces are not here")


@traces
@pytest.mark.parametrize("pin", pinned(), ids=lambda pin: pin.job)
def test_the_figures_of_a_public_trace_are_the_pinned_ones(pin):
    found = figures(Path(ROOT), pin.job)
    assert found == Figures(*(pytest.approx(value, rel=0, abs=MARGIN) if isinstance(value, float) else value for value in pin))


@traces
def test_every_public_trace_that_can_be_replayed_is_pinned():
    names = {pin.job for pin in pinned()}
    for job in set(jobs(Path(ROOT))) - names:
        with pytest.raises(LumosError, match="no timeline"):
            figures(Path(ROOT), job)
