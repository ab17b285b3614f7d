import pytest

from lumos.analyze.compare import regression
from lumos.errors import GraphError

QUIET, NOISY = (1000, 1002, 998, 1000, 1001, 999), (1000, 1100, 900, 1000, 1050, 950)


def slower(lengths, factor):
    return [round(factor * each) for each in lengths]


@pytest.mark.parametrize(
    ("before", "factor", "verdict"),
    [(QUIET, 1.05, "slower"), (QUIET, 1.01, "within"), (QUIET, 1.0301, "undecided"), (QUIET, 0.5, "within"), (NOISY, 1.05, "undecided")],
)
def test_a_slowdown_of_3_percent_is_told_where_noise_is_smaller(before, factor, verdict):
    assert regression(before, slower(before, factor), 0.03).verdict == verdict


def test_the_noise_is_the_half_width_of_welchs_interval():
    """Variances of 200 and 0 over three steps: an error of sqrt(200 / 3) at two degrees of freedom, whose percentile is 4.303."""
    a, b = (990, 1010, 1000), (1000, 1000, 1000)
    assert regression(a, b, 0.03).noise == pytest.approx(4.303 * (100 / 3) ** 0.5 / 1000, rel=1e-3)
    assert regression(b, b, 0.0).noise == 0.0


def test_how_many_steps_would_show_it():
    """Noise falls with the root of the number of steps: with that many of the same spread it is at most what is allowed."""
    short = regression(NOISY, NOISY, 0.03)
    many = regression(NOISY * (short.steps_needed // len(NOISY) + 1), NOISY * (short.steps_needed // len(NOISY) + 1), 0.03)
    assert short.verdict == "undecided" and many.verdict == "within" and many.steps_needed is None


@pytest.mark.parametrize(("a", "b", "named"), [((1000,), QUIET, "A has 1 step"), (QUIET, (1000,), "B has 1 step")])
def test_one_step_shows_no_noise(a, b, named):
    with pytest.raises(GraphError, match=named):
        regression(a, b, 0.03)
