"""Print how much slower compute kernels run during collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reports.text.format import heading, table
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lumos.analyze.interference import Interference


def print_interference(console: Console, rows: Sequence[Interference]) -> None:
    """Print how much slower each class of kernels runs during collectives; print nothing where there was nothing to compare."""
    if not rows:
        return
    heading(console, "Kernels during a collective on another stream, against equal work alone")
    cells = [(r.kernel_class, f"{r.kernels:,}", duration(r.time_ns), duration(r.alone_ns), f"× {r.slowdown:.2f}") for r in rows]
    table(console, ("class", "kernels", "time", "alone", "takes"), cells)
