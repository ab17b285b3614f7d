"""`lumos explain`: why one plan beats another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.cli.output import Json, console, write_json


def command(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan: a TOML file of settings, or tp=8,pp=4,….")],
    second: Annotated[str, typer.Argument(metavar="B", help="The plan to compare with.")],
    model: Annotated[str | None, typer.Option(help="A known model, or the path of a config.json.", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="A known cluster, or the path of a .toml file.", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    global_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Why one plan beats another: the difference of the two steps, part by part."""
    shared: dict[str, Any] = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch": global_batch, "seq": seq}
    from lumos.search.facade import explain

    found = explain(first, second, **{key: value for key, value in shared.items() if value is not None})
    if json:
        write_json(found)
        return
    from lumos.report.text.search import print_explanation

    print_explanation(console(), found)
