"""Bars and curves that a notebook shows."""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.drawn_rank import DrawnRank

import lumos
from lumos.drawings import MOST_POINTS_DRAWN, MOST_ROWS_DRAWN, Bar, Curve, draw_bars, draw_curves
from lumos.result import Rows, Shown

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-2rank-cpu"
SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True, slots=True, repr=False)
class Timed(Shown):
    name: str
    parts: dict[str, float]

    def bar(self) -> Bar:
        return Bar(self.name, self.parts)


def drawing(text):
    """The SVG at the start of a result's HTML, parsed as XML."""
    return ElementTree.fromstring(text[: text.index("</svg>") + len("</svg>")])


def pieces(svg):
    """(title, x, width) of the parts of all bars."""
    return [(r[0].text, float(r.get("x")), float(r.get("width"))) for r in svg.iter(f"{SVG}rect") if len(r)]


def test_parts_are_as_long_as_their_time_and_carry_their_shares():
    """Of 4 ms, 3 are work; the other bar takes half as long. The longest bar is 460 long and begins at 170."""
    svg = drawing(draw_bars([Bar("a", {"work": 3e6, "idle": 1e6}), Bar("b", {"work": 0.1e6, "idle": 1.9e6})]))
    assert pieces(svg) == [
        ("work: 3.00 ms, 75.0 %", 170.0, 345.0),
        ("idle: 1.00 ms, 25.0 %", 515.0, 115.0),
        ("work: 100.0 µs, 5.0 %", 170.0, 11.5),
        ("idle: 1.90 ms, 95.0 %", 181.5, 218.5),
    ]
    texts = [t.text for t in svg.iter(f"{SVG}text")]
    assert texts == ["a", "75.0 %", "25.0 %", "4.00 ms", "b", "95.0 %", "2.00 ms", "work", "idle"]  # no room for the 5 %


def test_names_are_text_and_sizes_bounded():
    rows = Rows([Timed("<script>&" * 1000, {f"<b>{'&' * 500}{i}": 1e6 for i in range(300)}) for _ in range(300)])
    for result in (rows, rows[0]):
        text = result._repr_html_()
        assert "<script" not in text and "<b>" not in text
        assert len(text.encode()) <= 100_000
        drawing(text)
    assert f"drawn: the first {MOST_ROWS_DRAWN} of 300" in rows._repr_html_()


def test_breakdown_and_critical_path_draw_themselves_above_their_tables():
    timeline = lumos.simulate(lumos.build(lumos.read(EXAMPLE)))
    steps, paths = lumos.breakdown(timeline), lumos.critical_path(timeline)
    for rows, total in ((steps, [sum(s.breakdown) for s in steps]), (paths, [sum(p.by_group.values()) for p in paths])):
        text = rows._repr_html_()
        assert text.startswith("<svg") and "<table>" in text
        assert len(text.encode()) <= 100_000
        longest = max(x + width for _, x, width in pieces(drawing(text)))
        assert abs(longest - 630) < 0.5  # as long as the drawing allows
        assert [bar.bar().length_ns for bar in rows] == total == [bar.duration_ns for bar in rows]
    assert "exposed compute" in steps._repr_html_() and "rank 1, ProfilerStep#13" in steps._repr_html_()
    assert paths[0]._repr_html_().startswith("<svg")


def points(text):
    """The corners of every curve, by its title."""
    return {p[0].text: [tuple(map(float, c.split(","))) for c in p.get("points").split()] for p in drawing(text).iter(f"{SVG}polygon")}


def curve(value, edges=None, name="a", said="mean 50 %"):
    return Curve(name, edges or list(range(len(value) + 1)), value, 1.0, "", said)


def test_curves_share_their_scales():
    """The second lasts half as long and is half as high: it ends at 170 + 230 and is 19 high above its ground at 88."""
    result = points(draw_curves([curve([1.0], [0, 2]), curve([0.5], [0, 1], "b")]))
    assert list(result.values())[1] == [(170, 88), (170, 69), (400, 69), (400, 88)]


def test_many_values_keep_their_peaks():
    value = [0.0] * 100_000
    value[77_777] = 1.0
    (result,) = points(draw_curves([curve(value)])).values()
    assert len(result) == 2 * MOST_POINTS_DRAWN + 2
    assert min(y for _, y in result) == 2.0


@pytest.fixture
def recorded(tmp_path):
    """One step of 2.5 ms (the kernels end there): kernels from 0.5 to 1.5 and from 2 to 2.5 ms; 100 bytes from 1 ms, 300 from 2 ms on."""
    rank = DrawnRank()
    rank.step(0, 0, 2500)
    rank.operator("aten::mm", 0, 400, **{"External id": 1})
    rank.call("cudaLaunchKernel", 100, 10, ("gemm", 500, 1000), **{"External id": 1})
    rank.call("cudaLaunchKernel", 200, 10, ("gemm", 2000, 500), **{"External id": 1})
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "s": "t"}
    for at, total in ((1000, 100), (2000, 300)):
        args = {"Total Reserved": 512, "Total Allocated": total, "Bytes": total, "Device Id": 0, "Device Type": 1, "Addr": 1}
        rank.rows.append({**memory, "ts": at, "args": args})
    return lumos.read(rank.write(tmp_path / "rank0.json"))


def test_utilization_is_the_share_of_each_millisecond(recorded):
    """0.5 of the first ms, 0.5 of the second, all of the half that the third has: 1.5 of 2.5 ms."""
    (result,) = lumos.utilization(lumos.measured(lumos.build(recorded)))
    assert (result.rank, result.name, result.duration_ns, result.bin_ns) == (0, "ProfilerStep#0", 2_500_000, 1_000_000)
    assert result.busy == (0.5, 0.5, 1.0)
    assert result.mean_busy == pytest.approx(0.6)
    assert result.curve().edges_ns == [0, 1_000_000, 2_000_000, 2_500_000]


def test_both_draw_themselves_above_their_tables(recorded):
    graph = lumos.build(recorded)
    for rows, said in ((lumos.utilization(lumos.measured(graph)), "mean 60 %"), (lumos.memory(recorded), "peak 300 B")):
        for result in (rows, rows[0]):
            text = result._repr_html_()
            assert text.startswith("<svg") and "<table>" in text
            assert said in text
