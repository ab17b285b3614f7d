"""`lumos inspect`: what is in the traces, what is missing, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import Clock, Json, Paths, console, next_command, write_json

if TYPE_CHECKING:
    from lumos.segment.outline import Outline
    from lumos.trace.table import Job


@takes(ReadWords, last=True)
def command(
    paths: Paths,
    blocks: Annotated[bool, typer.Option("--blocks", help="Also cut the job into layers, phases and microbatches.")] = False,
    json: Json = False,
    **how: Any,
) -> None:
    """Show what is in the traces, what is missing, and what that costs."""
    from lumos.analyze.contents import contents
    from lumos.analyze.interference import interference

    clock = Clock()
    job = read_job(*paths, **how)
    read_s = clock.lap()
    files = tuple(contents(trace) for trace in job.traces)
    diagnostics = (*job.diagnostics, *(d for trace in job.traces for d in trace.diagnostics))
    slowed = interference(job.traces)
    if json:
        cut = {"blocks": _outline(job)} if blocks else {}
        answer = {"ranks": len(files), "files": files, "groups": job.groups, "interference": slowed, **cut}
        write_json({**answer, "diagnostics": diagnostics, "read_s": read_s})
        return
    from lumos.reports.text.inspect import print_contents

    print_contents(console(), files, job.groups, slowed, diagnostics, read_s)
    if blocks:
        from lumos.reports.text.inspect import print_blocks

        print_blocks(console(), _outline(job))
    out = console()
    out.print()
    out.print(next_command("diagnose", paths), soft_wrap=True, markup=False)


def _outline(job: Job) -> Outline:
    from lumos.graph.build import build
    from lumos.segment.outline import outline
    from lumos.segment.segment import segment

    return outline(segment(build(job), job))
