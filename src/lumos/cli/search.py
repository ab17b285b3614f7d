"""`lumos search`: the plans of a model on a cluster, best first; and `lumos explain`: why one beats another."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lumos.cli.options import Assigned, read_job, takes, with_assigned
from lumos.cli.output import Chakra, Json, Kineto, Perfetto, answer, console, write_json
from lumos.cli.progress import stages
from lumos.errors import INTERRUPTED
from lumos.plan.words import JobWords
from lumos.searching.words import SearchWords, SpaceWords


@takes(SearchWords, texts=SpaceWords, shown="V,V|A..B")
def search(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH...]", help="What lumos predict wrote: its model, plan and cluster.", show_default=False),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(help="A known cluster, or a .toml file; repeatable, to compare.", show_default=False),
    ] = None,
    assigned: Assigned = None,
    sweep: Annotated[str | None, typer.Option(metavar="KEY=A..B", help="Search once for each value: gpus=256..16384, seq=….")] = None,
    parquet: Annotated[str | None, typer.Option(metavar="FILE", help="Write every timed plan.")] = None,
    perfetto: Perfetto = None,
    chakra: Chakra = None,
    kineto: Kineto = None,
    json: Json = False,
    **words: Any,
) -> None:
    """List the plans of a model on a cluster, best first."""
    from lumos.errors import UsageError
    from lumos.output_files import check_places
    from lumos.reports.text.predict import print_found, print_sweep
    from lumos.searching.facade import Swept, side_by_side
    from lumos.searching.facade import search as searched
    from lumos.searching.settings import sweep_of
    from lumos.trace.source import keep_inputs

    files = {"perfetto": perfetto, "chakra": chakra, "kineto": kineto}
    clusters = cluster or []
    if (sweep is not None or len(clusters) > 1) and any(files.values()):
        raise UsageError("--sweep and several --cluster have many answers, and --perfetto, --chakra and --kineto write one job")
    if len(clusters) > 1 and (sweep is not None or paths):
        raise UsageError("several --cluster exclude --sweep and traces: one thing is compared at a time")
    keep_inputs(paths or (), parquet, *files.values())
    check_places(parquet, perfetto, folders=(chakra, kineto))
    words = {**with_assigned(words, assigned, SpaceWords), "progress": stages("plans")}
    if len(clusters) == 1:
        words["cluster"] = clusters[0]
    job = read_job(*paths) if paths else None
    key = "cluster" if len(clusters) > 1 else "" if sweep is None else sweep_of(sweep)[0]
    rows: Sequence[Swept]
    if key == "cluster":
        rows = side_by_side(clusters, **words)
    else:
        rows = [Swept(0, searched(job, **words))] if sweep is None else searched(job, sweep=sweep, **words)
    first = rows[0].found
    if parquet is not None:
        from lumos.reports.export.job import write_parquet

        write_parquet(parquet, [f for _, f in rows])
    if any(files.values()):
        from lumos.reports.export.job import export

        export(first, **files)
    if not key:
        answer(first, json, print_found)
    elif json:
        write_json({"sweep": key, "rows": [{key: value, **f.to_dict()} for value, f in rows]})
    else:
        print_sweep(console(), key, rows)
    if not all(f.complete for _, f in rows):
        raise typer.Exit(INTERRUPTED)
    if not any(f.best for _, f in rows):
        raise typer.Exit(1)


@takes(JobWords)
def explain(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan: a TOML file of settings, or tp=8,pp=4,… (switches too).")],
    second: Annotated[str, typer.Argument(metavar="B", help="The plan to compare with.")],
    assigned: Assigned = None,
    json: Json = False,
    **words: Any,
) -> None:
    """Why one plan beats another: the difference of the two steps, part by part.

    Options hold for both plans; a size that a plan states is its own.
    """
    from lumos.reports.text.predict import print_explanation
    from lumos.searching.facade import explain as explained

    answer(explained(first, second, **with_assigned(words, assigned)), json, print_explanation)
