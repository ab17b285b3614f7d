"""`lumos calibrate`: fit the cost models to your own measurements, or to a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.cli.output import Json, Paths, console, write_json

if TYPE_CHECKING:
    from lumos.cost.coefficients import Book
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
    from lumos.errors import UsageError

    tables = [p.endswith(".csv") for p in paths]
    if any(tables) and not all(tables):
        raise UsageError("calibrate takes CSV tables or traces, not both at once")
    if all(tables):
        book, notes = _from_tables(paths)
        ratios: tuple[ClassRatio, ...] = ()
    else:
        book, ratios = _from_traces(paths, on)
        notes = ()
    if output is not None:
        from pathlib import Path

        from lumos.cost.coefficients import write

        write(book, Path(output), f"Written by lumos calibrate from {', '.join(Path(p).name for p in paths)}")
    _print(book, ratios, notes, json)


def _from_tables(paths: list[str]) -> tuple[Book, tuple[Any, ...]]:
    from pathlib import Path

    from lumos.cost.calibrate import fit_tables, read_table

    tables = [read_table(Path(p)) for p in paths]
    return fit_tables(tables), tuple(d for t in tables for d in t.diagnostics)


def _from_traces(paths: list[str], on: str | None) -> tuple[Book, tuple[ClassRatio, ...]]:
    """The book of the first rank, and its ratios: ranks of one job run the same kernels."""
    from lumos.cost.cluster import load_cluster
    from lumos.cost.from_trace import accelerator_of, calibrated, class_ratios
    from lumos.trace import read

    trace = read(*paths).traces[0]
    accelerator = load_cluster(on).accelerator if on else accelerator_of(trace)
    return calibrated(trace, accelerator), class_ratios(trace, accelerator)


def _print(book: Book, ratios: tuple[ClassRatio, ...], notes: tuple[Any, ...], json: bool) -> None:
    import msgspec

    sets = [(model, name, variant, c) for model, of in book.items() for name, by in of.items() for variant, c in by.items()]
    if json:
        fitted = [{"model": m, "accelerator": a, "variant": v, **msgspec.to_builtins(c)} for m, a, v, c in sets]
        classes = [r._asdict() for r in ratios]
        write_json({"coefficients": fitted, "classes": classes, "diagnostics": [d._asdict() for d in notes]})
        return
    from rich.table import Table

    if ratios:
        table = Table("model", "class", "operators", "shapes", "time ms", "measured / modelled", "80 % within", box=None)
        for r in ratios:
            times = f"{r.measured_ns / 1e6:.2f}", f"{r.ratio:.2f}", f"{r.low:.2f} to {r.high:.2f}"
            table.add_row(r.model, r.variant, str(r.operators), str(r.shapes), *times)
    else:
        table = Table("model", "accelerator", "set", "rows", "numbers", "median error", "p90 error", box=None)
        for model, name, variant, c in sets:
            errors = ("-" if e is None else f"{e:.1%}" for e in (c.median_error, c.p90_error))
            table.add_row(model, name, variant, str(c.rows), str(c.count), *errors)
    console().print(table)
    for note in notes:
        print(f"note: {note.message}")
