import json
import re
from types import SimpleNamespace

import pytest

from lumos.reports.page.validation_plot import log_axis, write_plot


def row(name, source, measured, predicted, low, high):
    time = None if predicted is None else SimpleNamespace(time_s=predicted, low_s=low, high_s=high)
    error = None if predicted is None else predicted / measured - 1
    return SimpleNamespace(id=name, source=source, measured_s=measured, predicted=time, job=None, error=error)


def test_each_source_has_its_colour_and_each_row_its_interval(tmp_path):
    """A row measured at 2 s and predicted at 3 (2.5 to 4) lies at 1.5, from 1.25 to 2."""
    rows = [row("a<b>", "first", 2.0, 3.0, 2.5, 4.0), row("b", "second", 1.0, 1.0, 0.9, 1.1), row("c", "second", 1.0, None, 0, 0)]
    write_plot(str(tmp_path / "plot.html"), rows)
    text = (tmp_path / "plot.html").read_text()
    figure = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    first, second = figure["data"]
    assert (first["name"], second["name"]) == ("first", "second")
    assert first["marker"]["color"] != second["marker"]["color"]
    assert (first["x"], first["y"], first["error_y"]["array"], first["error_y"]["arrayminus"]) == ([2], [1.5], [0.5], [0.25])
    assert len(second["x"]) == 1
    assert first["text"][0].startswith("a&lt;b&gt;<br>")
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [0.9, 0.75, 1]


def test_ticks_of_a_wide_logarithmic_axis_say_their_decade():
    """From 2 to 30 lie 2, 5, 10 and 20; the decades around them are whole."""
    assert log_axis([30.0, 2.0], "s")["tickvals"] == pytest.approx([1, 2, 5, 10, 20, 50, 100, 200, 500])
    assert not any("tickvals" in log_axis(narrow, "s") for narrow in ([2.0, 3.0], [], [0.0]))
