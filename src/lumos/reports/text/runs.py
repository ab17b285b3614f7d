"""Print the answers of what runs something: `lumos proxy generate`, `lumos proxy run` and `lumos collect --emulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.reports.text.format import ShownField, paragraph, percent, print_diagnostics, table
from lumos.units import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from lumos.emulation.facade import Emulated
    from lumos.emulation.peak import Peak
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


#: Owners of memory that people are shown.
_OWNERS = 5
#: Notes of the cost models, one for each class of kernels: too many for people to read one by one.
OF_PRICES = {"generic-coefficients", "coefficients-of-kin", "extrapolated"}


def print_emulated(console: Console, output: str, job: Emulated, *, steps: int, fit: str) -> None:
    """Print what ran, the memory that it held, and how long it takes. fit: the name of which the largest number was to be found."""
    alike = ", the others do the same as one of them" if len(job.distinct) < job.ranks else ""
    console.print(f"{output}: {len(job.distinct)} of {job.ranks} ranks ran{alike}", markup=False)
    console.print(f"{count(job.operators, 'operator')} in {count(steps, 'step')}")
    if fit:
        largest = max(tried.value for tried in job.tried if tried.fits)
        console.print(f"the largest {fit} that fits is {largest}, which is what was recorded", markup=False)
    for line in _memory(job.memory) if job.memory else ():
        paragraph(console, line)
    if job.span_ns is not None:
        console.print(f"{job.span_ns / 1e9:.3f} s from the first work to the last, simulated")
    priced = [note for note in job.diagnostics if note.code in OF_PRICES]
    for note in job.diagnostics:
        if note not in priced:
            console.print(f"note: {note.code}: {note.message}", markup=False)
    if priced:
        wider = "prices have wider intervals than usual, beyond what was measured on this accelerator; --json lists them"
        console.print(f"note: {len(priced)} {wider}")


def _memory(peaks: Sequence[Peak]) -> Iterator[str]:
    """The peak of the rank that reserves most: figures, moment, owners."""
    most = max(peaks, key=lambda peak: (peak.reserved_bytes, peak.allocated_bytes))
    spare = size(most.room_bytes - most.reserved_bytes)
    when = " in ".join(filter(None, (most.operator, most.module))) or f"before the recorded steps, in these {size(most.steps_bytes)}"
    room = f", reserved {size(most.reserved_bytes)} of {size(most.room_bytes)}: {spare} to spare" if most.room_bytes else ""
    yield f"memory: rank {most.rank} has at most {size(most.allocated_bytes)} allocated ({when}){room}"
    yield f"  {', '.join(f'{kind} {size(held)}' for kind, held in most.by_kind().items())}"
    for owner in most.held[:_OWNERS]:
        yield f"  {size(owner.bytes):>9} {owner.kind} {owner.module or 'outside of modules'}"
