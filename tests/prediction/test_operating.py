"""Money, energy and goodput, with figures that can be worked out on paper."""

from math import exp, sqrt

import pytest

from lumos.cost.cluster import load_cluster
from lumos.errors import LumosError
from lumos.prediction.operating import checkpoint_interval, goodput, operating


def cluster(tmp_path, *lines):
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(('based_on = "h100"', "[operation]", *lines)))
    return load_cluster(str(path))


def test_a_trillion_tokens_by_hand(tmp_path):
    """1,000 tokens/s a device: 10^9 device-seconds, 277,778 device-hours at 2 dollars, 3.6 kW: 10^9 kWh / 10^3."""
    found = operating(cluster(tmp_path, "price_per_hour = 2.0", "power_w = 3600"), 8, 1000.0)
    assert found.dollars_per_trillion_tokens == pytest.approx(1e9 / 3600 * 2)
    assert found.kwh_per_trillion_tokens == pytest.approx(1e6)
    assert (found.goodput, found.checkpoint_every_s, found.whole_power) == (None, None, True)


def test_failures_raise_the_cost_by_the_time_that_is_lost(tmp_path):
    lines = ("price_per_hour = 2.0", "mtbf_hours = 8000", "checkpoint_s = 36", "restart_s = 360")
    found = operating(cluster(tmp_path, *lines), 8000, 1000.0)  # the job fails every hour
    assert found.goodput is not None and found.checkpoint_every_s is not None
    assert found.checkpoint_every_s == pytest.approx(sqrt(2 * 36 * 3600) * (1 + sqrt(0.005) / 3 + 0.005 / 9) - 36)
    assert found.goodput == pytest.approx(goodput(3600, 36, 360, found.checkpoint_every_s))
    assert found.dollars_per_trillion_tokens == pytest.approx(1e9 / 3600 * 2 / found.goodput)


def test_goodput_is_the_share_that_a_renewal_argument_gives():
    """A piece of work of t seconds that starts anew after every failure takes M (e^(t / M) - 1), restarts multiply it by e^(R / M)."""
    assert goodput(1000.0, 100.0, 200.0, 400.0) == pytest.approx(400 / (1000 * exp(0.2) * (exp(0.5) - 1)))


@pytest.mark.parametrize(("mean", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_interval_is_the_one_that_its_source_gives(mean, best):
    """Minutes, with checkpoints of five: the optima that the captions of figures 3 to 5 of Daly's paper state."""
    assert checkpoint_interval(60.0 * mean, 300.0) / 60 == pytest.approx(best, abs=0.5 if best > 10 else 0.05)


def test_a_job_that_fails_before_it_can_start_keeps_nothing(tmp_path):
    found = operating(cluster(tmp_path, "price_per_hour = 2.0", "mtbf_hours = 1", "checkpoint_s = 60", "restart_s = 6000"), 10_000, 1000.0)
    assert (found.goodput, found.dollars_per_trillion_tokens, found.kwh_per_trillion_tokens) == (0.0, None, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("mtbf_hours = 50000", "needs operation.checkpoint_s, operation.restart_s"),
        ("price_per_hour = -1", "must be positive"),
        ("price_per_hou = 1", "nearest: price_per_hour"),
    ],
)
def test_a_file_that_says_half_is_refused(tmp_path, line, reason):
    with pytest.raises(LumosError, match=reason):
        cluster(tmp_path, line)
