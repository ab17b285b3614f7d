"""Compute kernels beside collectives, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lumos.analyze.interference import Interference
from lumos.report.text.format import heading, table
from lumos.units import duration


def print_interference(console: Console, rows: Sequence[Interference]) -> None:
    """How much slower each class runs inside collectives; nothing where nothing could be compared."""
    if not rows:
        return
    heading(console, "Kernels beside a collective on another stream, against equal work alone")
    cells = [(r.kernel_class, f"{r.kernels:,}", duration(r.time_ns), duration(r.alone_ns), f"× {r.slowdown:.2f}") for r in rows]
    table(console, ("class", "kernels", "time", "alone", "takes"), cells)
