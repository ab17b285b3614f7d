"""`lumos whatif`: change the measured job and predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.changes.settings import in_words
from lumos.changes.words import ChangeWords, SettingWords
from lumos.cli.options import ReadWords, read_job, reading, takes
from lumos.cli.output import Chakra, Force, Json, Kineto, Paths, Perfetto, console, write_json
from lumos.errors import UsageError

if TYPE_CHECKING:
    from lumos.changes.answer import Answer

SET_HELP = f"Change the plan, the model or a size; repeatable. KEY: {in_words()}."


@takes(ChangeWords, texts=SettingWords, shown="VALUE")
@takes(ReadWords, last=True)
def command(
    paths: Paths,
    assigned: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=V,V", help="Evaluate every combination of settings or 'scale:GLOB'; repeatable.")
    ] = None,
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
    json: Json = False,
    **words: Any,
) -> None:
    """Change the measured job and predict its step.

    GLOB matches names of kernels, collectives, operators and runtime calls; cpu:GLOB and device:GLOB only those of the CPU or the device;
    operator:GLOB matches operators with everything that they do and launch. rankN: before them keeps to that rank. F = peers gives work the
    time of equal work on the other ranks, F = steps that in the other steps.
    """
    how, files = reading(words), {"perfetto": perfetto, "chakra": chakra, "kineto": kineto}
    if grid and any(files.values()):
        raise UsageError("--grid has many answers, and --perfetto, --chakra and --kineto write one job; leave out --grid")
    if before is not None or after is not None or ranks is not None:
        beside = {**({"set": assigned} if assigned else {}), **words}
        _by_script(paths, (before, after), ranks, beside, grid, files, how, force, json)
        return
    from lumos.analyze.trust import trust
    from lumos.changes.changes import Changes
    from lumos.changes.grid import evaluate, parse_grid
    from lumos.changes.whatif import answer_changes
    from lumos.errors import QuestionError
    from lumos.graph.build import build
    from lumos.output_files import check_places
    from lumos.trace.source import keep_inputs

    changes, asked = Changes.parse(assigned or (), **words), parse_grid(grid or ())
    keep_inputs(paths, *files.values())
    check_places(perfetto)
    job = read_job(*paths, **how)
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
    changes: dict[str, Any],
    grid: list[str] | None,
    files: dict[str, str | None],
    how: ReadWords,
    force: bool,
    json: bool,
) -> None:
    """The answer for a changed script; the only changes that go with it are of the cluster."""
    from lumos.scripted.answer import Asked
    from lumos.scripted.facade import by_script, by_scripts
    from lumos.scripted.templates import parse_values
    from lumos.trace.source import keep_inputs

    if beside := [f"--{key.replace('_', '-')}" for key in changes if key not in ("cluster", "base_cluster")]:
        raise UsageError(f"{beside[0]}: a changed script is the whole change; leave out {beside[0]}, or write it into --after")
    if commands == (None, None):
        raise UsageError("--ranks says how many ranks --after has: give --before and --after too")
    keep_inputs(paths, *files.values())
    job = read_job(*paths, **how)
    asked = Asked(ranks, changes.get("cluster"), changes.get("base_cluster"), force=force)
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
