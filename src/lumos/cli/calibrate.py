"""`lumos calibrate`: fit the cost models to your own measurements, or to a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lumos.cli.output import Json, Paths, console, write_json

if TYPE_CHECKING:
    from lumos.cost.facade import FittedSet
    from lumos.cost.from_trace import ClassRatio


def command(
    paths: Paths,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE.toml", help="Write the coefficients, for --coefficients.")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="CLUSTER", help="The device of a trace, where its header names none that is known.")
    ] = None,
    json: Json = False,
) -> None:
    """Fit the cost models to CSV tables of measured times (gemm, attention or collective), or to the traces of a job.

    A table's columns say its kind: gpu, dtype, m, n, k, time_us; gpu, dtype, direction, causal, batch, seq_len, heads,
    kv_heads, head_dim, time_us; gpu, n_gpus, n_nodes, collective, size_bytes, time_us. A trace gives, per class of
    operator, the ratio measured / modelled and its spread.
    """
    from lumos.cost.facade import calibrate

    found = calibrate(paths, output=output, on=on)
    if json:
        write_json(found)
        return
    from lumos.reports.text.format import table

    if found.classes:
        columns = ("model", "class", "operators", "shapes", "time ms", "measured / modelled", "80 % within")
        table(console(), columns, [_of_class(each) for each in found.classes], most=len(found.classes))
    else:
        columns = ("model", "accelerator", "set", "rows", "numbers", "median error", "p90 error")
        rows = [_of_set(each) for each in found.sets]
        table(console(), columns, rows, most=len(rows))
    for note in found.diagnostics:
        console().print(f"note: {note.message}", markup=False)


def _of_class(r: ClassRatio) -> tuple[str, ...]:
    times = f"{r.measured_ns / 1e6:.2f}", f"{r.ratio:.2f}", f"{r.low:.2f} to {r.high:.2f}"
    return (r.model, r.variant, str(r.operators), str(r.shapes), *times)


def _of_set(fitted: FittedSet) -> tuple[str, ...]:
    from lumos.reports.text.format import percent

    c = fitted.coefficients
    errors = (percent(e, decimals=1) for e in (c.median_error, c.p90_error))
    return (fitted.model, fitted.accelerator, fitted.variant, str(c.rows), str(c.count), *errors)
