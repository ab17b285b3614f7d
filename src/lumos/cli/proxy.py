"""`lumos proxy`: a runnable benchmark from a trace."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.cli import new_app
from lumos.cli.output import Json, Paths, Repair, console, write_json

app = new_app(no_args_is_help=True, help="A runnable benchmark from a trace: the same operators, shapes, order and overlap.")


@app.command()
def generate(
    paths: Paths,
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where to write the benchmark.")],
    execution_trace: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="The execution trace of a rank, in the order of the ranks; repeatable.")
    ] = None,
    step: Annotated[str | None, typer.Option(metavar="NAME", help="The step, by its name in the trace (default: the typical one).")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Only operators of these names; repeatable.")] = None,
    blocks: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only operators inside ranges of these names (modules, labels); repeatable.")
    ] = None,
    obfuscate: Annotated[bool, typer.Option("--obfuscate", help="Replace the names that the job's own code defines by hashes.")] = False,
    kernel_sources: Annotated[
        bool, typer.Option("--kernel-sources", help="Take the sources of compiled kernels along, which are code of the job.")
    ] = False,
    max_memory: Annotated[float, typer.Option(metavar="BYTES", help="Bytes that tensors may take (default: what the device has).")] = 0,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Write a folder with benchmark.py, trace.json and a README.

    PATH is a profiler's trace, or execution traces alone, one for each rank.
    """
    from lumos.proxy.facade import generate as write

    found = write(
        paths,
        output,
        execution_trace=execution_trace or (),
        step=step,
        only=only or (),
        blocks=blocks or (),
        obfuscate=obfuscate,
        kernel_sources=kernel_sources,
        max_memory=max_memory,
        repair=repair,
    )
    if json:
        write_json(found)
        return
    from lumos.reports.text.format import print_diagnostics

    out = console()
    out.print(f"{output}: {found.operators} operators of {found.ranks} of {found.world_size} ranks, step {found.step}")
    print_diagnostics(out, found.diagnostics)
    out.print(f"run it: lumos proxy run {output}", markup=False)


@app.command(context_settings={"ignore_unknown_options": False})
def run(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder that lumos proxy generate wrote.")],
    processes: Annotated[int | None, typer.Option(metavar="N", help="Processes (default: all recorded ranks).")] = None,
    mode: Annotated[str, typer.Option(metavar="full|compute|communication", help="What to run.")] = "full",
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to run it (default: a GPU where there is one).")] = None,
    rank: Annotated[int | None, typer.Option(metavar="R", help="Which recorded rank to run (default: each process its own).")] = None,
    warmup: Annotated[int, typer.Option(metavar="N", help="Steps before the measured ones.")] = 3,
    repeat: Annotated[int, typer.Option(metavar="N", help="Steps measured; their median counts.")] = 10,
    max_memory: Annotated[float | None, typer.Option(metavar="BYTES", help="Bytes that tensors may take.")] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads of an operator on the CPU (default: as recorded).")] = None,
    profile: Annotated[str | None, typer.Option(metavar="DIR", help="Write a profile of this run, for replay and compare.")] = None,
    json: Json = False,
) -> None:
    """Run a generated benchmark and compare its step with the recorded one."""
    from lumos.proxy.facade import run as start

    result = start(
        folder,
        processes=processes,
        mode=mode,
        device=device,
        rank=rank,
        warmup=warmup,
        repeat=repeat,
        max_memory=max_memory,
        threads=threads,
        profile=profile,
    )
    if json:
        write_json(result)
        return
    _print_run(result)


def _print_run(result: dict[str, Any]) -> None:
    from lumos.reports.text.format import percent, size, table
    from lumos.units import duration

    out = console()
    processes, ranks = len(result["ranks"]), result["recorded_ranks"]
    run_by = f"{processes} of its {ranks} ranks" if processes <= ranks else f"{processes} processes for its {ranks} ranks"
    where = f"{result['device']}, torch {result['torch']}, {run_by}"
    recorded = f", {duration(result['recorded_step_ns'])} recorded" if result["recorded_step_ns"] else ""
    error = f": {percent(result['error'], signed=True)}" if result["error"] is not None else ""
    out.print(f"Step {duration(result['replayed_step_ns'])}{recorded}{error}", highlight=False)
    out.print(f"Here: {where}", highlight=False)
    if processes > ranks:
        out.print("Scaled up: groups of all ranks span all processes, each other one is repeated; parts keep their size.", highlight=False)
    shares = ", ".join(f"{percent(v)} {k.replace('_', ' ')}" for k, v in result["coverage"].items() if v is not None)
    memory = result["memory"]
    less = " Tensors share storage." if memory["shared"] else ""
    out.print(f"Operator time: {shares}. Memory allowed: {size(memory['limit_bytes'])}.{less}", highlight=False)
    _print_usage(result)
    rows = [
        [_printable(row["name"]), row["outcome"].replace("_", " "), f"{row['count']:,}", _printable(row["reason"])]
        for row in result["not_real"]
    ]
    if rows:
        table(out, ("not run for real", "outcome", "count", "why"), rows, whole=True)


def _print_usage(result: dict[str, Any]) -> None:
    """Memory and utilisation on one line, without what is not known."""
    from lumos.reports.text.format import percent, size

    peak, share = result["peak_memory_bytes"], result["utilization"]
    parts = [f"Peak memory: {size(peak)}."] if peak is not None else []
    parts += [f"In operators: {percent(share)} of the step."] if share is not None else []
    console().print(" ".join(parts), highlight=False)


def _printable(text: str) -> str:
    """Recorded text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)
