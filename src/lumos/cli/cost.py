"""`lumos cost gemm|attention|collective`: what one piece of work takes on an accelerator or cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lumos.cost.estimate import Estimate

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)

On = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="Accelerator or cluster (see lumos clusters), or a .toml file.")]
Dtype = Annotated[str, typer.Option(help="fp64, fp32, tf32, bf16, fp16, fp8 or int8.")]
Coefficients = Annotated[str | None, typer.Option("--coefficients", metavar="FILE", help="Your own fit, from lumos calibrate.")]
Plot = Annotated[str | None, typer.Option("--plot", metavar="FILE.html", help="Also draw the curve around the size asked for.")]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")]


@app.callback()
def _root() -> None:
    """What one piece of work takes: time, interval, what bounds it, fraction of peak."""


@app.command("gemm")
def gemm(
    on: On,
    m: Annotated[int, typer.Option("--m", help="Rows of A and C.")],
    n: Annotated[int, typer.Option("--n", help="Columns of B and C.")],
    k: Annotated[int, typer.Option("--k", help="Columns of A, rows of B.")],
    dtype: Dtype = "bf16",
    batch: Annotated[int, typer.Option(help="Equal multiplications in one kernel.")] = 1,
    coefficients: Coefficients = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """A matrix multiplication C[m, n] = A[m, k] B[k, n]."""
    from lumos.cost.cluster import load_cluster
    from lumos.cost.gemm import gemm as cost

    accelerator = load_cluster(on).accelerator
    book = _book(coefficients)
    _answer(cost(m, n, k, accelerator, dtype, batch=batch, book=book), json)
    if plot is not None:
        from lumos.report.plots import cost_curve, powers_around

        sizes = powers_around(m)
        title = f"GEMM n={n} k={k} {dtype} on {accelerator.name}"
        cost_curve(plot, sizes, cost(sizes, n, k, accelerator, dtype, batch=batch, book=book), title, "m")


def _book(path: str | None) -> Any:
    """The user's coefficients over the shipped ones; None for the shipped ones."""
    if path is None:
        return None
    from pathlib import Path

    from lumos.cost.coefficients import overlay, read, shipped

    return overlay(shipped(), read(Path(path)))


def _answer(estimate: Estimate, json: bool) -> None:
    """Print one estimate."""
    facts = {
        "time_s": estimate.time.item() / 1e9,
        "low_s": estimate.low.item() / 1e9,
        "high_s": estimate.high.item() / 1e9,
        "bound_by": estimate.bounds(),
        "fraction_of_peak": estimate.fraction_of_peak.item(),
        "source": estimate.source,
        "extrapolated": bool(estimate.extrapolated),
        "diagnostics": [d._asdict() for d in estimate.diagnostics],
    }
    if json:
        from lumos.cli.output import write_json

        write_json(facts)
        return
    scale, unit = (1e3, "ms") if facts["time_s"] >= 1e-3 else (1e6, "µs")
    time, low, high = (facts[key] * scale for key in ("time_s", "low_s", "high_s"))
    print(f"{time:.4g} {unit}  (80 % interval {low:.4g} to {high:.4g} {unit})")
    print(f"bound by {facts['bound_by']}, {facts['fraction_of_peak']:.1%} of peak, {facts['source']}")
    for diagnostic in estimate.diagnostics:
        print(f"note: {diagnostic.message}")
