"""Bars and curves as one inline SVG, with which a notebook shows what times consist of, how busy devices were and what memory they held.

A drawing has no script and loads nothing. Its text has the colour of the text around it, so that it can be read on light and on dark
ground, and the pointer shows each part with its time. Every bar and every curve is a row of its own, and all rows have one scale.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lumos.units import Quantity, duration, quantity, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: The most rows of a drawing, the most parts of a bar, the most points of a curve, and the most characters of a name.
MOST_ROWS_DRAWN, MOST_PARTS, MOST_POINTS_DRAWN, MOST_NAME = 12, 10, 460, 26
#: Colours that people with colour blindness can distinguish, on light and on dark ground (Okabe and Ito 2008), then lighter ones; each with
#: the colour of the text on it. Curves have the first.
_COLOURS = (
    ("#0072b2", "#fff"), ("#009e73", "#000"), ("#d55e00", "#000"), ("#b9c0c8", "#000"), ("#e69f00", "#000"),
    ("#cc79a7", "#000"), ("#56b4e9", "#000"), ("#8c6bb1", "#fff"), ("#f0d97a", "#000"), ("#b0885a", "#000"),
)  # fmt: skip
#: Sizes of a drawing in its own units, which are pixels where there is room: its width, where the rows begin and how long the longest is;
#: the height of a bar's row, of a curve's, and of the curve in it.
_WIDTH, _LEFT, _LENGTH, _BAR, _CURVE, _TALL = 720, 170, 460, 24, 48, 38
#: A part that is shorter has no room for its share.
_LEAST_WRITTEN = 40


class Bar(NamedTuple):
    """A time, by what it consists of. parts: ns by the part's name; they are drawn in their order, and add up to the time."""

    name: str
    parts: Mapping[str, float]

    @property
    def length_ns(self) -> float:
        return sum(self.parts.values())


def draw_bars(bars: Sequence[Bar]) -> str:
    """The first MOST_ROWS_DRAWN bars, with the share of each part, their times, and the parts' names below. Empty without time."""
    shown = [Bar(bar.name, dict(list(bar.parts.items())[:MOST_PARTS])) for bar in bars[:MOST_ROWS_DRAWN]]
    longest = max((bar.length_ns for bar in shown), default=0)
    if longest <= 0:
        return ""
    names = list(dict.fromkeys(name for bar in shown for name, ns in bar.parts.items() if ns > 0))[: len(_COLOURS)]
    colours = dict(zip(names, _COLOURS, strict=False))
    rows = [piece for i, bar in enumerate(shown) for piece in _row_of_bar(bar, i * _BAR, longest, colours)]
    legend = list(_legend(colours, len(shown) * _BAR + 8))
    height = len(shown) * _BAR + 8 + -(-len(names) // 3) * 20
    return _svg(height, (*rows, *legend), len(shown), len(bars))


def _row_of_bar(bar: Bar, y: int, longest: float, colours: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """The name of a bar, its parts, and its time."""
    yield f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{_short(bar.name)}</text>'
    x = float(_LEFT)
    for name, ns in bar.parts.items():
        if ns <= 0 or name not in colours:
            continue
        width, share = _LENGTH * ns / longest, f"{ns / bar.length_ns:.1%}".replace("%", " %")
        ground, text = colours[name]
        title = f"<title>{_short(name)}: {duration(ns)}, {share}</title>"
        yield f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="18" fill="{ground}">{title}</rect>'
        if width >= _LEAST_WRITTEN:
            yield f'<text x="{x + width / 2:.1f}" y="{y + 15}" text-anchor="middle" fill="{text}" pointer-events="none">{share}</text>'
        x += width
    yield f'<text x="{x + 8:.1f}" y="{y + 15}">{duration(bar.length_ns)}</text>'


def _legend(colours: Mapping[str, tuple[str, str]], y: int) -> Iterator[str]:
    """The names of the parts with their colours, three in a line."""
    for i, (name, (ground, _)) in enumerate(colours.items()):
        x, top = _LEFT + i % 3 * 180, y + i // 3 * 20
        yield f'<rect x="{x}" y="{top}" width="12" height="12" fill="{ground}"/><text x="{x + 18}" y="{top + 11}">{_short(name)}</text>'


class Curve(NamedTuple):
    """Values over time: value[i] from edges_ns[i] to edges_ns[i + 1]. most: the value at the top of a row where no curve exceeds it.
    unit: the ending of a field's name that says what the values are ("_bytes"), or "" for shares. said: what stands beside the curve."""

    name: str
    edges_ns: Sequence[float]
    value: Sequence[float]
    most: float
    unit: str
    said: str


def draw_curves(curves: Sequence[Curve]) -> str:
    """The first MOST_ROWS_DRAWN curves in rows of one scale, with the time that they span. Empty without a curve that has values."""
    shown = [curve for curve in curves if curve.value][:MOST_ROWS_DRAWN]
    if not shown:
        return ""
    longest = max(curve.edges_ns[-1] for curve in shown) or 1.0
    tallest = max(max(curve.most, max(curve.value)) for curve in shown) or 1.0
    rows = [piece for i, curve in enumerate(shown) for piece in _row_of_curve(curve, i * _CURVE, longest, tallest)]
    height = len(shown) * _CURVE + 20
    ends = ((_LEFT, "start", "0"), (_LEFT + _LENGTH, "end", duration(longest)))
    axis = "".join(f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}">{text}</text>' for x, anchor, text in ends)
    return _svg(height, (*rows, axis), len(shown), len(curves))


def _row_of_curve(curve: Curve, y: int, longest: float, tallest: float) -> Iterator[str]:
    """The name of a curve, its area, and what is said of it."""
    edges, value = _thinned(curve.edges_ns, curve.value)
    bottom = y + _TALL + 2
    x, top = [_LEFT + _LENGTH * at / longest for at in edges], [bottom - _TALL * v / tallest for v in value]
    steps = [f"{x[i]:.1f},{at:.1f} {x[i + 1]:.1f},{at:.1f}" for i, at in enumerate(top)]
    points = [f"{x[0]:.1f},{bottom}", *steps, f"{x[-1]:.1f},{bottom}"]
    measure = quantity(curve.unit) if curve.unit else Quantity("")
    scale = with_unit(tallest, measure) if curve.unit else f"{tallest:.0%}".replace("%", " %")
    title = f"<title>{_short(curve.name)}: {escape(curve.said)}; the row is {scale} high</title>"
    yield f'<text x="{_LEFT - 8}" y="{bottom - 4}" text-anchor="end">{_short(curve.name)}</text>'
    yield f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _LENGTH}" y2="{bottom}" stroke="currentColor" stroke-opacity="0.4"/>'
    yield f'<polygon points="{" ".join(points)}" fill="{_COLOURS[0][0]}">{title}</polygon>'
    yield f'<text x="{_LEFT + _LENGTH + 8}" y="{bottom - 4}">{escape(curve.said)}</text>'


def _thinned(edges: Sequence[float], value: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The curve in at most MOST_POINTS_DRAWN values: of each run of neighbours the highest, so that no peak is lost."""
    many = len(value)
    if many <= MOST_POINTS_DRAWN:
        return edges, value
    first = [i * many // MOST_POINTS_DRAWN for i in range(MOST_POINTS_DRAWN + 1)]
    return [*(edges[i] for i in first[:-1]), edges[-1]], [max(value[i:j]) for i, j in pairwise(first)]


def _svg(height: int, pieces: Iterable[str], shown: int, given: int) -> str:
    """A drawing of these pieces. shown, given: of how many rows it shows the first."""
    more = f"<p>drawn: the first {shown} of {given:,}</p>" if given > shown else ""
    style = f"max-width:{_WIDTH}px;width:100%;font:12px sans-serif;display:block"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" style="{style}" fill="currentColor">'
    return "".join((head, *pieces, "</svg>", more))


def _short(name: str) -> str:
    """The name in few characters, as text of a page."""
    name = " ".join(name.split())
    return escape(name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…")
