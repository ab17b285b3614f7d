"""`lumos whatif`: change the measured job and predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lumos.changes.settings import in_words, parse_base, parse_settings
from lumos.cli.output import Chakra, Force, Json, Kineto, Paths, Perfetto, Repair, console, write_json
from lumos.cli.progress import progress

if TYPE_CHECKING:
    from lumos.changes.answer import Answer

SET_HELP = f"Change the plan, the model or a size; repeatable. KEY: {in_words()}."


def command(
    paths: Paths,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Say what was recorded, where Lumos asks or cannot see it; repeatable."),
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
    before: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The command that made the recording, for --after; 'recorded' runs the one that it names."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The changed command: both are run without devices, and the recording prices the change."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Ranks of --after, where its launcher does not say.", show_default=False)
    ] = None,
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
    if before is not None or after is not None or ranks is not None:
        given = {
            "--set": settings, "--scale": scale, "--drop": drop, "--fuse": fuse, "--rank-slowdown": rank_slowdown, "--network": network,
            "--repeat": repeat, "--host-factor": host_factor, "--base": base,
        }  # fmt: skip
        beside = [name for name, value in given.items() if value]
        files = {"perfetto": perfetto, "chakra": chakra, "kineto": kineto}
        _by_script(paths, (before, after), ranks, (cluster, base_cluster), grid, beside, files, force, repair, json)
        return
    from lumos.analyze.trust import trust
    from lumos.changes.changes import Changes
    from lumos.changes.durations import Durations
    from lumos.changes.grid import evaluate, parse_grid
    from lumos.changes.whatif import answer_changes
    from lumos.errors import QuestionError, UsageError
    from lumos.graph.build import build
    from lumos.output_files import check_places
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    durations = Durations.parse(scale or (), drop or (), fuse or (), rank_slowdown or ())
    wanted, recorded, links = parse_settings(settings or ()), parse_base(base or ()), tuple(network or ())
    changes = Changes(wanted, durations, base_cluster, cluster, links, repeat, host_factor, recorded)
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
    try:
        found = answer_changes(job, graph, changes, force=force)
    except QuestionError as question:
        if json:
            write_json({"question": str(question), "key": question.key, "candidates": [each._asdict() for each in question.candidates]})
        raise
    if any(files.values()):
        from lumos.reports.export.job import export

        export(found, **files)
    _write(found, json)


def _by_script(
    paths: list[str],
    commands: tuple[str | None, str | None],
    ranks: int | None,
    clusters: tuple[str | None, str | None],
    grid: list[str] | None,
    beside: list[str],
    files: dict[str, str | None],
    force: bool,
    repair: bool,
    json: bool,
) -> None:
    """The answer for a changed script. beside: options of changes that it cannot be asked together with."""
    from lumos.errors import UsageError
    from lumos.scripted.answer import Asked
    from lumos.scripted.facade import by_script, by_scripts
    from lumos.scripted.templates import parse_values
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    if beside:
        raise UsageError(f"{beside[0]}: a changed script is the whole change; leave out {beside[0]}, or write it into --after")
    if grid and any(files.values()):
        raise UsageError("--grid has many answers, and --perfetto, --chakra and --kineto write one job; leave out --grid")
    if commands == (None, None):
        raise UsageError("--ranks says how many ranks --after has: give --before and --after too")
    keep_inputs(paths, *files.values())
    job = read(*paths, repair=repair, progress=progress("reading", "bytes"))
    asked = Asked(ranks, *clusters, force=force)
    if grid:
        cells = by_scripts(job, None, *commands, parse_values(grid), asked)
        if json:
            write_json({"grid": [cell._asdict() for cell in cells]})
            return
        from lumos.reports.text.whatif import print_script_grid

        print_script_grid(console(), cells)
        return
    found = by_script(job, None, *commands, asked)
    if any(files.values()):
        from lumos.reports.export.job import export

        export(found, **files)
    _write(found, json)


def _write(found: Answer, json: bool) -> None:
    if json:
        from lumos.changes.answer import contracted

        write_json(contracted(found))
        return
    from lumos.reports.text.whatif import print_answer

    print_answer(console(), found)
