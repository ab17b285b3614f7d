"""`lumos search`: the plans of a model on a cluster, best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lumos.cli.choices import either
from lumos.cli.output import Json, console, progress, write_json
from lumos.vocabulary import Precision

if TYPE_CHECKING:
    from lumos.blocks.price import Pricer
    from lumos.search.space import Problem

Values = Annotated[str | None, typer.Option(metavar="V,V", show_default=False)]


def command(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH...]", help="Traces of a job: its sizes and measured blocks.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="A known model, or the path of a config.json.", show_default=False)] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A known cluster, or a .toml file; of traces: where they ran.", show_default=False)
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
    precision: Annotated[str, typer.Option(help=either(Precision))] = "bf16",
    framework: Annotated[str, typer.Option(help="Profile: megatron-core, nemo, fsdp, …")] = "megatron-core",
    refine: Annotated[int, typer.Option(min=1, help="Plans that are simulated in full.")] = 10,
    require: Annotated[list[str] | None, typer.Option(metavar="EXPR", help="A condition: 'memory.peak_bytes < 70e9'; repeatable.")] = None,
    objective: Annotated[str, typer.Option(help="step-time, or tokens (a second and device): what a sweep's best is.")] = "step-time",
    sweep: Annotated[str | None, typer.Option(metavar="KEY=A..B", help="Search for every value: gpus=256..16384, seq=….")] = None,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Leave out plans that are proved slower.")] = True,
    engine: Annotated[str, typer.Option(help="local, or ray (a cluster).")] = "local",
    ray_address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.", show_default=False)] = None,
    parquet: Annotated[str | None, typer.Option(metavar="FILE", help="Write every timed plan.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write the front of time against memory, or the sweep.")] = None,
    json: Json = False,
) -> None:
    """The plans of a model on a cluster, best first."""
    given = dict(locals())
    from lumos.cli.choices import check_choice
    from lumos.search.constraints import parse
    from lumos.search.engine import engine_of
    from lumos.search.search import Found, answer, search
    from lumos.search.settings import problem_of, space_of, sweep_of
    from lumos.search.sweep import OBJECTIVES, best_value
    from lumos.search.sweep import sweep as swept

    check_choice(objective, OBJECTIVES, "an objective")
    conditions = [parse(text) for text in require or []]
    pricer = None
    if paths:
        problem, pricer = _of_traces(paths, model, cluster, {"gpus": gpus, "global_batch": global_batch, "seq_len": seq})
    else:
        problem = problem_of(model, cluster, gpus, global_batch, seq, precision, framework)
    key, values = sweep_of(sweep) if sweep is not None else ("gpus", (problem.gpus,))
    space = space_of(given)

    def run(p: Problem) -> Found:
        return search(p, space, refine, progress("search"), prune, conditions, engine_of(engine, p, ray_address, pricer))

    rows = swept(problem, key, values, run)
    found = rows[0][1]
    if parquet is not None:
        from lumos.report.export.search_table import write_parquet

        write_parquet(parquet, [f for _, f in rows])
    if plot is not None:
        from lumos.report.plots.search import plot_front, plot_sweep

        plot_sweep(plot, key, rows) if sweep is not None else plot_front(plot, found)
    if json and sweep is not None:
        write_json({"sweep": key, "best_value": best_value(rows, objective), "rows": [{key: value, **answer(f)} for value, f in rows]})
    elif json:
        write_json(answer(found))
    else:
        from lumos.report.text.search import print_found, print_sweep

        if sweep is None:
            print_found(console(), found)
        else:
            print_sweep(console(), key, rows, best_value(rows, objective))


def _of_traces(paths: list[str], model: str | None, cluster: str | None, sizes: dict[str, int | None]) -> tuple[Problem, Pricer]:
    """The problem and prices of measured traces, with the sizes that are given."""
    from dataclasses import replace

    from lumos.errors import UsageError
    from lumos.graph.build import build
    from lumos.search.measured import problem_of_traces
    from lumos.trace import read

    if model is not None:
        raise UsageError("--model and traces exclude each other: the traces say which model ran")
    job = read(*paths, progress=progress("reading"))
    problem, pricer = problem_of_traces(job, build(job), cluster)
    gpus, batch, seq = sizes["gpus"] or problem.gpus, sizes["global_batch"] or problem.global_batch, sizes["seq_len"] or problem.seq_len
    problem.cluster.check_size(gpus)
    return replace(problem, gpus=gpus, global_batch=batch, seq_len=seq), pricer
