"""Curves over time as one inline SVG, with which a notebook shows how busy devices were and how much memory they held.

Every curve is a row of its own, and all rows have one scale of time and one of values. Like the bars of `lumos.bars`, the drawing has no
script, loads nothing, and its text has the colour of the text around it.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lumos.units import Quantity, duration, quantity, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The most curves of a drawing, the most points of a curve, and the most characters of a name.
MOST_CURVES_DRAWN, MOST_POINTS_DRAWN, _MOST_NAME = 12, 460, 26
#: Sizes of the drawing, as those of `lumos.bars`: its width, where the curves begin and how wide the longest is, the height of a row and
#: of the curve in it.
_WIDTH, _LEFT, _LENGTH, _ROW, _TALL = 720, 170, 460, 48, 38
#: A blue that can be told from light and from dark ground (Okabe and Ito 2008).
_COLOUR = "#0072b2"


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
    """The first MOST_CURVES_DRAWN curves in rows of one scale, with the time that they span. Empty without a curve that has values."""
    shown = [curve for curve in curves if curve.value][:MOST_CURVES_DRAWN]
    if not shown:
        return ""
    longest = max(curve.edges_ns[-1] for curve in shown) or 1.0
    tallest = max(max(curve.most, max(curve.value)) for curve in shown) or 1.0
    rows = [piece for i, curve in enumerate(shown) for piece in _row(curve, i * _ROW, longest, tallest)]
    height = len(shown) * _ROW + 20
    ends = ((_LEFT, "start", "0"), (_LEFT + _LENGTH, "end", duration(longest)))
    axis = "".join(f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}">{text}</text>' for x, anchor, text in ends)
    more = f"<p>drawn: the first {len(shown)} of {len(curves):,}</p>" if len(curves) > len(shown) else ""
    style = f"max-width:{_WIDTH}px;width:100%;font:12px sans-serif;display:block"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" style="{style}" fill="currentColor">'
    return "".join((head, *rows, axis, "</svg>", more))


def _row(curve: Curve, y: int, longest: float, tallest: float) -> Iterator[str]:
    """The name of a curve, its area, and what is said of it."""
    edges, value = _thinned(curve.edges_ns, curve.value)
    bottom = y + _TALL + 2
    x, top = [_LEFT + _LENGTH * at / longest for at in edges], [bottom - _TALL * v / tallest for v in value]
    steps = [f"{x[i]:.1f},{at:.1f} {x[i + 1]:.1f},{at:.1f}" for i, at in enumerate(top)]
    points = [f"{x[0]:.1f},{bottom}", *steps, f"{x[-1]:.1f},{bottom}"]
    measure = quantity(curve.unit) if curve.unit else Quantity("")
    scale = with_unit(tallest, measure) if curve.unit else f"{tallest:.0%}".replace("%", " %")
    title = f"<title>{escape(_cut(curve.name))}: {escape(curve.said)}; the row is {scale} high</title>"
    yield f'<text x="{_LEFT - 8}" y="{bottom - 4}" text-anchor="end">{escape(_cut(curve.name))}</text>'
    yield f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _LENGTH}" y2="{bottom}" stroke="currentColor" stroke-opacity="0.4"/>'
    yield f'<polygon points="{" ".join(points)}" fill="{_COLOUR}">{title}</polygon>'
    yield f'<text x="{_LEFT + _LENGTH + 8}" y="{bottom - 4}">{escape(curve.said)}</text>'


def _thinned(edges: Sequence[float], value: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The curve in at most MOST_POINTS_DRAWN values: of each run of neighbours the highest, so that no peak is lost."""
    many = len(value)
    if many <= MOST_POINTS_DRAWN:
        return edges, value
    first = [i * many // MOST_POINTS_DRAWN for i in range(MOST_POINTS_DRAWN + 1)]
    return [*(edges[i] for i in first[:-1]), edges[-1]], [max(value[i:j]) for i, j in pairwise(first)]


def _cut(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME - 1]}…"
