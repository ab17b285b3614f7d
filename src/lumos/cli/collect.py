"""`lumos collect -- COMMAND`: profile a training command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lumos.cli import new_app
from lumos.cli.output import Json, write_json

app = new_app()


@app.command(context_settings={"allow_interspersed_args": False})
def collect(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the training.", show_default=False)
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where to write the traces.")] = "lumos-traces",
    steps: Annotated[int, typer.Option(metavar="N", help="Steps to record.")] = 3,
    warmup: Annotated[int, typer.Option(metavar="N", help="Steps before the recorded ones, in which the profiler warms up.")] = 2,
    wait: Annotated[int, typer.Option(metavar="N", help="Steps before those, without the profiler.")] = 5,
    memory: Annotated[bool, typer.Option("--memory", help="Also record every allocation.")] = False,
    execution_trace: Annotated[bool, typer.Option("--execution-trace", help="Also write the execution trace of one step.")] = False,
    align: Annotated[
        bool, typer.Option(help="Wait for all ranks before recording; turn off where only some ranks run an optimizer.")
    ] = True,
    json: Json = False,
) -> None:
    """Profile a training command without changing its script: every call of Optimizer.step ends a step."""
    from lumos.collect.command import run

    status, written = run(
        command, output, steps=steps, warmup=warmup, wait=wait, memory=memory, execution_trace=execution_trace, align=align
    )
    if json:
        write_json({"status": status, "files": written})
    if status:
        print(f"lumos: {' '.join(command)}: ended with status {status}; {len(written)} recordings in {output}", file=sys.stderr)
        raise typer.Exit(status)
