"""`lumos validate`: predict every row of tables of published runs, and score."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Clock, Json, console, write_json
from lumos.cli.progress import progress


def command(
    tables: Annotated[list[str], typer.Argument(metavar="FILE.csv...", help="Tables of measured runs.", show_default=False)],
    plot: Annotated[str | None, typer.Option(metavar="FILE.html", help="Draw measured against predicted.")] = None,
    worst: Annotated[int, typer.Option(help="Worst rows to explain in text.", min=0)] = 10,
    json: Json = False,
) -> None:
    """Predict every row of tables of measured runs, and score the predictions.

    The exit status is 1 where no row could be scored.
    """
    from lumos.errors import LumosError
    from lumos.output_files import check_outputs, check_places
    from lumos.prediction.validate import explained, validate

    check_outputs([plot], tables)
    check_places(plot)
    clock = Clock()
    found = validate(*tables, progress=progress("predicting", "rows"))
    result = {**found.to_dict(), "seconds_s": clock.lap()}
    if plot is not None:
        from lumos.reports.plots.validate import write_plot

        write_plot(plot, found.rows)
    if json:
        write_json(result)
    else:
        from lumos.reports.text.validate import print_validation

        print_validation(console(), found.rows, result, explained(found.rows, worst))
    if not result["scored"]:
        raise LumosError(f"{', '.join(tables)}: no row could be scored; each says above why it was skipped")
