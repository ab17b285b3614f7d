"""How results are printed: the tables of `clusters` and `models` fit 80 columns, and names and numbers are not cut."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from lumos.cost.cluster import cluster_names, load_cluster
from lumos.diagnostics import Diagnostic
from lumos.model import load_model, model_names
from lumos.reports.text.catalogues import print_cluster, print_clusters, print_model, print_models
from lumos.reports.text.format import MOST_ROWS, kernel_name, paragraph, percent, print_diagnostics, share_of, table
from lumos.units import size

BOX = set("┏┃│└━")


def printed(width, function, *arguments, **words):
    out = io.StringIO()
    function(Console(file=out, width=width), *arguments, **words)
    return out.getvalue()


@pytest.fixture
def page():
    """A console of 80 columns, and its lines."""
    out = io.StringIO()
    return SimpleNamespace(console=Console(file=out, width=80, highlight=False), lines=lambda: out.getvalue().splitlines())


def test_every_cluster_has_its_name_memory_peak_and_devices(page):
    print_clusters(page.console, [load_cluster(n) for n in cluster_names()])
    firsts = {line.split()[0]: line.split() for line in page.lines()}
    assert set(cluster_names()) <= firsts.keys()
    assert firsts["h100"][1:6] == ["80", "GB", "989.4", "bf16", "8"]
    assert max(map(len, page.lines())) <= 80
    assert all(printed(80, print_cluster, load_cluster(name)).startswith(f"{name}: ") for name in cluster_names())


def test_a_cluster_is_shown_in_units_within_the_width(page):
    print_cluster(page.console, load_cluster("h100"))
    text = "\n".join(page.lines())
    for shown in ("memory_bytes             80 GB", "3.35 TB/s", "peak_flops.bf16", "4.5 µs", "131,072 devices", "[1] NVIDIA H100"):
        assert " ".join(shown.split()) in " ".join(text.split())
    assert not any(repr_ in text for repr_ in ("{", "(name", "True", "None", "000.0"))
    assert max(map(len, page.lines())) <= 80


def test_every_model_has_its_whole_name_and_size(page):
    print_models(page.console, [load_model(n) for n in model_names()])
    assert {load_model(n).name for n in model_names()} <= {line.split()[0] for line in page.lines()}
    assert "…" not in "\n".join(page.lines()) and max(map(len, page.lines())) <= 80


def test_one_model_has_all_its_sizes(page):
    print_model(page.console, load_model("deepseek-v3"))
    text = " ".join(" ".join(page.lines()).split())
    assert "671,026,419,200 parameters" in text and "experts 8 of 256, each of ffn 2,048" in text and not BOX & set(text)


def test_wrapped_text_leaves_no_blanks_at_the_end_of_lines(page):
    paragraph(page.console, "• ", ("code", "yellow"), ": " + "word " * 40)
    assert len(page.lines()) > 2
    assert all(line == line.rstrip() and line.startswith("  ") and len(line) <= 80 for line in page.lines())


def test_rows_are_lists_where_the_console_is_too_narrow_for_a_table():
    columns = ("rank", "step", "time", "compute", "comm.")
    rows = [
        ("0", "ProfilerStep#10 *", "213.3 ms", "72.2 %", ""),
        ("1", "a name that is longer than the whole console", "9 ms", "1 %", "2 %"),
    ]
    assert printed(40, table, columns, rows).splitlines() == [
        "  rank 0  step ProfilerStep#10 *",
        "    time 213.3 ms  compute 72.2 %",
        "  rank 1",
        "    step a name that is longer than the…",
        "    time 9 ms  compute 1 %  comm. 2 %",
    ]


@pytest.mark.parametrize("width", range(24, 100, 4))
def test_no_width_cuts_a_number(width):
    numbers = ["1,234,567.8 ms", "98.76 %", "12,345", "1.234e+05"]
    text = printed(width, table, ("rank", "name", "a", "b", "c", "d"), [("7", "some name of a kernel", *numbers)])
    assert all(number in text for number in numbers)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "…"), ("ascii", "...")])
@pytest.mark.parametrize("width", [80, 40])
def test_a_name_that_is_cut_fits_with_the_mark_that_the_terminal_can_show(width, encoding, mark):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    out.mode = "w"  # a console asks for it
    console = Console(file=out, width=width, highlight=False)
    table(console, ("name", "time"), [("autograd::engine::evaluate_function: " + "AddmmBackward0" * 5, "1.51 ms")] * 2)
    out.flush()
    lines = out.buffer.getvalue().decode(encoding, "replace").splitlines()
    assert max(map(len, lines)) <= width
    assert sum(mark in line for line in lines) == 2


def test_sizes_and_percentages():
    assert (share_of(1, 4), share_of(1, 0), share_of(1, -4)) == ("25.0 %", "–", "–")
    assert [size(n) for n in (12, 2048, 3 * 2**20, 2**37)] == ["12 B", "2.05 kB", "3.15 MB", "137.4 GB"]
    assert percent(0.0333, signed=True) == "+3.33 %"
    assert percent(-0.00001, signed=True) == "+0.00 %"  # not "-0.00 %"
    assert percent(None) == "–"


def test_names_of_kernels_lose_what_they_share():
    assert kernel_name("void at::native::(anonymous namespace)::cat<float>") == "cat<float>"


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
