"""`lumos diagnose`: what to fix first, and what it is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Engine, Force, Json, Paths, RayAddress, Repair, console, write_json
from lumos.cli.progress import progress


def command(
    paths: Paths,
    before: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The command that made the recording, run without devices, to name its lines."),
    ] = None,
    force: Force = False,
    repair: Repair = False,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    json: Json = False,
) -> None:
    """Show what to fix first: what makes the step longer than it needs to be, where, what it is worth, and what to do about it.

    Each finding is priced by simulating the job without it. The same time may be in several findings, so their worths do not
    add up.
    """
    from lumos.findings.diagnose import diagnose_paths
    from lumos.graph.build import build
    from lumos.scripted.facade import task_origins
    from lumos.trace import read

    job = read(*paths, repair=repair, progress=progress("reading", "bytes"), engine=engine, ray_address=ray_address)
    graph = build(job)
    origin = task_origins(job, graph, before, force=force) if before is not None else None
    result = diagnose_paths(job, paths, graph=graph, force=force, origin=origin)
    if json:
        write_json(result)
        return
    from lumos.reports.text.diagnose import print_diagnosis

    print_diagnosis(console(), result)
