"""Stacked bars as one inline SVG, with which a notebook shows what times consist of.

The drawing has no script and loads nothing. Its text has the colour of the text around it, so that it can be read on light and on dark
ground, and the pointer shows each part with its time.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The most bars of a drawing, the most parts of a bar, and the most characters of a name.
MOST_BARS, MOST_PARTS, MOST_NAME = 12, 10, 26
#: Colours that people with colour blindness can distinguish, on light and on dark ground (Okabe and Ito 2008), then lighter ones; each with
#: the colour of the text on it.
_COLOURS = (
    ("#0072b2", "#fff"), ("#009e73", "#000"), ("#d55e00", "#000"), ("#b9c0c8", "#000"), ("#e69f00", "#000"),
    ("#cc79a7", "#000"), ("#56b4e9", "#000"), ("#8c6bb1", "#fff"), ("#f0d97a", "#000"), ("#b0885a", "#000"),
)  # fmt: skip
#: Sizes of the drawing in its own units, which are pixels where there is room: its width, where the bars begin and how long the longest is,
#: and the height of a row.
_WIDTH, _LEFT, _LENGTH, _ROW = 720, 170, 460, 24
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
    """The first MOST_BARS bars on one scale, with the share of each part, their times, and the parts' names below. Empty without time."""
    shown = [Bar(bar.name, dict(list(bar.parts.items())[:MOST_PARTS])) for bar in bars[:MOST_BARS]]
    longest = max((bar.length_ns for bar in shown), default=0)
    if longest <= 0:
        return ""
    names = list(dict.fromkeys(name for bar in shown for name, ns in bar.parts.items() if ns > 0))[: len(_COLOURS)]
    colours = dict(zip(names, _COLOURS, strict=False))
    rows = [piece for i, bar in enumerate(shown) for piece in _row(bar, i * _ROW, longest, colours)]
    legend = list(_legend(colours, len(shown) * _ROW + 8))
    height = len(shown) * _ROW + 8 + -(-len(names) // 3) * 20
    more = f"<p>drawn: the first {len(shown)} of {len(bars):,}</p>" if len(bars) > len(shown) else ""
    style = f"max-width:{_WIDTH}px;width:100%;font:12px sans-serif;display:block"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" style="{style}" fill="currentColor">'
    return "".join((head, *rows, *legend, "</svg>", more))


def _row(bar: Bar, y: int, longest: float, colours: Mapping[str, tuple[str, str]]) -> Iterator[str]:
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


def _short(name: str) -> str:
    """The name in few characters, as text of a page."""
    name = " ".join(name.split())
    return escape(name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…")
