"""`lumos chakra`: the open format of workload graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lumos.cli import new_app
from lumos.cli.output import Json, Paths, Repair, console, write_json
from lumos.cli.progress import progress

app = new_app(no_args_is_help=True, help="Read, link, export, check, import, synthesise Chakra traces. Each verb takes --json.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a set: PREFIX.0.et, PREFIX.1.et, …")]
Output = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write the set.")]
ExactNs = Annotated[bool, typer.Option("--exact-ns", help="Keep nanoseconds, as operation counts for a simulator's roofline mode.")]
AstraSim = Annotated[bool, typer.Option("--astra-sim", help="Also write the files that ASTRA-sim needs to run it.")]
Cluster = Annotated[str | None, typer.Option(metavar="C", help="The cluster that these files describe: a name or a TOML file.")]


@app.command("export")
def export_(
    paths: Paths,
    output: Output,
    astra_sim: AstraSim = False,
    cluster: Cluster = None,
    exact_ns: ExactNs = False,
    roofline: Annotated[bool, typer.Option("--roofline", help="Let the simulator price compute by operations and bytes.")] = False,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Write the job's graph as one .et file per rank, and the communicators."""
    from lumos.chakra.facade import export
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    keep_inputs(paths, output)
    job = read(*paths, repair=repair, progress=progress("reading", "bytes"))
    result = export(job, output, astra_sim=astra_sim, cluster=cluster, roofline=roofline, exact_ns=exact_ns)
    if json:
        write_json(result)
        return
    from lumos.reports.text.chakra import print_exported

    print_exported(console(), result)


@app.command("check")
def check_(
    folder: Folder,
    groups: Annotated[Path | None, typer.Option(metavar="FILE", help="The communicators; found in DIR by its content otherwise.")] = None,
    network: Annotated[Path | None, typer.Option(metavar="FILE", help="The network; found likewise.")] = None,
    system: Annotated[Path | None, typer.Option(metavar="FILE", help="The system; found likewise.")] = None,
    memory: Annotated[Path | None, typer.Option(metavar="FILE", help="The remote memory; found likewise.")] = None,
    json: Json = False,
) -> None:
    """Check a set against every rule of ASTRA-sim; the exit status is 1 where a rule is broken."""
    from lumos.chakra.facade import check

    result = check(folder, groups=groups, network=network, system=system, memory=memory)
    if json:
        write_json(result)
    else:
        from lumos.reports.text.chakra import print_checked

        print_checked(console(), result)
    if not result.ok:
        raise typer.Exit(1)


@app.command("link")
def link_(
    observed: Annotated[Path, typer.Argument(metavar="ET", help="A PyTorch execution trace, or a folder with one for each rank.")],
    profiled: Annotated[Path, typer.Argument(metavar="KINETO", help="The profiler's file of that rank, or a folder of all ranks.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Write the linked nodes: a .et file; of folders, a set.")
    ] = None,
    other_window: Annotated[
        bool, typer.Option("--other-window", help="Link the files of two windows of one process too: times of one, tensors of the other.")
    ] = False,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Join execution traces, which have tensors, with the profiler's files of the same ranks, which have times."""
    from lumos.chakra.facade import link
    from lumos.errors import UsageError
    from lumos.trace import read
    from lumos.trace.source import keep_inputs

    if observed.is_dir() != profiled.is_dir():
        raise UsageError("give two files of one rank, or two folders (they may be one) with those of all ranks")
    keep_inputs([observed, profiled], output)
    job = read(profiled, repair=repair, progress=progress("reading", "bytes"))
    found = link(observed, job, output=output, other_window=other_window)
    if json:
        write_json(found)
        return
    from lumos.reports.text.chakra import print_linked

    print_linked(console(), found)


@app.command("import")
def import_(
    paths: Paths,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the set again, every node as it was read.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--as-json", help="Write JSON instead of .et.")] = False,
    json: Json = False,
) -> None:
    """Read a set that any tool wrote as a job, and simulate it; with -o write it again."""
    from lumos.chakra.facade import import_ as import_set
    from lumos.trace import read

    found = import_set(read(*paths, progress=progress("reading", "bytes")), output=output, as_json=as_json)
    if json:
        write_json(found)
        return
    from lumos.reports.text.chakra import print_imported

    print_imported(console(), found)


@app.command("synthesize")
def synthesize_(
    output: Output,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[SET]...", help="Sets or jobs to learn from, one for each argument.")
    ] = None,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="Sample from a saved model instead.")] = None,
    save_model: Annotated[Path | None, typer.Option(metavar="FILE", help="Save what was learned as one file.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same set.")] = 0,
    ranks: Annotated[int | None, typer.Option(help="Ranks of the new set: a multiple of the source's.")] = None,
    facts: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=N,N,…", help="What tells sets of a family apart: tp, dp, pp, layers or any other, one for each SET."),
    ] = None,
    at: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=N", help="That of the new set; drawn from the known ones otherwise.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option("--held-out", metavar="SET", help="A set that was not learned from: compare the distributions with it.")
    ] = None,
    astra_sim: AstraSim = False,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Sample a new set without the names and times of its source, or with other ranks, or of other facts."""
    from lumos.chakra.synthesis.facade import synthesize
    from lumos.trace import read

    found = synthesize(
        [read(path, progress=progress("reading", "bytes")) for path in paths or ()],
        output=output,
        model=model,
        save_model=save_model,
        seed=seed,
        ranks=ranks,
        facts=_numbers(facts or [], "--facts"),
        at={key: numbers[0] for key, numbers in _numbers(at or [], "--set", most=1).items()},
        held_out=held_out,
        astra_sim=astra_sim,
        cluster=cluster,
    )
    if json:
        write_json(found)
        return
    from lumos.reports.text.chakra import print_synthetic

    print_synthetic(console(), found)


def _numbers(texts: list[str], option: str, most: int | None = None) -> dict[str, list[int]]:
    """The numbers of KEY=N,N,…. UsageError where a text is not of this form, or has more numbers than `most`."""
    from lumos.characters import is_whole
    from lumos.errors import UsageError

    out = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        numbers = listed.split(",")
        if not (key and equals and all(is_whole(n.strip()) for n in numbers)) or len(numbers) > (most or len(numbers)):
            raise UsageError(
                f"{option} {text!r}: write {'KEY=N' if most == 1 else 'KEY=N,N,… with a number for each set'}, for instance tp=2"
            )
        out[key.strip()] = [int(n) for n in numbers]
    return out


@app.command("stat")
def stat_(paths: Paths, json: Json = False) -> None:
    """Summarise a set, or any job as it would be exported: nodes, operators, communication, dependencies, symmetry."""
    from lumos.chakra.facade import stat
    from lumos.trace import read

    result = stat(read(*paths, progress=progress("reading", "bytes")))
    if json:
        write_json(result)
        return
    from lumos.reports.text.chakra import print_stat

    print_stat(console(), result)
