"""Print the blocks of a job (`lumos inspect --blocks`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reports.text.format import heading, paragraph, percent, table
from lumos.units import count, duration

if TYPE_CHECKING:
    from rich.console import Console

    from lumos.segment.outline import Outline


def print_blocks(console: Console, outline: Outline) -> None:
    """Print one step of one rank, block by block."""
    heading(console, f"Blocks of a step of rank {outline.rank}")
    if outline.layers:
        evidence = ", ".join(f"{phase} by {how}" for phase, how in outline.evidence.items() if how)
        paragraph(console, f"{count(outline.layers, 'layer')} (confidence {percent(outline.confidence, decimals=0)}): {evidence}")
    else:
        paragraph(console, "no layers found: nothing repeats, and no operator holds weights")
    several = len({row.microbatch for row in outline.rows}) > 1
    rows = []
    for row in outline.rows:
        block = f"{row.repeats} × {row.block}" if row.repeats > 1 else row.block
        phase = f"{row.phase} {row.microbatch}" if several else row.phase
        rows.append((phase, block, f"{row.tasks:,}", duration(row.cpu_ns), duration(row.device_ns)))
    table(console, ("phase", "block", "tasks", "CPU each", "device each"), rows, left=(0, 1))
