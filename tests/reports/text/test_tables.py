"""The tables of `clusters`, `models`, `predict` and `validate` fit 80 columns; names and numbers are not cut."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from lumos.cost.cluster import cluster_names, load_cluster
from lumos.model import load_model, model_names
from lumos.reports.text.format import paragraph, table

BOX = set("┏┃│└━")


@pytest.fixture
def page():
    """A console of 80 columns, and its lines."""
    out = io.StringIO()
    return SimpleNamespace(console=Console(file=out, width=80, highlight=False), lines=lambda: out.getvalue().splitlines())


def test_every_cluster_has_its_name_memory_peak_and_devices(page):
    from lumos.reports.text.catalogues import print_clusters

    print_clusters(page.console, [load_cluster(n) for n in cluster_names()])
    firsts = {line.split()[0]: line.split() for line in page.lines()}
    assert set(cluster_names()) <= firsts.keys()
    assert firsts["h100"][1:6] == ["80", "GB", "989.4", "bf16", "8"]
    assert max(map(len, page.lines())) <= 80


def test_a_cluster_is_shown_in_units_within_the_width(page):
    from lumos.reports.text.catalogues import print_cluster

    print_cluster(page.console, load_cluster("h100"))
    text = "\n".join(page.lines())
    for shown in ("memory_bytes             80 GB", "3.35 TB/s", "peak_flops.bf16", "4.5 µs", "131,072 devices", "[1] NVIDIA H100"):
        assert " ".join(shown.split()) in " ".join(text.split())
    assert not any(repr_ in text for repr_ in ("{", "(name", "True", "None", "000.0"))
    assert max(map(len, page.lines())) <= 80


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_can_be_shown(page, name):
    from lumos.reports.text.catalogues import print_cluster

    print_cluster(page.console, load_cluster(name))
    assert page.lines()[0].startswith(f"{name}: ")


def test_every_model_has_its_whole_name_and_size(page):
    from lumos.reports.text.catalogues import print_models

    print_models(page.console, [load_model(n) for n in model_names()])
    assert {load_model(n).name for n in model_names()} <= {line.split()[0] for line in page.lines()}
    assert "…" not in "\n".join(page.lines()) and max(map(len, page.lines())) <= 80


def test_one_model_has_all_its_sizes(page):
    from lumos.reports.text.catalogues import print_model

    print_model(page.console, load_model("deepseek-v3"))
    text = " ".join(" ".join(page.lines()).split())
    assert "671,026,419,200 parameters" in text and "experts 8 of 256, each of ffn 2,048" in text and not BOX & set(text)


def test_wrapped_text_leaves_no_blanks_at_the_end_of_lines(page):
    paragraph(page.console, "• ", ("code", "yellow"), ": " + "word " * 40)
    assert len(page.lines()) > 2
    assert all(line == line.rstrip() and line.startswith("  ") and len(line) <= 80 for line in page.lines())


def test_a_table_goes_on_in_the_next_line_where_nothing_may_be_cut(page):
    words = " ".join(f"part{i}" for i in range(20))
    table(page.console, ("plan", "step s"), [(words, "1.5")], whole=True)
    text = " ".join(page.lines())
    assert "…" not in text
    assert all(f"part{i}" in text for i in range(20))
    assert max(map(len, page.lines())) <= 80


def test_rows_are_lists_where_the_console_is_too_narrow_for_a_table():
    out = io.StringIO()
    columns = ("rank", "step", "time", "compute", "comm.")
    rows = [
        ("0", "ProfilerStep#10 *", "213.3 ms", "72.2 %", ""),
        ("1", "a name that is longer than the whole console", "9 ms", "1 %", "2 %"),
    ]
    table(Console(file=out, width=40), columns, rows)
    assert out.getvalue().splitlines() == [
        "  rank 0  step ProfilerStep#10 *",
        "    time 213.3 ms  compute 72.2 %",
        "  rank 1",
        "    step a name that is longer than the…",
        "    time 9 ms  compute 1 %  comm. 2 %",
    ]


@pytest.mark.parametrize("width", range(24, 100, 4))
def test_no_width_cuts_a_number(width):
    out = io.StringIO()
    numbers = ["1,234,567.8 ms", "98.76 %", "12,345", "1.234e+05"]
    table(Console(file=out, width=width), ("rank", "name", "a", "b", "c", "d"), [("7", "some name of a kernel", *numbers)])
    assert all(number in out.getvalue() for number in numbers)
    assert max(map(len, out.getvalue().splitlines())) <= width


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
