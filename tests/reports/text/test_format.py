from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from lumos.diagnostics import Diagnostic
from lumos.reports.text.format import MOST_ROWS, kernel_name, percent, print_diagnostics, size, table


def test_sizes_and_percentages():
    assert [size(n) for n in (12, 2048, 3 * 2**20, 2**37)] == ["12 B", "2.00 KiB", "3.00 MiB", "128.0 GiB"]
    assert percent(0.0333, signed=True) == "+3.33 %"
    assert percent(-0.00001, signed=True) == "+0.00 %"  # not "-0.00 %"
    assert percent(None) == "–"


def test_names_of_kernels_lose_what_they_share():
    assert kernel_name("void at::native::(anonymous namespace)::cat<float>") == "cat<float>"


def printed(width, function, *arguments, **words):
    out = StringIO()
    function(Console(file=out, width=width), *arguments, **words)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_cuts_text_and_keeps_numbers_whole(width):
    rows = [("x" * 100, "123,456", "99.9 %", "y" * 30), ("short", "1", "0.1 %", "z")]
    text = printed(width, table, ("name", "count", "share", "shapes"), rows)
    assert max(map(len, text.splitlines())) <= width
    assert "123,456" in text and "99.9 %" in text and "…" in text


def test_a_long_table_counts_what_it_leaves_out():
    text = printed(80, table, ("name",), [(str(i),) for i in range(MOST_ROWS + 7)])
    assert "… and 7 more" in text and "more" not in printed(80, table, ("name",), [("x",)] * 40, most=40)


def test_an_empty_table_is_nothing():
    assert printed(80, table, ("name", "count"), [], "a note", title="Names") == ""


def test_a_column_mostly_of_numbers_stands_at_the_right():
    rows = [("12 × layer", "1.5 ms", "3 of 10", "no end"), ("head", "–", "2–4", "12.5 µs"), ("a", "× 1.02", "1 … 2", "1e+05")]
    lines = printed(80, table, ("block", "time", "part", "slack"), rows, "of each", title="Blocks").splitlines()
    assert lines[1] == "Blocks" and lines[-1] == "  of each"
    assert lines[4:7] == [
        "  12 × layer   1.5 ms   3 of 10    no end",
        "  head              –       2–4   12.5 µs",
        "  a            × 1.02     1 … 2     1e+05",
    ]


def test_findings_of_one_kind_are_one_paragraph():
    findings = [Diagnostic("launch-missing", f"rank {r}: lost [64]") for r in range(3)] + [Diagnostic("cut", "short")]
    text = printed(80, print_diagnostics, findings)
    assert text.count("launch-missing") == 1
    assert "rank 0: lost [64] (and 2 more like it" in text and "cut: short" in text
    assert printed(80, print_diagnostics, []) == ""
