"""Print the answers of `lumos chakra …`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from lumos.reports.text.format import MOST_ROWS, ShownField, a_step, paragraph, percent, print_diagnostics, sentence, table
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from lumos.chakra.checks import Checked
    from lumos.chakra.exporting import Exported
    from lumos.chakra.facade import Imported
    from lumos.chakra.linked_job import LinkedJob
    from lumos.chakra.statistics import Stat
    from lumos.chakra.synthesis.facade import Synthetic


def print_exported(console: Console, result: Exported) -> None:
    """Print what was written, and where to."""
    text = (
        f"{result.folder}: {count(result.ranks, 'rank')}, {count(result.nodes, 'node')}, {result.communication:,} of them communication"
        f" in {count(result.groups, 'group')}"
    )
    sentence(console, text)
    others = [name for name in result.files if not name.endswith(".et")]
    paragraph(console, f"job.0.et … job.{result.ranks - 1}.et, {', '.join(others)}" if result.ranks > 1 else ", ".join(result.files))
    if result.compute:
        paragraph(console, f"operations or bytes of {result.work:,} of {count(result.compute, 'compute node')} on devices")
    if result.simulated_ns is not None:
        slower = result.simulated_ns / result.replayed_ns - 1 if result.replayed_ns else None
        replay, change = f"{duration(result.replayed_ns)} in the job's own replay", percent(slower, decimals=1, signed=True)
        paragraph(console, f"{replay}, {duration(result.simulated_ns)} as a simulator runs it ({change})")
    print_diagnostics(console, result.diagnostics)


def print_checked(console: Console, result: Checked) -> None:
    """Print the verdict, and every violation."""
    verdict = "ok" if result.ok else f"{len(result.violations)} times a rule is broken"
    sentence(console, f"{count(result.ranks, 'rank')}, {count(result.nodes, 'node')}: {verdict}")
    for warning in result.warnings[:MOST_ROWS]:
        paragraph(console, "warning: ", warning)
    if len(result.warnings) > MOST_ROWS:
        console.print(f"  … and {len(result.warnings) - MOST_ROWS:,} more; --json lists all")
    if result.ok:
        return
    table(console, ("rule", "times"), Counter(v.rule for v in result.violations).most_common(), title="Rules broken")
    for v in result.violations[:MOST_ROWS]:
        where = v.file if v.node is None else f"{v.file} node {v.node}"
        paragraph(console, "• ", (where, "yellow"), f": {v.rule}: {v.message}")
    if len(result.violations) > MOST_ROWS:
        console.print(f"  … and {len(result.violations) - MOST_ROWS:,} more; --json lists all")


def print_linked(console: Console, linked: LinkedJob) -> None:
    """Print how many kernels were linked, of all ranks by method and of each, and what confirms the pairs."""
    figures = linked.to_dict()
    rate = percent(figures["link_rate"], decimals=1)
    text = f"{figures['linked']:,} of {figures['shared']:,} kernels linked whose operator is in both files: {rate}"
    sentence(console, text)
    paragraph(console, f"{figures['kernels']:,} kernels in all; {figures['operators']:,} operators matched")
    table(console, ("how", "kernels"), list(figures["by_method"].items()))
    rows = [
        (
            rank["rank"],
            Path(rank["execution_trace"]).name,
            Path(rank["profiler_file"]).name,
            f"{rank['linked']:,} of {rank['shared']:,}",
            ", ".join(vote["fact"].replace("-", " ") for vote in rank["votes"] if vote["confirms"]) or "nothing but the order of calls",
        )
        for rank in figures["ranks"]
    ]
    table(console, ("rank", "execution trace", "profiler file", "linked", "of one run by"), rows, whole=True)
    print_diagnostics(console, linked.diagnostics)


def print_imported(console: Console, result: Imported) -> None:
    """Print the simulated step of an imported set."""
    sentence(console, f"{count(len(result.graph.ranks), 'rank')}, {count(len(result.graph), 'task')}: {a_step(result.time)}, simulated")
    print_diagnostics(console, result.graph.diagnostics)


def print_synthetic(console: Console, result: Synthetic) -> None:
    """Print what was synthesised, and how close it is to its sample."""
    exported = result.exported
    text = f"{exported.folder}: {count(exported.ranks, 'rank')}, {count(exported.nodes, 'node')} from {result.symbols:,} symbols"
    sentence(console, text)
    if result.facts is not None:
        paragraph(console, ", ".join(f"{key} {value}" for key, value in result.facts.items()))
    sources = ", ".join(duration(ns) for ns in result.source_step_time_ns)
    paragraph(console, f"{duration(result.step_time_ns)} a step, simulated" + (f" (source: {sources})" if sources else ""))
    told = result.disclosure
    if told is not None:
        rows = [
            ("told among those learned from", percent(told.told, decimals=0), percent(told.chance, decimals=0)),
            ("the same by one who knows its facts alone", percent(told.by_facts, decimals=0), percent(told.chance, decimals=0)),
            ("structure (runs of 16 nodes)", percent(told.structure, decimals=1), "–"),
        ]
        table(console, ("", "this set", "by chance"), rows, title="What it reveals of the set that gave its structure")
    print_diagnostics(console, exported.diagnostics)


def print_stat(console: Console, result: Stat) -> None:
    """Print what a set contains."""
    text = f"{count(result.ranks, 'rank')}, {count(result.total, 'node')}, {count(result.groups, 'group')}"
    sentence(console, text)
    paragraph(
        console,
        f"{result.dependencies:.2f} dependencies a node, {result.widest} at most; {percent(result.symmetry, decimals=0)} of the ranks run"
        " the operators of the first, in its order",
    )
    table(console, ("type", "nodes"), list(result.nodes.items()), title="Nodes")
    columns: Mapping[str, ShownField] = {"kind": "kind", "nodes": "nodes", "bytes": "size_bytes", "time": "time_ns", "ranks": "ranks"}
    table(console, columns, result.communication, title="Communication")
