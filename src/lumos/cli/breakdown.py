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
    from lumos.simulation import measured, simulate

    job = read_job(*paths, **how)
    graph = build(job)
    timeline = measured(graph) if of == "measured" else simulate(graph)
    everything = members(graph)
    membership = everything if step is None else everything.only(step)
    times = step_times(timeline, membership)
    headline, findings = times.headline, (*graph.diagnostics, *times.findings())
    steps = tuple(each for each in breakdown(timeline, membership, job) if step is None or each.counts)
    parts = mean_parts(steps)
    rows = tabulate(timeline, membership, by, job)
    achieved = achieved_flops(timeline, membership, job)
    spread = variability(timeline, membership)
    grounds = trust(graph, None if of == "measured" else timeline, everything)
    if json:
        answer = {
            "step_time_ns": headline.step_time_ns,
            "latency_ns": headline.latency_ns,
            "basis": headline.basis,
            "median_ns": headline.median_ns,
            "steps_counted": headline.steps,
            "parts": parts,
            "ranks": len(graph.ranks),
            "of": of,
            "steps": steps,
            "by": by,
            "rows": rows,
            "queue": queue_lengths(timeline, membership),
            "achieved_flops": achieved,
            "variability": spread,
            "trust": grounds,
            "diagnostics": findings,
        }
        write_json(answer)
        return
    from lumos.reports.text.breakdown import print_breakdown

    print_breakdown(console(), of, headline, parts, steps, by, rows, achieved, spread, grounds, findings)
