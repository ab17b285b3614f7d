"""`lumos search`: the plans of a model on a cluster, best first."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Json, console, progress, write_json

Values = Annotated[str | None, typer.Option(metavar="V,V", show_default=False)]


def command(
    model: Annotated[str, typer.Option(help="A known model, or the path of a Hugging Face config.json.", show_default=False)],
    cluster: Annotated[str, typer.Option(help="A known cluster, or the path of a .toml file.", show_default=False)],
    gpus: Annotated[int, typer.Option(min=1, help="Devices of the job.", show_default=False)],
    global_batch: Annotated[int, typer.Option(min=1, help="Sequences of a step.", show_default=False)],
    seq: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.", show_default=False)],
    tp: Values = None,
    pp: Values = None,
    vpp: Values = None,
    cp: Values = None,
    ep: Values = None,
    dp: Values = None,
    zero: Values = None,
    micro_batch: Values = None,
    recompute: Values = None,
    schedule: Values = None,
    sequence_parallel: Annotated[bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", show_default=False)] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32, fp16, bf16 or fp8.")] = "bf16",
    framework: Annotated[str, typer.Option(help="Profile: megatron-core, nemo, fsdp, …")] = "megatron-core",
    refine: Annotated[int, typer.Option(min=1, help="Plans that are simulated in full.")] = 10,
    json: Json = False,
) -> None:
    """The plans of a model on a cluster, best first."""
    given = dict(locals())
    from lumos.search.search import answer, search
    from lumos.search.settings import problem_of, space_of

    problem = problem_of(model, cluster, gpus, global_batch, seq, precision, framework)
    found = search(problem, space_of(given), refine, progress("search"))
    if json:
        write_json(answer(found))
        return
    from lumos.report.search_text import print_found

    print_found(console(), found)
