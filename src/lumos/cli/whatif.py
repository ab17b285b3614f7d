"""`lumos whatif`: change the measured job and predict; and `lumos report`: one HTML file of it, to look at offline."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.changes.settings import in_words
from lumos.changes.words import ChangeWords, SettingWords
from lumos.cli.options import Assigned, ReadWords, read_job, reading, takes
from lumos.cli.output import Chakra, Clock, Force, Json, Kineto, Paths, Perfetto, console, plain, write_json
from lumos.errors import UsageError

if TYPE_CHECKING:
    from lumos.changes.answer import Answer

SET_HELP = f"Change the plan, the model or a size; repeatable. KEY: {in_words()}."


@takes(ChangeWords, texts=SettingWords, shown="VALUE")
@takes(ReadWords, last=True)
def whatif(
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
    from lumos.output_files import check_places
    from lumos.trace.source import keep_inputs

    keep_inputs(paths, *files.values())
    check_places(perfetto, folders=(chakra, kineto))
    if before is not None or after is not None or ranks is not None:
        from lumos.reports.text.whatif import print_script_grid
        from lumos.scripted.facade import whatif as by_script
        from lumos.scripted.templates import parse_values

        words |= {"set": assigned} if assigned else {}
        values: Any = parse_values(grid) if grid else None
        words |= {key: value for key, value in how.items() if key != "repair"}
        scripted: Any = by_script(read_job(*paths, **how), grid=values, before=before, after=after, ranks=ranks, force=force, **words)
        if not grid:
            _write(scripted, files, json)
        elif json:
            write_json({"grid": [cell._asdict() for cell in scripted]})
        else:
            print_script_grid(console(), scripted)
        return
    from lumos.analyze.trust import trust
    from lumos.changes.changes import Changes
    from lumos.changes.grid import evaluate, parse_grid
    from lumos.changes.whatif import answer_changes
    from lumos.errors import QuestionError
    from lumos.graph.build import build
    from lumos.reports.text.whatif import print_grid

    changes, asked = Changes.parse(assigned or (), **words), parse_grid(grid or ())
    job = read_job(*paths, **how)
    graph = build(job)
    if asked:
        grounds = trust(graph)
        cells = evaluate(job, graph, changes, asked, trust=grounds, force=force)
        if json:
            write_json({"grid": [cell._asdict() for cell in cells], "trust": grounds})
        else:
            print_grid(console(), cells, grounds)
        return
    try:
        answer = answer_changes(job, graph, changes, force=force)
    except QuestionError as question:
        if json:
            write_json({"question": str(question), "key": question.key, "candidates": [c._asdict() for c in question.candidates]})
        raise
    _write(answer, files, json)


def _write(answer: Answer, files: dict[str, str | None], json: bool) -> None:
    """Write the changed job where files are named, and the answer."""
    from lumos.changes.answer import contracted
    from lumos.reports.text.whatif import print_answer

    if any(files.values()):
        from lumos.reports.export.job import export

        export(answer, **files)
    if json:
        write_json(contracted(answer))
    else:
        print_answer(console(), answer)


@takes(ChangeWords, texts=SettingWords, shown="VALUE")
@takes(ReadWords, last=True)
def report(
    paths: Paths,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE.html", help="Where to write the report.")],
    step: Annotated[
        str | None, typer.Option(metavar="NAME", help="The step that the timeline shows: its name, or the number after its #.")
    ] = None,
    assigned: Assigned = None,
    force: Force = False,
    json: Json = False,
    **words: Any,
) -> None:
    """Write one HTML file that shows where the job's time goes: steps, timeline, critical path, collectives, stragglers.

    With changes, as for `lumos whatif`, it also shows the changed job next to the recorded one.
    """
    from lumos.changes.changes import Changes
    from lumos.output_files import check_places
    from lumos.reports.facade import write
    from lumos.reports.page.document import ReportedJob
    from lumos.reports.text.format import print_trust, sentence
    from lumos.trace.source import keep_inputs

    how, changes = reading(words), Changes.parse(assigned or (), **words)
    keep_inputs(paths, output)
    check_places(output)
    clock = Clock()
    recording = ReportedJob.of(read_job(*paths, **how), force=force)
    written = write(recording, output, ["lumos", *map(shlex.quote, sys.argv[1:])], step, changes)
    if json:
        write_json({**plain(written), "seconds_s": clock.lap()})
        return
    out = console()
    sentence(out, written.headline)
    print_trust(out, written.trust)
    out.print(f"{output}: {written.size_bytes / 1e6:.1f} MB, opens in any browser, offline", markup=False)
