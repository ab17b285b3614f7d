import pytest

from lumos.units import count, duration, quantity, shared_unit, with_unit


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 µs"), (221_345_678, "221.3 ms"), (-2_500_000, "-2.50 ms"), (3.2e9, "3.20 s"), (None, "–")],
)
def test_durations(ns, shown):
    assert duration(ns) == shown


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("duration_ns", 2_310_000, "2.31 ms"),
        ("step_time_s", 0.00231, "2.31 ms"),
        ("peak_bytes", 1.5e9, "1.50 GB"),
        ("file_bytes", 12, "12 B"),
    ],
)
def test_the_name_of_a_field_says_its_unit(field, value, shown):
    assert with_unit(value, quantity(field)) == shown


def test_a_rate_is_no_time_and_a_number_has_no_unit():
    assert quantity("tokens_per_s") == ("tokens_per_s", (), 1.0)
    assert quantity("ranks") == ("ranks", (), 1.0)


def test_values_side_by_side_share_the_unit_of_the_largest():
    units = quantity("x_ns").units
    assert shared_unit(units, [5, 2_000_000]) == ("ms", 1e6)
    assert shared_unit(units, [0, 0]) == ("ns", 1.0)
    assert shared_unit(units, []) == ("ns", 1.0)


def test_nouns_are_counted():
    assert (count(1, "step"), count(1200, "step")) == ("1 step", "1,200 steps")
