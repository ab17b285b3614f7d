"""`lumos report`: one HTML file to look at, offline."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lumos.cli.output import Clock, Force, Json, Paths, Repair, console, plain, write_json
from lumos.cli.progress import progress


def command(
    paths: Paths,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE.html", help="Where to write the report.")],
    step: Annotated[
        str | None, typer.Option(metavar="NAME", help="The step that the timeline shows: its name, or the number after its #.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="What if: change the plan, the model or a size; repeatable.")
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option(metavar="GLOB=F", help="What if: multiply the time of tasks whose name matches; repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="What if: leave tasks out; repeatable.")] = None,
    fuse: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="What if: make neighbouring kernels one; repeatable.")] = None,
    rank_slowdown: Annotated[
        list[str] | None, typer.Option(metavar="RANK=F", help="What if: multiply all work of a rank; repeatable.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="What if: run it on this cluster instead.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(metavar="KEY=xF", help="What if: change the network: bandwidth=x2,latency=x0.5.")
    ] = None,
    base_cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="What if: where the job was recorded, if the trace does not say.")
    ] = None,
    force: Force = False,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Write one HTML file that shows where the job's time goes: steps, timeline, critical path, collectives, stragglers.

    With changes, as for `lumos whatif`, it also shows the changed job next to the recorded one.
    """
    import shlex

    from lumos.changes.changes import Changes
    from lumos.changes.durations import Durations
    from lumos.changes.settings import parse_settings
    from lumos.output_files import check_places
    from lumos.reports.facade import write
    from lumos.reports.page.document import ReportedJob
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    durations = Durations.parse(scale or (), drop or (), fuse or (), rank_slowdown or ())
    changes = Changes(parse_settings(settings or ()), durations, base_cluster, cluster, tuple(network or ()))
    keep_inputs(paths, output)
    check_places(output)
    clock = Clock()
    recording = ReportedJob.of(read(*paths, repair=repair, progress=progress("reading", "bytes")), force=force)
    found = write(recording, output, ["lumos", *map(shlex.quote, sys.argv[1:])], step, changes)
    if json:
        write_json({**plain(found), "seconds_s": clock.lap()})
        return
    from lumos.reports.text.format import print_trust, sentence

    out = console()
    sentence(out, found.headline)
    print_trust(out, found.trust)
    out.print(f"{output}: {found.size_bytes / 1e6:.1f} MB, opens in any browser, offline", markup=False)
