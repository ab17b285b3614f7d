"""`lumos compare`: two jobs, or two steps, and what changed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.choices import as_number
from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import Json, console, write_json
from lumos.errors import UsageError


@takes(ReadWords, last=True)
def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="A [B]", help="Two jobs, each a file or a folder; or one, with two steps of it.", show_default=False),
    ],
    step: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Compare only this step; given twice, the first step of A with the second of B (or of A)."),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Exit with 1 where B is slower by more (3%), beyond the noise of both.", show_default=False),
    ] = None,
    json: Json = False,
    **how: Any,
) -> None:
    """Show what changed from A to B: the step, where its time goes, and the operators, kernels and collectives that appeared,
    vanished or changed, by what they cost."""
    steps = step or []
    if len(paths) > 2 or len(steps) > 2 or (len(paths) == 1 and len(steps) != 2):
        raise UsageError("compare takes two jobs (A B), or one job and two of its steps (A --step NAME --step NAME)")
    from lumos.analyze.facade import compare
    from lumos.analyze.regression import Verdict

    allowed = None if fail_above is None else _share(fail_above)

    jobs = [read_job(path, **how) for path in paths]
    result = compare(jobs[0], jobs[-1], step=(steps[0], steps[-1]) if steps else None, fail_above=allowed)
    if json:
        write_json(result)
    else:
        from lumos.reports.text.compare import print_comparison

        print_comparison(console(), (paths[0], paths[-1]), result)
    if result.regression is not None and result.regression.verdict is Verdict.SLOWER:
        raise typer.Exit(1)


def _share(text: str) -> float:
    """A share as it is written: 3%, or 0.03."""
    number = as_number(text.strip().removesuffix("%"), "--fail-above")
    if not text.strip().endswith("%") and number >= 1:
        raise UsageError(f"--fail-above {text} would allow {number:.0%}; write {text}% for percent")
    return number / 100 if text.strip().endswith("%") else number
