"""`lumos validate`: predict every row of tables of published runs, and score."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Clock, Json, console, progress, write_json


def command(
    tables: Annotated[list[str], typer.Argument(metavar="FILE.csv...", help="Tables of measured runs.", show_default=False)],
    plot: Annotated[str | None, typer.Option(metavar="FILE.html", help="Draw measured against predicted.")] = None,
    worst: Annotated[int, typer.Option(help="Worst rows to explain in text.", min=0)] = 10,
    json: Json = False,
) -> None:
    """Predict every row of tables of measured runs, and score the predictions."""
    from lumos.predict.facade import validate
    from lumos.predict.validate import explained

    clock = Clock()
    found = validate(*tables, progress=progress("predicting"))
    result = {**found.to_dict(), "seconds_s": clock.lap()}
    if plot is not None:
        from lumos.report.plots.validate import write_plot

        write_plot(plot, found.rows)
    if json:
        write_json(result)
        return
    from lumos.report.text.validate import print_validation

    print_validation(console(), found.rows, result, explained(found.rows, worst))
