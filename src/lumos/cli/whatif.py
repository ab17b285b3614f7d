"""`lumos whatif`: change the measured job and predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lumos.cli.output import Json, Paths, Repair, console, plain, progress, write_json

if TYPE_CHECKING:
    from lumos.layout.answer import Answer


def command(
    paths: Paths,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the plan, the model or a size; repeatable.")
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option(metavar="GLOB=F", help="Multiply the time of tasks whose name matches; repeatable.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Leave tasks out, with their launches; repeatable.")] = None,
    fuse: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Make neighbouring kernels one; repeatable.")] = None,
    rank_slowdown: Annotated[list[str] | None, typer.Option(metavar="RANK=F", help="Multiply all work of a rank; repeatable.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Run it on this cluster instead.")] = None,
    network: Annotated[list[str] | None, typer.Option(metavar="KEY=xF", help="Change the network: bandwidth=x2,latency=x0.5.")] = None,
    base_cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Where the job was recorded, if the trace does not say.")
    ] = None,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Change the measured job and predict its step.

    --set takes dp, layers, hidden, ffn, heads, seq, vocab, micro_batch, microbatches (of a step) and recompute (full or
    none); sizes are those of one rank. GLOB matches names of kernels, collectives, operators and runtime calls;
    cpu:GLOB and device:GLOB only on one side, operator:GLOB all that such operators do, with the work they launch.
    """
    from lumos.graph.build import build
    from lumos.layout.durations import Durations
    from lumos.layout.whatif import Changes, parse_settings, whatif
    from lumos.trace import read

    durations = Durations.parse(scale or (), drop or (), fuse or (), rank_slowdown or ())
    changes = Changes(parse_settings(settings or ()), durations, base_cluster, cluster, tuple(network or ()))
    job = read(*paths, repair=repair, progress=progress("reading"))
    found = whatif(job, build(job), changes)
    if json:
        write_json(as_json(found))
        return
    from lumos.report.whatif_text import print_answer

    print_answer(console(), found)


def as_json(found: Answer) -> dict[str, Any]:
    """The contracted object: the changed job's keys, the base's under `base`."""
    moved = [{**c._asdict(), "delta_s": c.delta_s} for c in found.moved]
    rest = {"base": found.base, "measured_step_s": found.measured_step_s, "changes": found.changes, "moved": moved, "share": found.share}
    answer: dict[str, Any] = {**plain(found.outcome), **plain(rest), "diagnostics": plain(found.diagnostics)}
    return answer
