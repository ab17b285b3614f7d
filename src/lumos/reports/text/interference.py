"""Print how much slower compute kernels run during collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reports.text.format import heading, listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lumos.analyze.interference import Interference


def print_interference(console: Console, rows: Sequence[Interference]) -> None:
    """Print how much slower each class of kernels runs during collectives; print nothing where there was nothing to compare."""
    if not rows:
        return
    heading(console, "Kernels during a collective on another stream, against equal work alone")
    fields = {"class": "kernel_class", "kernels": "kernels", "time": "time_ns", "alone": "alone_ns"}
    listing(console, rows, {**fields, "takes": lambda row: f"× {row.slowdown:.2f}"})
