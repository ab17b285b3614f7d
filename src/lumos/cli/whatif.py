"""`lumos whatif`: change the measured job and predict."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.changes.settings import in_words, parse_settings
from lumos.cli.output import Chakra, Force, Json, Kineto, Paths, Perfetto, Repair, console, write_json
from lumos.cli.progress import progress

SET_HELP = f"Change the plan, the model or a size; repeatable. KEY: {in_words()}."


def command(
    paths: Paths,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP),
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option(metavar="GLOB=F", help="Multiply the time of tasks whose name matches; repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Leave tasks out, with their launches; repeatable.")] = None,
    fuse: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Make one kernel of neighbouring kernels; repeatable.")] = None,
    rank_slowdown: Annotated[list[str] | None, typer.Option(metavar="RANK=F", help="Multiply all work of a rank; repeatable.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Run it on this cluster instead.")] = None,
    network: Annotated[list[str] | None, typer.Option(metavar="KEY=xF", help="Change the network: bandwidth=x2,latency=x0.5.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V,V", help="Evaluate every combination of settings or 'scale:GLOB'; repeatable.")
    ] = None,
    base_cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Where the job was recorded, if the trace does not say.")
    ] = None,
    host_factor: Annotated[
        float | None, typer.Option(metavar="F", help="How much longer the CPU's work takes on --cluster.", show_default=False)
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Compare what a loop of the step takes, also where the trace has one step only.")
    ] = False,
    perfetto: Perfetto = None,
    chakra: Chakra = None,
    kineto: Kineto = None,
    force: Force = False,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Change the measured job and predict its step.

    GLOB matches names of kernels, collectives, operators and runtime calls; cpu:GLOB and device:GLOB only those of the CPU or the device;
    operator:GLOB matches operators with everything that they do and launch.
    """
    from lumos.analyze.trust import trust
    from lumos.changes.changes import Changes
    from lumos.changes.durations import Durations
    from lumos.changes.grid import evaluate, parse_grid
    from lumos.changes.whatif import answer_changes
    from lumos.errors import UsageError
    from lumos.graph.build import build
    from lumos.output_files import check_places
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    durations = Durations.parse(scale or (), drop or (), fuse or (), rank_slowdown or ())
    changes = Changes(parse_settings(settings or ()), durations, base_cluster, cluster, tuple(network or ()), repeat, host_factor)
    asked = parse_grid(grid or ())
    files = {"perfetto": perfetto, "chakra": chakra, "kineto": kineto}
    if asked and any(files.values()):
        raise UsageError("--grid has many answers, and --perfetto, --chakra and --kineto write one job; leave out --grid")
    keep_inputs(paths, *files.values())
    check_places(perfetto)
    job = read(*paths, repair=repair, progress=progress("reading", "bytes"))
    graph = build(job)
    if asked:
        grounds = trust(graph)
        cells = evaluate(job, graph, changes, asked, trust=grounds, force=force)
        if json:
            write_json({"grid": [cell._asdict() for cell in cells], "trust": grounds})
            return
        from lumos.reports.text.whatif import print_grid

        print_grid(console(), cells, grounds)
        return
    found = answer_changes(job, graph, changes, force=force)
    if any(files.values()):
        from lumos.reports.export.job import export

        export(found, **files)
    if json:
        from lumos.changes.answer import contracted

        write_json(contracted(found))
        return
    from lumos.reports.text.whatif import print_answer

    print_answer(console(), found)
