"""`lumos report`: one HTML file to look at, offline."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from lumos.changes.words import ChangeWords, SettingWords
from lumos.cli.options import Assigned, ReadWords, read_job, reading, takes
from lumos.cli.output import Clock, Force, Json, Paths, console, plain, write_json


@takes(ChangeWords, texts=SettingWords, shown="VALUE")
@takes(ReadWords, last=True)
def command(
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
    import shlex

    from lumos.changes.changes import Changes
    from lumos.output_files import check_places
    from lumos.reports.facade import write
    from lumos.reports.page.document import ReportedJob
    from lumos.trace.source import keep_inputs

    how, changes = reading(words), Changes.parse(assigned or (), **words)
    keep_inputs(paths, output)
    check_places(output)
    clock = Clock()
    recording = ReportedJob.of(read_job(*paths, **how), force=force)
    found = write(recording, output, ["lumos", *map(shlex.quote, sys.argv[1:])], step, changes)
    if json:
        write_json({**plain(found), "seconds_s": clock.lap()})
        return
    from lumos.reports.text.format import print_trust, sentence

    out = console()
    sentence(out, found.headline)
    print_trust(out, found.trust)
    out.print(f"{output}: {found.size_bytes / 1e6:.1f} MB, opens in any browser, offline", markup=False)
