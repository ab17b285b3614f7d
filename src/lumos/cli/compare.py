"""`lumos compare`: two jobs, or two steps, and what changed."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.choices import check_step
from lumos.cli.output import Json, Repair, console, progress, write_json
from lumos.errors import UsageError


def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="A [B]", help="Two jobs, each a file or a folder; or one, with two steps of it.", show_default=False),
    ],
    step: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Compare this step alone; given twice, this one of A and that one of B (or of A)."),
    ] = None,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """What changed from A to B: the step, where its time goes, and the operators, kernels and collectives that appeared,
    vanished or changed, by what they cost."""
    steps = step or []
    if len(paths) > 2 or len(steps) > 2 or (len(paths) == 1 and len(steps) != 2):
        raise UsageError("compare takes two jobs (A B), or one job and two of its steps (A --step NAME --step NAME)")
    from lumos.analyze.compare import compare
    from lumos.analyze.steps import step_names
    from lumos.graph.build import build
    from lumos.trace import read

    jobs = [read(path, repair=repair, progress=progress("reading")) for path in paths]
    graphs = [build(job) for job in jobs]
    before, after = graphs[0], graphs[-1]
    names: list[str | None] = [check_step(word, step_names(graph)) for word, graph in zip(_both(steps), (before, after), strict=False)]
    result = compare((jobs[0], before), (jobs[-1], after), *names)
    if json:
        write_json(result)
        return
    from lumos.report.text.compare import print_comparison

    print_comparison(console(), (paths[0], paths[-1]), result)


def _both(steps: list[str]) -> list[str]:
    """The step of A and the step of B; empty for all."""
    return [steps[0], steps[-1]] if steps else []
