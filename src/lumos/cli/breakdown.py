"""`lumos breakdown`: where the time goes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.choices import check_choice
from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import RUNS, Json, Of, Paths, Step, console, write_json


def _groupings() -> list[str]:
    from lumos.analyze.tables import GROUPINGS

    return list(GROUPINGS)


@takes(ReadWords, last=True)
def command(
    paths: Paths,
    by: Annotated[
        str, typer.Option(metavar="NAME", help="kernel, operator, module, stream or rank.", autocompletion=_groupings)
    ] = "kernel",
    of: Of = "measured",
    step: Step = None,
    json: Json = False,
    **how: Any,
) -> None:
    """Show where the time goes: what the step is spent on, what devices do in each step, why they are idle, and then the
    time by kernel, operator, module, stream or rank."""
    check_choice(of, RUNS, "a run (--of)")
    check_choice(by, _groupings(), "a grouping (--by)")
    from lumos.analyze.breakdown import breakdown, mean_parts, variability
    from lumos.analyze.device_load import queue_lengths
    from lumos.analyze.flops import achieved_flops
    from lumos.analyze.loop.steps import members, step_times
    from lumos.analyze.tables import tabulate
    from lumos.analyze.trust import trust
    from lumos.graph.build import build
    from lumos.reports.text.breakdown import Breakdown, print_breakdown
    from lumos.simulation import measured, simulate

    job = read_job(*paths, **how)
    graph = build(job)
    timeline = measured(graph) if of == "measured" else simulate(graph)
    everything = members(graph)
    membership = everything if step is None else everything.only(step)
    times = step_times(timeline, membership)
    steps = tuple(each for each in breakdown(timeline, membership, job) if step is None or each.counts)
    answer = Breakdown(
        *times.headline,
        mean_parts(steps),
        len(graph.ranks),
        of,
        steps,
        by,
        tabulate(timeline, membership, by, job),
        queue_lengths(timeline, membership),
        achieved_flops(timeline, membership, job),
        variability(timeline, membership),
        trust(graph, None if of == "measured" else timeline, everything),
        (*graph.diagnostics, *times.findings()),
    )
    if json:
        write_json(answer)
    else:
        print_breakdown(console(), answer)
