"""`lumos stragglers`: what each slow rank costs."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.choices import check_choice
from lumos.cli.output import Engine, Force, Json, Paths, RayAddress, Repair, console, write_json
from lumos.cli.progress import progress


def command(
    paths: Paths,
    ideal: Annotated[str, typer.Option(metavar="RULE", help="peer-median or pooled-mean.")] = "peer-median",
    step: Annotated[str | None, typer.Option(metavar="NAME", help="One step: its name, or the number after its #.")] = None,
    force: Force = False,
    repair: Repair = False,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    json: Json = False,
) -> None:
    """Show what each slow rank, stage and class of operations costs, against a job in which equal work takes equal time.

    peer-median: equal work takes the median of its times over the ranks of a stage. pooled-mean: compute takes the mean of
    its times over all ranks and stages, communication the median, and there are no launch delays (the rule of
    StragglerAnalysis).
    """
    from lumos.analyze.ranks.equal_work import IDEAL_RULES

    check_choice(ideal, IDEAL_RULES, "an ideal (--ideal)")
    from lumos.analyze.ranks.stragglers import stragglers
    from lumos.graph.build import build
    from lumos.trace import read

    job = read(*paths, repair=repair, progress=progress("reading", "bytes"), engine=engine, ray_address=ray_address)
    result = stragglers(build(job), job, ideal, step=step, force=force)
    if json:
        write_json(result)
        return
    from lumos.reports.text.stragglers import print_stragglers

    print_stragglers(console(), result)
