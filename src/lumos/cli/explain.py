"""`lumos explain`: why one plan beats another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lumos.cli.options import Assigned, takes, with_assigned
from lumos.cli.output import Json, console, write_json
from lumos.plan.words import JobWords


@takes(JobWords)
def command(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan: a TOML file of settings, or tp=8,pp=4,… (switches too).")],
    second: Annotated[str, typer.Argument(metavar="B", help="The plan to compare with.")],
    assigned: Assigned = None,
    json: Json = False,
    **words: Any,
) -> None:
    """Why one plan beats another: the difference of the two steps, part by part.

    Options hold for both plans; a size that a plan states is its own.
    """
    from lumos.searching.facade import explain

    found = explain(first, second, **with_assigned(words, assigned))
    if json:
        write_json(found)
        return
    from lumos.reports.text.search import print_explanation

    print_explanation(console(), found)
