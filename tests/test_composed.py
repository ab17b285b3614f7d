"""Tables whose steps were put together from the time of one layer are told from tables of runs that were timed."""

import pytest
from validation.composed import described, independent, straight_lines


def rows(steps: list[float]) -> list[dict[str, str]]:
    """Runs of 12, 16, 20 and 24 layers, on one and on two devices of a tensor-parallel group, with these steps each."""
    return [
        {"id": f"{tp}-{layers}", "source": "S", "layers": str(layers), "hidden": "1024", "tp": str(tp), "step_time_s": str(step)}
        for tp in (1, 2)
        for layers, step in zip((12, 16, 20, 24), steps, strict=True)
    ]


def test_steps_on_an_exact_line_were_put_together():
    (lines,) = straight_lines(rows([0.5 + 0.003 * layers for layers in (12, 16, 20, 24)]))
    assert (lines.rows, lines.layers, len(lines.deviations), lines.composed) == (8, 2, 2, True)
    assert max(lines.deviations) < 1e-12
    (text,) = described(rows([0.5 + 0.003 * layers for layers in (12, 16, 20, 24)]))
    assert "8 steps lie on 2 straight lines" in text
    assert "of which there are 2" in text
    assert [row["id"] for row in independent(rows([0.5 + 0.003 * layers for layers in (12, 16, 20, 24)]))] == ["1-12", "2-20"]


def test_steps_that_were_timed_leave_the_line_by_what_runs_differ_in():
    """0.50, 0.61, 0.70, 0.81 s: the best line has a slope of 0.0255 s a layer and is left by at most 6 of 655 ms."""
    (lines,) = straight_lines(rows([0.50, 0.61, 0.70, 0.81]))
    assert lines.deviations[0] == pytest.approx(0.006 / 0.655)
    assert not lines.composed
    assert described(rows([0.50, 0.61, 0.70, 0.81])) == []
    assert len(independent(rows([0.50, 0.61, 0.70, 0.81]))) == 8


def test_three_steps_make_no_line():
    assert straight_lines(rows([0.5, 0.6, 0.7, 0.8])[:3]) == []
