"""`lumos explain`: why one plan beats another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.choices import one_or_other
from lumos.cli.output import Count, Json, Switch, console, write_json
from lumos.vocabulary import Precision, Recompute


def command(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan: a TOML file of settings, or tp=8,pp=4,… (switches too).")],
    second: Annotated[str, typer.Argument(metavar="B", help="The plan to compare with.")],
    model: Annotated[str | None, typer.Option(help="A known model, or the path of a config.json.", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="A known cluster, or the path of a .toml file.", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.", show_default=False)] = None,
    micro_batch: Count = None,
    tp: Count = None,
    pp: Count = None,
    vpp: Count = None,
    cp: Count = None,
    ep: Count = None,
    dp: Count = None,
    zero: Annotated[int | None, typer.Option(min=0, max=3, show_default=False)] = None,
    recompute: Annotated[str | None, typer.Option(help=one_or_other(Recompute), show_default=False)] = None,
    precision: Annotated[str | None, typer.Option(help=one_or_other(Precision), show_default=False)] = None,
    framework: Annotated[str | None, typer.Option(help="Profile: megatron-core, nemo, fsdp, …", show_default=False)] = None,
    switch: Switch = None,
    json: Json = False,
) -> None:
    """Why one plan beats another: the difference of the two steps, part by part.

    Options hold for both plans; a size that a plan states is its own.
    """
    given: dict[str, Any] = {key: value for key, value in locals().items() if value is not None}
    from lumos.plan.words import JobWords, switches_of
    from lumos.searching.facade import explain

    shared = {key: value for key, value in given.items() if key in JobWords.__optional_keys__}
    found = explain(first, second, switches=switches_of(switch or ()), **shared)
    if json:
        write_json(found)
        return
    from lumos.reports.text.search import print_explanation

    print_explanation(console(), found)
