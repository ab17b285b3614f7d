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
    from rich.table import Table

    table = Table("model", "parameters", "active", "layers", "hidden", "heads", "kv heads", "ffn", "vocabulary", "experts")
    for m in found:
        experts = f"{m.experts.per_token} of {m.experts.count} x {m.experts.ffn}" if m.experts else ""
        sizes = (m.layers, m.hidden, m.heads, m.kv_heads, m.ffn or "", m.vocab)
        table.add_row(m.name, _billions(m.parameters), _billions(m.active_parameters), *map(str, sizes), experts)
    console().print(table)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B"
