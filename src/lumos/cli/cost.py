"""What work costs: `lumos cost gemm|attention|collective` on an accelerator or cluster; `lumos calibrate`, which fits the models of it to
measurements; `lumos models` and `lumos clusters`, which list what is known by name."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.cli import new_app
from lumos.cli.output import Json, Paths, answer, console, plain, write_json

if TYPE_CHECKING:
    from lumos.cost.estimate import Estimate

cost = new_app(no_args_is_help=True)

#: The longest side of an array; no device has memory for a longer one.
LARGEST = 1 << 40


def _whole(text: str) -> int:
    """A whole number, also written as a power: 1e9."""
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        raise typer.BadParameter(f"{text!r} is not a number of bytes, for instance 1000000 or 1e6") from None
    if not number.is_finite() or number != number.to_integral_value() or not 0 <= number < 1 << 62:
        raise typer.BadParameter(f"{text!r} is not a whole number of bytes from 0 to 2^62")
    return int(number)


def _size(name: str, help: str) -> Any:
    return typer.Option(name, min=1, max=LARGEST, help=help)


On = Annotated[
    str, typer.Option("--on", "--cluster", metavar="CLUSTER", help="Accelerator or cluster (see lumos clusters), or a .toml file.")
]
Dtype = Annotated[str, typer.Option(help="fp64, fp32, tf32, bf16, fp16, fp8, fp4 or int8.")]
Coefficients = Annotated[str | None, typer.Option("--coefficients", metavar="FILE", help="Your own coefficients, from lumos calibrate.")]


@cost.callback()
def _root() -> None:
    """How long one kernel or collective takes: the time with its interval, what bounds it, and the fraction of peak."""


@cost.command("gemm")
def gemm(
    on: On,
    m: Annotated[int, _size("--m", help="Rows of A and C.")],
    n: Annotated[int, _size("--n", help="Columns of B and C.")],
    k: Annotated[int, _size("--k", help="Columns of A, rows of B.")],
    dtype: Dtype = "bf16",
    batch: Annotated[int, _size("--batch", help="Equal multiplications in one kernel.")] = 1,
    coefficients: Coefficients = None,
    json: Json = False,
) -> None:
    """A matrix multiplication C[m, n] = A[m, k] B[k, n]."""
    from lumos.cost.cluster import load_cluster
    from lumos.cost.gemm_model import gemm as of_shape

    _answer(of_shape(m, n, k, load_cluster(on).accelerator, dtype, batch=batch, book=_book(coefficients)), json)


@cost.command("attention")
def attention(
    on: On,
    seq: Annotated[int, _size("--seq", help="Tokens of a sequence.")],
    heads: Annotated[int, _size("--heads", help="Query heads (of one rank).")],
    head_dim: Annotated[int, _size("--head-dim", help="Size of a head.")] = 128,
    batch: Annotated[int, _size("--batch", help="Sequences.")] = 1,
    kv_heads: Annotated[int | None, _size("--kv-heads", help="Heads of K and V; default: as many as query heads.")] = None,
    value_dim: Annotated[int | None, _size("--value-dim", help="Size of a head of V where it differs (MLA).")] = None,
    direction: Annotated[str, typer.Option("--direction", help="fwd, bwd or fwd+bwd.")] = "fwd",
    full: Annotated[bool, typer.Option("--full", help="Without the causal mask.")] = False,
    kernel: Annotated[str, typer.Option("--kernel", help="flash (the best known), fa2, fa3, cudnn or trtllm.")] = "flash",
    dtype: Dtype = "bf16",
    coefficients: Coefficients = None,
    json: Json = False,
) -> None:
    """Attention of one layer on one device."""
    from lumos.cost.attention_model import attention as fused
    from lumos.cost.cluster import load_cluster
    from lumos.errors import UsageError

    if kv_heads is not None and heads % kv_heads:
        raise UsageError(f"--heads {heads} must be a multiple of --kv-heads {kv_heads}: every head of K and V serves as many query heads")
    kinds: dict[str, Any] = {"kv_heads": kv_heads, "value_dim": value_dim, "causal": not full, "direction": direction, "kernel": kernel}
    accelerator = load_cluster(on).accelerator
    _answer(fused(batch, seq, heads, head_dim, accelerator, dtype, book=_book(coefficients), **kinds), json)


@cost.command("collective")
def collective(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce or send-recv.")
    ],
    cluster: On,
    ranks: Annotated[int, _size("--ranks", help="Devices in the group.")],
    size: Annotated[
        int, typer.Option("--bytes", parser=_whole, metavar="N", help="The larger of one rank's input and output, as nccl-tests counts.")
    ],
    per_node: Annotated[int | None, _size("--per-node", help="Ranks of the group in one node; default: as many as fit.")] = None,
    concurrent: Annotated[int, _size("--concurrent", help="Groups of a node that use its NICs at the same time.")] = 1,
    coefficients: Coefficients = None,
    json: Json = False,
) -> None:
    """A collective, from the arrival of the last rank to the end."""
    from lumos.cost.cluster import load_cluster
    from lumos.cost.collective_model import collective as of_size

    where, book = load_cluster(cluster), _book(coefficients)
    _answer(of_size(kind, ranks, size, where, per_node=per_node, concurrent=concurrent, book=book), json)


def _book(path: str | None) -> Any:
    """The shipped coefficients with the user's in their place; None where the user has none."""
    if path is None:
        return None
    from pathlib import Path

    from lumos.cost.coefficients import overlay, read_coefficients, shipped_coefficients

    return overlay(shipped_coefficients(), read_coefficients(Path(path)))


def _answer(estimate: Estimate, json: bool) -> None:
    """Print what work costs."""
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
        write_json(facts)
        return
    scale, unit = (1e3, "ms") if facts["time_s"] >= 1e-3 else (1e6, "µs")
    time, low, high = (facts[key] * scale for key in ("time_s", "low_s", "high_s"))
    out = console()
    out.print(f"{time:.4g} {unit}  (80 % interval {low:.4g} to {high:.4g} {unit})")
    out.print(f"bound by {facts['bound_by']}, {facts['fraction_of_peak']:.1%} of peak, {facts['source']}")
    for diagnostic in estimate.diagnostics:
        out.print(f"note: {diagnostic.message}", markup=False)


def calibrate(
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
    from lumos.cost.facade import calibrate as calibrated
    from lumos.reports.text.catalogues import print_calibration

    answer(calibrated(paths, output=output, on=on), json, print_calibration)


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model, or the path of a config.json.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """The models that Lumos knows by name, with their exact parameter counts."""
    from lumos.model import load_model, model_names
    from lumos.reports.text.catalogues import print_model, print_models

    listed = [load_model(n) for n in ((name,) if name else model_names())]
    if json:
        rows = [{**plain(m), "parameters": m.parameters, "active_parameters": m.active_parameters} for m in listed]
        write_json({"models": rows})
    elif name:
        print_model(console(), listed[0])
    else:
        print_models(console(), listed)


def clusters(
    name: Annotated[str | None, typer.Argument(help="Show this cluster (a name or a .toml file) with the source of each number.")] = None,
    json: Json = False,
) -> None:
    """List the clusters, or show one with the source of each number."""
    import msgspec

    from lumos.cost.cluster import cluster_names, load_cluster
    from lumos.reports.text.catalogues import print_cluster, print_clusters

    listed = [load_cluster(n) for n in ([name] if name else cluster_names())]
    if json:
        write_json({"clusters": [msgspec.to_builtins(c) for c in listed]})
    elif name:
        print_cluster(console(), listed[0])
    else:
        print_clusters(console(), listed)
