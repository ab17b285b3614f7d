"""`lumos inspect`: what is in the traces, what is missing, and what that costs."""

from __future__ import annotations

from lumos.cli.output import Clock, Json, Paths, Repair, console, progress, write_json


def command(paths: Paths, repair: Repair = False, json: Json = False) -> None:
    """What is in the traces, what is missing, and what that costs."""
    from lumos.analyze.contents import contents
    from lumos.analyze.interference import interference
    from lumos.trace import read

    clock = Clock()
    job = read(*paths, repair=repair, progress=progress("reading"))
    read_s = clock.lap()
    files = tuple(contents(trace) for trace in job.traces)
    diagnostics = (*job.diagnostics, *(d for trace in job.traces for d in trace.diagnostics))
    slowed = interference(job.traces)
    if json:
        answer = {"ranks": len(files), "files": files, "groups": job.groups, "interference": slowed, "diagnostics": diagnostics}
        write_json({**answer, "read_s": read_s})
        return
    from lumos.report.inspect_text import print_contents

    print_contents(console(), files, job.groups, slowed, diagnostics, read_s)
