"""`lumos models`: the models that Lumos knows by name."""

from __future__ import annotations

from typing import Annotated

import typer

from lumos.cli.output import Json, console, write_json


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model, or the path of a config.json.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """The models that Lumos knows by name, with their exact parameter counts."""
    from lumos.cli.output import plain
    from lumos.model import load_model, model_names

    found = [load_model(n) for n in ((name,) if name else model_names())]
    rows = [{**plain(m), "parameters": m.parameters, "active_parameters": m.active_parameters} for m in found]
    if json:
        write_json({"models": rows})
        return
    from lumos.reports.text.catalogues import print_model, print_models

    if name:
        print_model(console(), found[0])
    else:
        print_models(console(), found)
