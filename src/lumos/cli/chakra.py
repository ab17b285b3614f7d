"""`lumos chakra`: the open format of workload graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lumos.cli import new_app
from lumos.cli.output import Clock, Json, Paths, Repair, plain, progress, write_json

app = new_app(no_args_is_help=True, help="Read, link, export, check, import and synthesise Chakra execution traces.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a set: PREFIX.0.et, PREFIX.1.et, …")]


@app.command("export")
def export_(
    paths: Paths,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write the set.")],
    exact_ns: Annotated[bool, typer.Option("--exact-ns", help="Keep nanoseconds, as operation counts for roofline mode.")] = False,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Write the job's graph as one .et file per rank, and the communicators."""
    from lumos.chakra.export import export
    from lumos.graph.build import build
    from lumos.trace import read

    clock = Clock()
    job = read(*paths, repair=repair, progress=progress("reading"))
    graph = build(job)
    built_s = clock.lap()
    result = export(graph, output, exact_ns=exact_ns)
    if json:
        write_json({**plain(result), "build_s": built_s, "export_s": clock.lap()})
        return
    print(f"{result.folder}: {result.nodes} nodes of {result.ranks} ranks, {result.communication} of them communication")
    for diagnostic in result.diagnostics:
        print(f"  {diagnostic.code}: {diagnostic.message}")


@app.command("check")
def check_(folder: Folder, json: Json = False) -> None:
    """Hold a set to every rule that ASTRA-sim has; status 1 where it breaks one."""
    from lumos.chakra.check import check

    result = check(folder)
    if json:
        write_json(result)
    else:
        for v in result.violations:
            print(f"{v.file}{'' if v.node is None else f' node {v.node}'}: {v.rule}: {v.message}")
        print(f"{result.ranks} ranks, {result.nodes} nodes: {'ok' if result.ok else f'{len(result.violations)} rules broken'}")
    if not result.ok:
        raise typer.Exit(1)
