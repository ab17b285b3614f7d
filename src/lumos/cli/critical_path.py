"""`lumos critical-path`: the chain of tasks that sets the step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.choices import check_choice, check_step
from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import RUNS, Json, Of, Paths, Step, console, plain, write_json

if TYPE_CHECKING:
    from lumos.analyze.critical_path import CriticalPath
    from lumos.graph.table import Graph


@takes(ReadWords, last=True)
def command(
    paths: Paths,
    of: Of = "measured",
    step: Step = None,
    perfetto: Annotated[str | None, typer.Option(metavar="FILE", help="Write the run and its path as a trace for ui.perfetto.dev.")] = None,
    json: Json = False,
    **how: Any,
) -> None:
    """Show the chain of tasks that sets each step, over all ranks: what it consists of, which ranks the others waited for, and
    how much longer everything else could take."""
    check_choice(of, RUNS, "a run (--of)")
    from lumos.analyze.critical_path import critical_paths
    from lumos.analyze.loop.steps import members, step_times
    from lumos.analyze.trust import trust
    from lumos.analyze.waiting.slack import slack, slack_by_class
    from lumos.graph.build import build
    from lumos.output_files import check_places
    from lumos.simulation import freeze, measured, simulate
    from lumos.trace.source import keep_inputs

    keep_inputs(paths, perfetto)
    check_places(perfetto)
    job = read_job(*paths, **how)
    graph = build(job)
    replayed, membership, frozen = simulate(graph), members(graph), freeze(graph)
    timeline = measured(graph) if of == "measured" else replayed
    times = step_times(timeline, membership)
    headline, findings = times.headline, (*graph.diagnostics, *times.findings())
    found = critical_paths(timeline, membership, frozen=frozen)
    name = None if step is None else check_step(step, [path.name for path in found])
    chosen = tuple(path for path in found if name in (None, path.name))
    class_slack = slack_by_class(slack(replayed, membership, frozen=frozen), membership)
    grounds = trust(graph, replayed, membership)
    if perfetto is not None:
        from lumos.reports.export.perfetto import write_perfetto

        write_perfetto(perfetto, (timeline,), (chosen,))
    if json:
        answer = {
            "step_time_ns": headline.step_time_ns,
            "median_ns": headline.median_ns,
            "latency_ns": headline.latency_ns,
            "basis": headline.basis,
            "ranks": len(graph.ranks),
            "of": of,
            "steps": [_plain(path, graph) for path in chosen],
            "slack_by_class": class_slack,
            "trust": grounds,
            "diagnostics": findings,
        }
        write_json(answer)
        return
    from lumos.reports.text.critical_path import Shown, print_critical_paths

    print_critical_paths(console(), Shown(of, graph, headline, chosen, class_slack, grounds, findings))


def _plain(path: CriticalPath, graph: Graph) -> dict[str, Any]:
    """The path as values that JSON can hold, with the names of the tasks and processors of its links."""
    links = []
    for link in path.links:
        processor = graph.processors[graph.processor[link.task]]
        links.append(
            {
                "task": link.task,
                "name": graph.names[graph.name[link.task]],
                "rank": processor.rank,
                "processor": processor.name,
                "arrival_rank": link.rank,
                "class": link.label,
                "start_ns": link.start_ns,
                "end_ns": link.end_ns,
                "delay_ns": link.delay_ns,
                "idle_ns": link.idle_ns,
                "cause": None if link.cause is None else link.cause.word,
            }
        )
    return {**plain(replace(path, links=())), "links": links}
