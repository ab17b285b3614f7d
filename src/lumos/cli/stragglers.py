"""`lumos stragglers`: what each slow rank costs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.choices import check_choice
from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import Force, Json, Paths, Step, console, write_json


@takes(ReadWords, last=True)
def command(
    paths: Paths,
    ideal: Annotated[str, typer.Option(metavar="RULE", help="peer-median or pooled-mean.")] = "peer-median",
    step: Step = None,
    force: Force = False,
    json: Json = False,
    **how: Any,
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

    job = read_job(*paths, **how)
    result = stragglers(build(job), job, ideal, step=step, force=force)
    if json:
        write_json(result)
        return
    from lumos.reports.text.stragglers import print_stragglers

    print_stragglers(console(), result)
