"""Print the answers of `lumos proxy generate` and `lumos proxy run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.reports.text.format import ShownField, percent, print_diagnostics, table
from lumos.units import duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from lumos.proxy.facade import Generated


def print_generated(console: Console, output: str, made: Generated) -> None:
    """Print what was written, and how to run it."""
    console.print(f"{output}: {made.operators} operators of {made.ranks} of {made.world_size} ranks, step {made.step}", soft_wrap=True)
    print_diagnostics(console, made.diagnostics)
    console.print(f"run it: lumos proxy run {output}", markup=False, soft_wrap=True)


def print_run(console: Console, result: Mapping[str, Any]) -> None:
    """Print the step of a benchmark beside the recorded one, what ran for real, and what did not."""
    processes, ranks, memory = len(result["ranks"]), result["recorded_ranks"], result["memory"]
    run_by = f"{processes} of its {ranks} ranks" if processes <= ranks else f"{processes} processes for its {ranks} ranks"
    recorded = f", {duration(result['recorded_step_ns'])} recorded" if result["recorded_step_ns"] else ""
    error = f": {percent(result['error'], signed=True)}" if result["error"] is not None else ""
    shares = ", ".join(f"{percent(v)} {k.replace('_', ' ')}" for k, v in result["coverage"].items() if v is not None)
    less = " Tensors share storage." if memory["shared"] else ""
    peak, share = result["peak_memory_bytes"], result["utilization"]
    usage = [f"Peak memory: {size(peak)}."] if peak is not None else []
    usage += [f"In operators: {percent(share)} of the step."] if share is not None else []
    for line in (
        f"Step {duration(result['replayed_step_ns'])}{recorded}{error}",
        f"Here: {result['device']}, torch {result['torch']}, {run_by}",
        *["Scaled up: groups of all ranks span all processes, each other one is repeated; parts keep their size."] * (processes > ranks),
        f"Operator time: {shares}. Memory allowed: {size(memory['limit_bytes'])}.{less}",
        " ".join(usage),
    ):
        console.print(line, markup=False)
    columns: Mapping[str, ShownField] = {
        "not run for real": lambda row: row["name"], "outcome": lambda row: row["outcome"].replace("_", " "),
        "count": lambda row: f"{row['count']:,}", "why": lambda row: row["reason"],
    }  # fmt: skip
    table(console, columns, result["not_real"], whole=True)
