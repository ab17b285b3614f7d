"""Rows that last longer than any work can."""

import numpy as np
import pytest

from lumos.analyze.trust import trust
from lumos.graph.build import build
from lumos.graph.implausible import plausible
from lumos.trace.table import Job
from lumos.vocabulary import Grade

DAY, HOUR = 86_400_000_000, 3_600_000_000


def drawn(draw):
    """Ten operators of 90 us, 100 us apart; each launches a kernel of 50 us."""
    drawing = draw()
    for i in range(10):
        drawing.op("op", 100 * i, 90).launch((100 * i + 10, 10), (100 * i + 30, 50))
    return drawing


@pytest.mark.parametrize("category", ["cpu_op", "cuda_runtime", "kernel"])
def test_a_row_of_a_day_lasts_as_the_others_of_its_name(draw, trace, category):
    whole = build(Job((trace(drawn(draw)),)))
    drawing = drawn(draw)
    [row for row in drawing.rows if row["cat"] == category][4]["dur"] = DAY
    graph = build(Job((trace(drawing),)))
    assert (graph.duration == whole.duration).all()
    assert (graph.measured_end == whole.measured_end).all()
    assert [(e.code, e.grade) for e in graph.evidence] == [("duration-implausible", Grade.LIMITED)]
    (said,) = (d.message for d in graph.diagnostics if d.code == "duration-implausible")
    assert "1 row cannot have lasted" in said
    assert "1.00 d, while all work begins within 930.0 µs" in said


@pytest.mark.parametrize("category", ["cpu_op", "cuda_runtime", "kernel"])
@pytest.mark.parametrize("by", [DAY, -DAY, 2 * HOUR])
def test_a_row_that_starts_a_day_late_is_set_aside(draw, trace, category, by):
    drawing = drawn(draw)
    for i in range(10, 150):
        drawing.op("op", 100 * i, 90).launch((100 * i + 10, 10), (100 * i + 30, 50))
    [row for row in drawing.rows if row["cat"] == category][30]["ts"] += by
    graph = build(Job((trace(drawing),)))
    assert int(np.ptp(graph.measured_start)) < 1_000_000_000 and len(graph) > 400
    assert any(e.code == "start-implausible" and "set aside" in e.message for e in graph.evidence)
    assert trust(graph).grade is Grade.LIMITED


def test_a_second_window_is_not_set_aside(draw, trace):
    drawing = drawn(draw)
    for row in drawing.rows[len(drawing.rows) // 2 :]:
        row["ts"] += DAY
    assert "start-implausible" not in [d.code for d in plausible(trace(drawing)).diagnostics]
