"""The verbs that say what a recording shows: inspect, diagnose, replay, breakdown, critical-path, stragglers and compare."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from lumos.choices import as_number, check_choice
from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import RUNS, Clock, Force, Json, Of, Paths, Step, answer, console, next_command, plain, write_json
from lumos.errors import UsageError


@takes(ReadWords, last=True)
def inspect(
    paths: Paths,
    blocks: Annotated[bool, typer.Option("--blocks", help="Also cut the job into layers, phases and microbatches.")] = False,
    json: Json = False,
    **how: Any,
) -> None:
    """Show what is in the traces, what is missing, and what that costs."""
    from lumos.analyze.collectives import interference
    from lumos.analyze.contents import contents
    from lumos.analyze.trust import trust, without_graph
    from lumos.errors import LumosError
    from lumos.graph.build import build
    from lumos.reports.text.inspect import print_blocks, print_contents
    from lumos.segment.outline import outline

    clock = Clock()
    job = read_job(*paths, **how)
    read_s = clock.lap()
    files = tuple(contents(trace) for trace in job.traces)
    diagnostics = (*job.diagnostics, *(d for trace in job.traces for d in trace.diagnostics))
    slowed = interference(job.traces)
    try:
        graph = build(job)
        grounds = trust(graph)
    except LumosError as error:
        graph, grounds = None, without_graph(error)
    if json:
        cut = {"blocks": outline(job, graph=graph)} if blocks else {}
        facts = {"ranks": len(files), "files": files, "groups": job.groups, "interference": slowed, **cut}
        write_json({**facts, "trust": grounds, "diagnostics": diagnostics, "read_s": read_s})
        return
    out = console()
    print_contents(out, files, job.groups, slowed, grounds, diagnostics, read_s)
    if blocks:
        print_blocks(out, outline(job, graph=graph))
    out.print()
    out.print(next_command("diagnose", paths), soft_wrap=True, markup=False)


@takes(ReadWords, last=True)
def diagnose(
    paths: Paths,
    before: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The command that made the recording, run without devices, to name its lines."),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="CMD", help="A changed script that fixes something, run without devices to price it; repeatable."),
    ] = None,
    force: Force = False,
    json: Json = False,
    **how: Any,
) -> None:
    """Show what to fix first: what makes the step longer than it needs to be, where, what it is worth, and what to do about it.

    Each finding is a what-if, and its worth is what the command that it prints answers. The same time may be in several findings, so their
    worths do not add up.
    """
    from lumos.findings.diagnose import diagnose_paths
    from lumos.graph.build import build
    from lumos.reports.text.stragglers import print_diagnosis
    from lumos.scripted.facade import matched_script

    job = read_job(*paths, **how)
    graph = build(job)
    script = matched_script(job, graph, before, force=force) if before is not None or after else None
    changed = script.changed_scripts(after or ()) if script else ()
    origin = script.origins if script else None
    answer(diagnose_paths(job, paths, graph=graph, force=force, origin=origin, changed=changed), json, print_diagnosis)


def _of(module: str, table: str) -> Callable[[], list[str]]:
    return lambda: list(getattr(import_module(f"lumos.{module}"), table))


@takes(ReadWords, last=True)
def replay(
    paths: Paths,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Drop a kind of dependency; repeatable.", autocompletion=_of("graph.table", "DEPENDENCY_NAMES")),
    ] = None,
    probes: Annotated[
        bool,
        typer.Option("--probes", help="Also replay with work that takes no time or longer, to test whether waits are simulated or copied."),
    ] = False,
    network: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Price the communication of a Chakra set on this network, not as recorded."),
    ] = None,
    perfetto: Annotated[str | None, typer.Option(metavar="FILE", help="Write both runs as one trace for ui.perfetto.dev.")] = None,
    json: Json = False,
    **how: Any,
) -> None:
    """Simulate the measured job and compare the result with the measurement.

    Kinds of dependency: thread-order, hand-off, launch, stream-order, stream-wait, sync, queue-depth, occupancy,
    rendezvous, data.
    """
    from lumos.graph.table import DEPENDENCY_NAMES

    for kind in ignore or ():
        check_choice(kind, DEPENDENCY_NAMES, "a kind of dependency")
    from lumos.analyze.collectives import interference
    from lumos.analyze.replay import ignoring
    from lumos.analyze.replay import probes as run_probes
    from lumos.analyze.replay import replay as compared
    from lumos.graph.build import build
    from lumos.output_files import check_places
    from lumos.reports.text.replay import print_replay
    from lumos.simulation import simulate
    from lumos.simulation.timeline import measured
    from lumos.trace.source import keep_inputs

    keep_inputs(paths, perfetto)
    check_places(perfetto)
    clock = Clock()
    job = read_job(*paths, **how)
    seconds = {"read_s": clock.lap()}
    if network is None:
        graph = build(job)
    else:
        from lumos.chakra.build import priced

        graph = priced(job, network)
    graph = ignoring(graph, ignore or ())
    seconds["build_s"] = clock.lap()
    timeline = simulate(graph)
    seconds["simulate_s"] = clock.lap()
    result = compared(graph, timeline)
    probed = run_probes(graph) if probes else None
    slowed = interference(job.traces)
    if perfetto is not None:
        from lumos.analyze.critical_path import critical_paths
        from lumos.reports.export.perfetto import write_perfetto

        runs = (measured(graph), timeline)
        write_perfetto(perfetto, runs, [critical_paths(run) for run in runs])
    if json:
        write_json({**plain(result), "interference": slowed, **({"probes": probed} if probed else {}), **seconds})
    else:
        print_replay(console(), result, probed, seconds, slowed)


@takes(ReadWords, last=True)
def breakdown(
    paths: Paths,
    by: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="kernel, pattern, operator, module, stream or rank.", autocompletion=_of("analyze.tables", "GROUPINGS")
        ),
    ] = "kernel",
    of: Of = "measured",
    step: Step = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="The command that made the recording, run without devices, to name its modules."),
    ] = None,
    json: Json = False,
    **how: Any,
) -> None:
    """Show where the time goes: what the step is spent on, what devices do in each step, why they are idle, and then the
    time by kernel, by rows of kernels that repeat (pattern), operator, module, stream or rank."""
    check_choice(of, RUNS, "a run (--of)")
    from lumos.analyze.tables import GROUPINGS, tensor_cores

    check_choice(by, GROUPINGS, "a grouping (--by)")
    from lumos.analyze.breakdown import mean_parts, variability
    from lumos.analyze.device_load import queue_lengths
    from lumos.analyze.flops import achieved_flops
    from lumos.analyze.loop.steps import members, step_times
    from lumos.analyze.trust import trust
    from lumos.graph.build import build
    from lumos.reports.text.breakdown import Breakdown, print_breakdown
    from lumos.scripted.facade import breakdown as broken_down
    from lumos.simulation import measured, simulate

    job = read_job(*paths, **how)
    graph = build(job)
    timeline = measured(graph) if of == "measured" else simulate(graph)
    everything = members(graph)
    membership = everything if step is None else everything.only(step)
    times = step_times(timeline, membership)
    steps = broken_down(timeline, membership, job, step=step)
    shown = Breakdown(
        *times.headline,
        mean_parts(steps),
        len(graph.ranks),
        of,
        steps,
        by,
        broken_down(timeline, membership, job, by=by, before=before),
        queue_lengths(timeline, membership),
        tensor_cores(timeline, membership),
        achieved_flops(timeline, membership, job),
        variability(timeline, membership),
        trust(graph, None if of == "measured" else timeline, everything),
        (*graph.diagnostics, *times.findings()),
    )
    answer(shown, json, print_breakdown)


@takes(ReadWords, last=True)
def critical_path(
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
    from lumos.analyze.facade import critical_path as critical_paths
    from lumos.analyze.loop.steps import members, step_times
    from lumos.analyze.trust import trust
    from lumos.analyze.waiting.slack import slack, slack_by_class
    from lumos.graph.build import build
    from lumos.output_files import check_places
    from lumos.reports.text.critical_path import ShownPaths, print_critical_paths
    from lumos.simulation import freeze, measured, simulate
    from lumos.trace.source import keep_inputs

    keep_inputs(paths, perfetto)
    check_places(perfetto)
    graph = build(read_job(*paths, **how))
    replayed, membership, frozen = simulate(graph), members(graph), freeze(graph)
    timeline = measured(graph) if of == "measured" else replayed
    times = step_times(timeline, membership)
    chosen = critical_paths(timeline, membership, frozen=frozen, step=step)
    if perfetto is not None:
        from lumos.reports.export.perfetto import write_perfetto

        write_perfetto(perfetto, (timeline,), (chosen,))
    class_slack = slack_by_class(slack(replayed, membership, frozen=frozen), membership)
    findings = (*graph.diagnostics, *times.findings())
    shown = ShownPaths(of, graph, times.headline, chosen, class_slack, trust(graph, replayed, membership), findings)
    if json:
        write_json(shown.to_dict())
    else:
        print_critical_paths(console(), shown)


@takes(ReadWords, last=True)
def stragglers(
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
    from lumos.analyze.ranks.stragglers import stragglers as compared
    from lumos.graph.build import build
    from lumos.reports.text.stragglers import print_stragglers

    job = read_job(*paths, **how)
    answer(compared(build(job), job, ideal, step=step, force=force), json, print_stragglers)


@takes(ReadWords, last=True)
def compare(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="A [B]", help="Two jobs, each a file or a folder; or one, with two steps of it.", show_default=False),
    ],
    step: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Compare only this step; given twice, the first step of A with the second of B (or of A)."),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Exit with 1 where B is slower by more (3%), beyond the noise of both.", show_default=False),
    ] = None,
    json: Json = False,
    **how: Any,
) -> None:
    """Show what changed from A to B: the step, where its time goes, and the operators, kernels and collectives that appeared,
    vanished or changed, by what they cost."""
    steps = step or []
    if len(paths) > 2 or len(steps) > 2 or (len(paths) == 1 and len(steps) != 2):
        raise UsageError("compare takes two jobs (A B), or one job and two of its steps (A --step NAME --step NAME)")
    from lumos.analyze.compare import Verdict
    from lumos.analyze.facade import compare as compared
    from lumos.reports.text.compare import print_comparison

    allowed = None if fail_above is None else _share(fail_above)
    jobs = [read_job(path, **how) for path in paths]
    result = compared(jobs[0], jobs[-1], step=(steps[0], steps[-1]) if steps else None, fail_above=allowed)
    answer(result, json, lambda out, comparison: print_comparison(out, (paths[0], paths[-1]), comparison))
    if result.regression is not None and result.regression.verdict is Verdict.SLOWER:
        raise typer.Exit(1)


def _share(text: str) -> float:
    """A share as it is written: 3%, or 0.03."""
    number = as_number(text.strip().removesuffix("%"), "--fail-above")
    if not text.strip().endswith("%") and number >= 1:
        raise UsageError(f"--fail-above {text} would allow {number:.0%}; write {text}% for percent")
    return number / 100 if text.strip().endswith("%") else number
