"""The blocks of a job as text (`lumos inspect --blocks`)."""

from __future__ import annotations

from rich.console import Console

from lumos.report.text.format import heading, paragraph, percent, table
from lumos.segment.outline import Outline
from lumos.units import count, duration


def print_blocks(console: Console, found: Outline) -> None:
    """One step of one rank, block by block."""
    heading(console, f"Blocks of a step of rank {found.rank}")
    if found.layers:
        evidence = ", ".join(f"{phase} by {how}" for phase, how in found.evidence.items() if how)
        paragraph(console, f"{count(found.layers, 'layer')} (confidence {percent(found.confidence, decimals=0)}): {evidence}")
    else:
        paragraph(console, "no layers found: nothing repeats, and no operator holds weights")
    several = len({row.microbatch for row in found.rows}) > 1
    rows = []
    for row in found.rows:
        block = f"{row.repeats} × {row.block}" if row.repeats > 1 else row.block
        phase = f"{row.phase} {row.microbatch}" if several else row.phase
        rows.append((phase, block, f"{row.tasks:,}", duration(row.cpu_ns), duration(row.device_ns)))
    table(console, ("phase", "block", "tasks", "CPU each", "device each"), rows, left=(0, 1))
