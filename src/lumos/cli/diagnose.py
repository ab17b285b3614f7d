"""`lumos diagnose`: what to fix first, and what it is worth."""

from __future__ import annotations

from lumos.cli.output import Engine, Force, Json, Paths, RayAddress, Repair, console, write_json
from lumos.cli.progress import progress


def command(
    paths: Paths,
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
    from lumos.trace import read

    job = read(*paths, repair=repair, progress=progress("reading", "bytes"), engine=engine, ray_address=ray_address)
    result = diagnose_paths(job, paths, force=force)
    if json:
        write_json(result)
        return
    from lumos.reports.text.diagnose import print_diagnosis

    print_diagnosis(console(), result)
