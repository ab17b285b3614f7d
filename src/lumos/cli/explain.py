"""`lumos explain`: why one plan beats another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lumos.cli.output import Json, console, write_json

if TYPE_CHECKING:
    from lumos.plan.configuration import Settings


def command(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan: a TOML file of settings, or tp=8,pp=4,….")],
    second: Annotated[str, typer.Argument(metavar="B", help="The plan to compare with.")],
    model: Annotated[str | None, typer.Option(help="A known model, or the path of a config.json.", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="A known cluster, or the path of a .toml file.", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Why one plan beats another: the difference of the two steps, part by part."""
    shared = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch": global_batch, "seq": seq}
    from lumos.blocks.price import Pricer
    from lumos.errors import UsageError
    from lumos.plan.configuration import job_from
    from lumos.predict.predict import predict, result
    from lumos.search.explain import explain
    from lumos.search.search import plan_keys

    jobs = [job_from(_settings(text, shared)) for text in (first, second)]
    if jobs[0].cluster != jobs[1].cluster:
        raise UsageError(f"the plans are of two clusters ({jobs[0].cluster.name}, {jobs[1].cluster.name}); explain compares plans on one")
    pricer = Pricer(jobs[0].cluster)
    a, b = (predict(job, pricer, coarse=True) for job in jobs)
    found = explain(a, b, pricer)
    if json:
        keys = ({**plan_keys(p.job.plan), **result(p)} for p in (a, b))
        plans = {name: {**k, "parts_s": parts} for name, k, parts in zip("ab", keys, (found.first, found.second), strict=True)}
        write_json({**plans, "difference_s": found.difference})
        return
    from lumos.report.text.search import describe, print_explanation

    print_explanation(console(), (describe(a.job.plan), describe(b.job.plan)), (a.time.time_s, b.time.time_s), found)


def _settings(text: str, shared: dict[str, str | int | None]) -> Settings:
    from msgspec.structs import replace

    from lumos.plan.configuration import read_settings
    from lumos.search.settings import settings_of

    found = settings_of(text) if "=" in text else read_settings(text)
    return replace(found, **{key: value for key, value in shared.items() if value is not None})
