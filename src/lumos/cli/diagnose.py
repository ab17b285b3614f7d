"""`lumos diagnose`: what to fix first, and what it is worth."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import Force, Json, Paths, console, write_json


@takes(ReadWords, last=True)
def command(
    paths: Paths,
    before: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The command that made the recording, run without devices, to name its lines."),
    ] = None,
    force: Force = False,
    json: Json = False,
    **how: Any,
) -> None:
    """Show what to fix first: what makes the step longer than it needs to be, where, what it is worth, and what to do about it.

    Each finding is a what-if, and its worth is what the command that it prints answers. The same time may be in several findings, so their
    worths do not add up.
    """
    from lumos.findings.diagnose import diagnose_paths
    from lumos.graph.build import build
    from lumos.scripted.facade import task_origins

    job = read_job(*paths, **how)
    graph = build(job)
    origin = task_origins(job, graph, before, force=force) if before is not None else None
    result = diagnose_paths(job, paths, graph=graph, force=force, origin=origin)
    if json:
        write_json(result)
        return
    from lumos.reports.text.diagnose import print_diagnosis

    print_diagnosis(console(), result)
