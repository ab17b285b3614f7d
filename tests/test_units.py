import pytest

from lumos.units import count, duration


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 µs"), (221_345_678, "221.3 ms"), (-2_500_000, "-2.50 ms"), (3.2e9, "3.20 s"), (None, "–")],
)
def test_durations(ns, shown):
    assert duration(ns) == shown


def test_nouns_are_counted():
    assert (count(1, "step"), count(1200, "step")) == ("1 step", "1,200 steps")
