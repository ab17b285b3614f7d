"""The overhead that the collector reports."""

import pytest

from lumos.collect import window


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(window.time, "perf_counter", lambda: now[0])
    return now


def walk(one: window.Pace, clock: list[float], durations: list[float], own: float = 9.0) -> list[bool]:
    """Steps of these durations, after each of which the collector takes `own` seconds for itself, which are no step."""
    one.begin()
    known = []
    for seconds in durations:
        clock[0] += seconds
        known.append(one.lap())
        clock[0] += own
        one.begin()
    return known


def test_recorded_steps_are_compared_with_untouched_ones_but_never_the_first(clock: list[float]) -> None:
    one = window.Pace(wait=4, begin=5, end=7)  # steps 1-4 untouched, 5 warm-up, 6 and 7 recorded
    walk(one, clock, [9.0, 1.0, 1.0, 1.0, 5.0, 1.1, 1.1, 3.0])
    assert one.medians() == (pytest.approx(1.1), pytest.approx(1.0))
    assert one.overhead == pytest.approx(0.1)


def test_steps_after_the_window_count_where_there_were_none_before(clock: list[float]) -> None:
    one = window.Pace(wait=0, begin=1, end=2)
    known = walk(one, clock, [4.0, 1.5, 7.0, 1.0, 1.0, 1.0])
    assert known == [False] * 5 + [True]
    assert one.overhead == pytest.approx(0.5)


def test_the_noise_is_the_standard_error_of_the_difference(clock: list[float]) -> None:
    """Variances 0.02 over two recorded steps and 0.04 over three others, medians 1.1 and 1.0: √(π/2 (0.01 + 0.0133))."""
    one = window.Pace(wait=4, begin=4, end=6)
    walk(one, clock, [9.0, 0.8, 1.0, 1.2, 1.0, 1.2])
    assert one.overhead == pytest.approx(0.1)
    assert one.noise == pytest.approx((3.14159265 / 2 * (0.02 / 2 + 0.04 / 3)) ** 0.5)
    one = window.Pace(wait=4, begin=4, end=5)
    walk(one, clock, [9.0, 0.8, 1.0, 1.2, 1.0])
    assert one.overhead is not None and one.noise is None  # of one recorded step
