from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import lumos
from lumos.result import Rows, Shown, plain

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-2rank-cpu"


class Part(NamedTuple):
    name: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class Found(Shown):
    step: str
    error: float | None
    parts: tuple[Part, ...]
    shares: dict[str, float]


FOUND = Found("<script>alert(1)</script>", None, (Part("a&b", 1_234_567), Part("<i>", 2)), {"idle": 0.25})


def test_a_notebook_shows_every_field_as_text():
    text = FOUND._repr_html_()
    assert "<script>" not in text
    assert "<i>" not in text
    for shown in ("&lt;script&gt;", "a&amp;b", "1,234,567", "idle", "0.25", "–"):
        assert shown in text


def test_a_sequence_is_one_table_and_counts_what_it_leaves_out():
    text = Rows([Part(f"p{i}", i) for i in range(30)])._repr_html_()
    assert text.count("<tr>") == 25
    assert "… and 6 more" in text


def test_it_is_plain_json():
    assert plain(FOUND)["parts"] == [{"name": "a&b", "time_ns": 1_234_567}, {"name": "<i>", "time_ns": 2}]
    assert plain("\ud800") == "?"


def test_it_converts_to_arrow():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install lumos-trace[arrow])")
    table = FOUND.to_arrow()
    assert table.num_rows == 1
    assert table.column("parts")[0].as_py()[1] == {"name": "<i>", "time_ns": 2}
    rows = Rows([Part("a", 1), Part("b", 2)]).to_arrow()
    assert rows.to_pydict() == {"name": ["a", "b"], "time_ns": [1, 2]}


def test_what_the_facade_answers_is_shown_and_converts():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install lumos-trace[arrow])")
    graph = lumos.build(lumos.read(EXAMPLE))
    timeline = lumos.simulate(graph)
    steps = lumos.breakdown(timeline)
    assert "exposed_compute_ns" in steps._repr_html_()
    assert steps.to_arrow().num_rows == len(steps) == 8
    for result in (lumos.replay(graph, timeline), lumos.stragglers(graph)):
        assert result._repr_html_().startswith("<strong>")
        assert result.to_arrow().num_rows == 1
