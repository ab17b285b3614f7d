"""Print the answer of `lumos inspect`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lumos.analyze.contents import DEVICE_FEATURES, FEATURES, Contents
from lumos.reports.text.format import ShownField, heading, paragraph, print_diagnostics, print_trust, sentence, table
from lumos.reports.text.replay import print_interference
from lumos.units import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumos.analyze.collectives import Interference
    from lumos.analyze.trust import Trust
    from lumos.diagnostics import Diagnostic
    from lumos.segment.outline import Outline
    from lumos.trace.table import ProcessGroup


def print_contents(
    console: Console,
    files: Sequence[Contents],
    groups: Sequence[ProcessGroup],
    interference: Sequence[Interference],
    trust: Trust,
    diagnostics: Sequence[Diagnostic],
    read_s: float,
) -> None:
    """Print the whole answer."""
    events, memory_bytes = sum(f.events for f in files), sum(f.memory_bytes for f in files)
    names = [f"rank {f.rank}" for f in files] if len(files) == 1 else [count(len(files), "rank")]
    worlds = {f.world_size for f in files if f.world_size is not None}
    world = f" of {max(worlds)}" if worlds else ""
    sentence(console, f"{names[0]}{world}: {count(events, 'row')}, {size(memory_bytes)} in memory, read in {read_s:.2f} s")
    print_trust(console, trust)
    _print_files(console, files)
    _print_rows(console, files)
    _print_missing(console, files)
    columns: Mapping[str, ShownField] = {"group": "name", "ranks": lambda group: _ranks(group.ranks), "description": "description"}
    table(console, columns, groups, title="Process groups")
    print_interference(console, interference)
    print_diagnostics(console, diagnostics)


def _print_files(console: Console, files: Sequence[Contents]) -> None:
    columns: Mapping[str, ShownField] = {
        "rank": "rank", "known from": "rank_source", "recorded": "duration_ns", "steps": lambda f: f"{len(f.steps)}",
        "threads": "threads", "streams": "streams", "unlinked": "unlinked",
    }  # fmt: skip
    table(console, columns, files, "unlinked: device work whose launch call has no row", title="Ranks")
    machines: dict[str, list[int]] = {}
    for f in files:
        if f.devices:
            numbers = {device: f.devices.count(device) for device in f.devices}
            named = ", ".join(f"{many} × {device}" if many > 1 else device for device, many in numbers.items())
            machines.setdefault(named, []).append(f.rank)
        for device, peak in f.peak_memory_bytes.items():
            paragraph(console, f"rank {f.rank} allocates at most {size(peak)} on {device}")
    for machine, ranks in machines.items():
        paragraph(console, f"{'rank' if len(ranks) == 1 else 'ranks'} {_ranks(tuple(ranks))} on {machine}")
    lengths = [s.duration_ns for f in files for s in f.steps]
    if lengths:
        span = duration(lengths[0]) if len(lengths) == 1 else f"{duration(min(lengths))} to {duration(max(lengths))}"
        paragraph(console, f"{count(len(lengths), 'step')} marked, of {span}")


def _print_rows(console: Console, files: Sequence[Contents]) -> None:
    total: Counter[str] = Counter()
    for f in files:
        total.update(f.rows)
    overhead = sum(f.overhead_ns for f in files)
    notes = [f"the profiler itself took {duration(overhead)}"] if overhead else []
    rows = [(category.replace("_", " "), number) for category, number in total.most_common()]
    table(console, ("category", "rows"), rows, *notes, title="Rows")


def _print_missing(console: Console, files: Sequence[Contents]) -> None:
    has_device = any(f.streams for f in files)
    missing = [
        (name, remedy)
        for name, remedy in FEATURES.items()
        if not all(f.features[name] for f in files) and (has_device or name not in DEVICE_FEATURES)
    ]
    if not missing:
        return
    heading(console, "Not recorded")
    for name, remedy in missing:
        paragraph(console, f"• {name.replace('_', ' ')}: {remedy}")


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "unknown"
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks))


def print_blocks(console: Console, outline: Outline) -> None:
    """Print one step of one rank, block by block."""
    heading(console, f"Blocks of a step of rank {outline.rank}")
    if outline.layers:
        evidence = ", ".join(f"{phase} by {how}" for phase, how in outline.evidence.items() if how)
        paragraph(console, f"{count(outline.layers, 'layer')} (confidence {100 * outline.confidence:.0f} %): {evidence}")
    else:
        paragraph(console, "no layers found: nothing repeats, and no operator holds weights")
    several = len({row.microbatch for row in outline.rows}) > 1
    columns: Mapping[str, ShownField] = {
        "phase": lambda row: f"{row.phase} {row.microbatch}" if several else row.phase,
        "block": lambda row: f"{row.repeats} × {row.block}" if row.repeats > 1 else row.block,
        "tasks": "tasks", "CPU each": "cpu_ns", "device each": "device_ns",
    }  # fmt: skip
    table(console, columns, outline.rows)
