"""`lumos replay`: simulate the measured job and compare with the measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lumos.choices import check_choice
from lumos.cli.options import ReadWords, read_job, takes
from lumos.cli.output import Clock, Json, Paths, console, plain, write_json


def _kinds() -> list[str]:
    from lumos.graph.table import DEPENDENCY_NAMES

    return list(DEPENDENCY_NAMES)


@takes(ReadWords, last=True)
def command(
    paths: Paths,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Drop a kind of dependency; repeatable.", autocompletion=_kinds),
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
    kinds = [check_choice(kind, _kinds(), "a kind of dependency") for kind in ignore or ()]

    from dataclasses import replace

    from lumos.analyze.interference import interference
    from lumos.analyze.probes import probes as run_probes
    from lumos.analyze.replay import replay
    from lumos.graph.build import build
    from lumos.graph.table import DEPENDENCY_NAMES
    from lumos.output_files import check_places
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
    graph = replace(graph, ignored=graph.ignored.union(*(DEPENDENCY_NAMES[kind] for kind in kinds)))
    seconds["build_s"] = clock.lap()
    timeline = simulate(graph)
    seconds["simulate_s"] = clock.lap()
    result = replay(graph, timeline)
    probed = run_probes(graph) if probes else None
    slowed = interference(job.traces)
    if perfetto is not None:
        from lumos.analyze.critical_path import critical_paths
        from lumos.reports.export.perfetto import write_perfetto

        runs = (measured(graph), timeline)
        write_perfetto(perfetto, runs, [critical_paths(run) for run in runs])
    if json:
        write_json({**plain(result), "interference": slowed, **({"probes": probed} if probed else {}), **seconds})
        return
    from lumos.reports.text.replay import print_replay

    print_replay(console(), result, probed, seconds, slowed)
