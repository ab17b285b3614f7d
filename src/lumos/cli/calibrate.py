"""`lumos calibrate`: fit the cost models to your own measurements, or to a trace."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Json, Paths, console, write_json


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
    from rich.table import Table

    if found.classes:
        table = Table("model", "class", "operators", "shapes", "time ms", "measured / modelled", "80 % within", box=None)
        for r in found.classes:
            times = f"{r.measured_ns / 1e6:.2f}", f"{r.ratio:.2f}", f"{r.low:.2f} to {r.high:.2f}"
            table.add_row(r.model, r.variant, str(r.operators), str(r.shapes), *times)
    else:
        table = Table("model", "accelerator", "set", "rows", "numbers", "median error", "p90 error", box=None)
        for fitted in found.sets:
            c = fitted.coefficients
            errors = ("-" if e is None else f"{e:.1%}" for e in (c.median_error, c.p90_error))
            table.add_row(fitted.model, fitted.accelerator, fitted.variant, str(c.rows), str(c.count), *errors)
    console().print(table)
    for note in found.diagnostics:
        print(f"note: {note.message}")
