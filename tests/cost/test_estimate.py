"""Estimates compose: in sequence, and repeated."""

import numpy as np

from lumos.cost.estimate import MEASURED, MODELLED, SCALED, Bound, Estimate
from lumos.diagnostics import Diagnostic


def estimate(time: int, bound: Bound = Bound.COMPUTE, source: str = MODELLED, note: str = "") -> Estimate:
    notes = (Diagnostic(note, note),) if note else ()
    t = np.array(time)
    return Estimate(t, t - 1, t + 2, np.array(bound, np.uint8), t // 2, np.array(bool(note)), source, notes)


def test_in_sequence_times_intervals_and_notes_add() -> None:
    e = estimate(10, Bound.MEMORY, MEASURED, "a") + estimate(30, Bound.LINK, SCALED)
    assert (e.time, e.low, e.high, e.roofline) == (40, 38, 44, 20)
    assert e.bounds() == "link"
    assert e.source == SCALED
    assert e.extrapolated and [d.code for d in e.diagnostics] == ["a"]


def test_repeats_scale_everything_but_the_fraction_of_peak() -> None:
    e = estimate(10).scaled([0, 1, 3])
    assert e.time.tolist() == [0, 10, 30] and e.high.tolist() == [0, 12, 36]
    assert e.fraction_of_peak.tolist() == [1.0, 0.5, 0.5]
    assert e.bounds() == ["compute"] * 3
