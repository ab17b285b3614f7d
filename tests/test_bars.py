from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import lumos
from lumos.bars import MOST_BARS, Bar, draw_bars
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


def test_a_part_has_one_colour_in_all_bars_and_text_that_of_the_page():
    svg = drawing(draw_bars([Bar("a", {"x": 1, "y": 1}), Bar("b", {"y": 1, "x": 1})]))
    colours = {(r[0].text[0], r.get("fill")) for r in svg.iter(f"{SVG}rect") if len(r)}
    assert len(colours) == 2
    assert svg.get("fill") == "currentColor"


def test_names_are_text_and_sizes_bounded():
    rows = Rows([Timed("<script>&" * 1000, {f"<b>{'&' * 500}{i}": 1e6 for i in range(300)}) for _ in range(300)])
    for result in (rows, rows[0]):
        text = result._repr_html_()
        assert "<script" not in text and "<b>" not in text
        assert len(text.encode()) <= 100_000
        drawing(text)
    assert f"drawn: the first {MOST_BARS} of 300" in rows._repr_html_()


def test_without_time_there_is_only_the_table():
    assert draw_bars([]) == draw_bars([Bar("a", {"x": 0})]) == ""
    assert Timed("a", {"x": 0})._repr_html_().startswith("<strong>")


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
