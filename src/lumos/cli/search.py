"""`lumos search`: the plans of a model on a cluster, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lumos.choices import one_or_other
from lumos.cli.output import Chakra, Json, Kineto, Perfetto, Switch, console, write_json
from lumos.cli.progress import progress, stages
from lumos.errors import INTERRUPTED
from lumos.vocabulary import Precision

Values = Annotated[str | None, typer.Option(metavar="V,V|A..B", show_default=False)]


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH...]", help="What lumos predict wrote: its model, plan and cluster.", show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A known model, or the path of a config.json.", show_default=False)] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(help="A known cluster, or a .toml file; repeatable, to compare.", show_default=False),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Devices of the job.", show_default=False)] = None,
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.", show_default=False)] = None,
    tp: Values = None,
    pp: Values = None,
    vpp: Values = None,
    cp: Values = None,
    ep: Values = None,
    dp: Values = None,
    zero: Values = None,
    micro_batch: Values = None,
    recompute: Values = None,
    schedule: Values = None,
    sequence_parallel: Annotated[bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", show_default=False)] = None,
    precision: Annotated[str | None, typer.Option(help=one_or_other(Precision), show_default="bf16")] = None,
    framework: Annotated[str | None, typer.Option(help="Profile: megatron-core, nemo, fsdp, …", show_default="megatron-core")] = None,
    switch: Switch = None,
    refine: Annotated[int, typer.Option(min=1, help="Plans that are simulated in full.")] = 10,
    require: Annotated[list[str] | None, typer.Option(metavar="EXPR", help="A condition: 'memory.peak_bytes < 70e9'; repeatable.")] = None,
    reserve_gb: Annotated[float, typer.Option(min=0.0, help="Memory of each device that plans may not use, GB.")] = 0.0,
    proved: Annotated[bool, typer.Option("--proved", help="Only schedules that were compared with measured runs.")] = False,
    mixed_with: Annotated[
        list[str] | None, typer.Option(metavar="CLUSTER", help="Nodes of this kind are part of the job too; repeatable.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(min=1.0, help="Tokens of the whole training run: its days and dollars.", show_default=False)
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Dollars of a device and hour, in place of a published price.", show_default=False)
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What the best of a sweep is: step-time, tokens (per second and device), cost or energy (per token).")
    ] = "step-time",
    sweep: Annotated[str | None, typer.Option(metavar="KEY=A..B", help="Search once for each value: gpus=256..16384, seq=….")] = None,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Leave out plans that are proved slower.")] = True,
    engine: Annotated[str, typer.Option(help="local, or ray (a cluster).")] = "local",
    ray_address: Annotated[str | None, typer.Option(help="The address of a running Ray cluster.", show_default=False)] = None,
    parquet: Annotated[str | None, typer.Option(metavar="FILE", help="Write every timed plan.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE.html", help="Draw step against memory with the limit, or the sweep.")] = None,
    perfetto: Perfetto = None,
    chakra: Chakra = None,
    kineto: Kineto = None,
    json: Json = False,
) -> None:
    """List the plans of a model on a cluster, best first."""
    given: dict[str, Any] = {key: value for key, value in locals().items() if value is not None}
    from lumos.choices import check_choice
    from lumos.cost.cluster import load_cluster
    from lumos.errors import UsageError
    from lumos.output_files import check_places
    from lumos.plan.words import switches_of
    from lumos.searching.facade import SearchWords, Swept, search, side_by_side
    from lumos.searching.settings import sweep_of
    from lumos.searching.sweep import OBJECTIVES, best_value, check_objective
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    files = {"perfetto": perfetto, "chakra": chakra, "kineto": kineto}
    clusters = cluster or []
    if (sweep is not None or len(clusters) > 1) and any(files.values()):
        raise UsageError("--sweep and several --cluster have many answers, and --perfetto, --chakra and --kineto write one job")
    if len(clusters) > 1 and (sweep is not None or paths):
        raise UsageError("several --cluster exclude --sweep and traces: one thing is compared at a time")
    keep_inputs(paths or (), parquet, plot, *files.values())
    check_places(parquet, plot, perfetto)
    check_choice(objective, OBJECTIVES, "an objective")
    if sweep is not None and clusters and not mixed_with:
        check_objective(objective, load_cluster(clusters[0]))
    words = {key: value for key, value in given.items() if key in SearchWords.__optional_keys__ and key != "cluster"}
    if len(clusters) == 1:
        words["cluster"] = clusters[0]
    if switch:
        words["switches"] = switches_of(switch)
    words["progress"] = stages("plans")
    job = read(*paths, progress=progress("reading", "bytes")) if paths else None
    key = "cluster" if len(clusters) > 1 else "" if sweep is None else sweep_of(sweep)[0]
    rows: Sequence[Swept]
    if key == "cluster":
        rows = side_by_side(clusters, **words)
    else:
        rows = [Swept(0, search(job, **words))] if sweep is None else search(job, sweep=sweep, **words)
    found = rows[0].found
    if parquet is not None:
        from lumos.reports.export.search_table import write_parquet

        write_parquet(parquet, [f for _, f in rows])
    if plot is not None:
        from lumos.reports.plots.search import plot_front, plot_sweep

        plot_sweep(plot, key, rows) if key else plot_front(plot, found)
    if any(files.values()):
        from lumos.reports.export.job import export

        export(found, **files)
    if json and key:
        write_json({"sweep": key, "best_value": best_value(rows, objective), "rows": [{key: value, **f.to_dict()} for value, f in rows]})
    elif json:
        write_json(found)
    else:
        from lumos.reports.text.search import print_found, print_sweep

        if not key:
            print_found(console(), found)
        else:
            print_sweep(console(), key, rows, best_value(rows, objective))
    if not all(f.complete for _, f in rows):
        raise typer.Exit(INTERRUPTED)
    if not any(f.best for _, f in rows):
        raise typer.Exit(1)
