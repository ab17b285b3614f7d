from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import lumos
from lumos.result import Rows, Shown

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-2rank-cpu"


class Part(NamedTuple):
    name: str
    time_ns: int


@dataclass(frozen=True, slots=True, repr=False)
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
    for shown in ("&lt;script&gt;", "a&amp;b", "<th>time (ms)</th>", "<td>1.23</td>", "idle", "0.25", "–"):
        assert shown in text


def test_it_converts_to_arrow():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install -e '.[arrow]')")
    table = FOUND.to_arrow()
    assert table.num_rows == 1
    assert table.column("parts")[0].as_py()[1] == {"name": "<i>", "time_ns": 2}
    rows = Rows([Part("a", 1), Part("b", 2)]).to_arrow()
    assert rows.to_pydict() == {"name": ["a", "b"], "time_ns": [1, 2]}


class Sizes(NamedTuple):
    name: str
    step_time_s: float
    peak_bytes: int
    flops_per_s: float
    wait_ns: int | None


def test_columns_have_one_unit_each_and_rates_are_no_times():
    text = Rows([Sizes("a", 0.00231, 1_500_000_000, 2e12, None), Sizes("b", 0.0001, 20, 1.0, 1)])._repr_html_()
    assert "<th>step_time (ms)</th><th>peak (GB)</th><th>flops_per_s</th><th>wait (ns)</th>" in text
    assert "<td>2.31</td><td>1.50</td><td>2e+12</td><td>–</td>" in text
    assert "<td>0.10</td><td>0.00</td><td>1</td><td>1</td>" in text


@pytest.mark.parametrize(
    "result",
    [
        Found("s" * 1_000_000, 0.1, tuple(Part("&" * 5_000, i) for i in range(10_000)), {f"<{i}>" * 50: i for i in range(10_000)}),
        Rows([Found("s", 0.1, (Part("a", 1),), {f"{'&' * 200}{i}": i for i in range(500)}) for _ in range(100)]),
        Rows(range(1_000_000)),
        Rows([]),
    ],
)
def test_whatever_its_size_a_notebook_shows_little_and_its_repr_is_a_line(result):
    assert len(result._repr_html_().encode()) <= 100_000
    assert len(repr(result)) <= 200
    assert "\n" not in repr(result)


def test_a_repr_says_the_fields_with_their_units():
    assert repr(FOUND) == "Found(step=<script>alert(1)</script>, 2 parts, 1 shares)"
    assert repr(Rows([FOUND])) == "Rows(1 of Found)"


def test_nouns_say_in_a_line_what_they_are():
    job = lumos.read(EXAMPLE)
    graph = lumos.build(job)
    timeline = lumos.simulate(graph)
    assert repr(job).startswith("Job(2 ranks, 32,374 rows, 1 process group, ")
    assert repr(job.traces[0]).startswith("Trace(rank 0 of 2, 16,187 rows in 885.3 ms, ")
    assert repr(graph) == "Graph(2 ranks, 6 processors, 60,824 tasks, 42 edges, 4 steps (ProfilerStep#10 to ProfilerStep#13), measured)"
    assert repr(timeline) == "Timeline(replayed, 857.3 ms, 2 ranks, 60,824 tasks)"
    for noun in (job, job.traces[0], graph, timeline, lumos.replay(graph, timeline), lumos.breakdown(timeline)):
        assert len(repr(noun)) <= 200
        assert len(noun._repr_html_().encode()) <= 100_000


def test_it_converts_to_a_data_frame():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install pandas)")
    assert Rows([Part("a", 1), Part("b", 2)]).to_pandas().to_dict("list") == {"name": ["a", "b"], "time_ns": [1, 2]}
    assert FOUND.to_pandas()["parts"][0][1] == {"name": "<i>", "time_ns": 2}
