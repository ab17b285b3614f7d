"""`lumos chakra`: the open format of workload graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from lumos.arguments import Term
from lumos.cli import new_app
from lumos.cli.options import read_job, takes
from lumos.cli.output import Json, Paths, Repair, answer

chakra = new_app(no_args_is_help=True, help="Read, link, export, check, import, synthesise Chakra traces. Each verb takes --json.")

Folder = Annotated[str, typer.Argument(metavar="DIR", help="The folder of a set: PREFIX.0.et, PREFIX.1.et, …")]
Output = Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="Where to write the set.")]


class SetWords(TypedDict, total=False):
    """What is written beside a set."""

    astra_sim: Annotated[bool, Term("Also write the files that ASTRA-sim needs to run it.")]
    cluster: Annotated[str, Term("The cluster that these files describe: a name or a TOML file.", shown="C")]


class ExportWords(SetWords, total=False):
    """How a job is written as a set."""

    exact_ns: Annotated[bool, Term("Keep nanoseconds, beside the whole microseconds that simulators read.")]
    roofline: Annotated[bool, Term("Let the simulator price compute by operations and bytes.")]


class CheckWords(TypedDict, total=False):
    """The files of a simulator beside a set."""

    groups: Annotated[str, Term("The communicators; found in DIR by its content otherwise.", shown="FILE")]
    network: Annotated[str, Term("The network; found likewise.", shown="FILE")]
    system: Annotated[str, Term("The system; found likewise.", shown="FILE")]
    memory: Annotated[str, Term("The remote memory; found likewise.", shown="FILE")]


class SampleWords(SetWords, total=False):
    """How a set is sampled."""

    seed: Annotated[int, Term("The same seed gives the same set.  [default: 0]", least=0)]
    ranks: Annotated[int, Term("Ranks of the new set: a multiple of the source's.")]


@chakra.command("export")
@takes(ExportWords, last=True)
def export_(paths: Paths, output: Output, repair: Repair = False, json: Json = False, **words: Any) -> None:
    """Write the job's graph as one .et file per rank, and the communicators."""
    from lumos.chakra.facade import export
    from lumos.output_files import check_places
    from lumos.reports.text.chakra import print_exported
    from lumos.trace.source import keep_inputs

    keep_inputs(paths, output)
    check_places(folders=(output,))
    answer(export(read_job(*paths, repair=repair), output, **words), json, print_exported)


@chakra.command("check")
@takes(CheckWords)
def check_(folder: Folder, json: Json = False, **words: Any) -> None:
    """Check a set against every rule of ASTRA-sim; the exit status is 1 where a rule is broken."""
    from lumos.chakra.checks import check
    from lumos.reports.text.chakra import print_checked

    result = check(folder, **words)
    answer(result, json, print_checked)
    if not result.ok:
        raise typer.Exit(1)


@chakra.command("link")
def link_(
    observed: Annotated[Path, typer.Argument(metavar="ET", help="A PyTorch execution trace, or a folder with one for each rank.")],
    profiled: Annotated[Path, typer.Argument(metavar="KINETO", help="The profiler's file of that rank, or a folder of all ranks.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the linked nodes as a set.")
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
    from lumos.reports.text.chakra import print_linked
    from lumos.trace.source import keep_inputs

    if observed.is_dir() != profiled.is_dir():
        raise UsageError("give two files of one rank, or two folders (they may be one) with those of all ranks")
    keep_inputs([observed, profiled], output)
    linked = link(observed, read_job(str(profiled), repair=repair), output=output, other_window=other_window)
    answer(linked, json, print_linked)


@chakra.command("import")
def import_(
    paths: Paths,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the set again, every node as it was read.")
    ] = None,
    json: Json = False,
) -> None:
    """Read a set that any tool wrote as a job, and simulate it; with -o write it again."""
    from lumos.chakra.facade import import_ as import_set
    from lumos.reports.text.chakra import print_imported

    answer(import_set(read_job(*paths), output=output), json, print_imported)


@chakra.command("synthesize")
@takes(SampleWords, last=True)
def synthesize_(
    output: Output,
    paths: Annotated[list[str], typer.Argument(metavar="SET...", help="Sets or jobs to learn from, one for each argument.")],
    facts: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=N,N,…", help="What tells sets of a family apart: tp, dp, pp, layers or any other, one for each SET."),
    ] = None,
    at: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=N", help="That of the new set; that of any known set otherwise.")
    ] = None,
    json: Json = False,
    **words: Any,
) -> None:
    """Sample a new set without the names and times of its source, or with other ranks, or of other facts."""
    from lumos.chakra.synthesis.facade import synthesize
    from lumos.reports.text.chakra import print_synthetic

    told = _numbers(facts or [], "--facts")
    wanted = {key: numbers[0] for key, numbers in _numbers(at or [], "--set", most=1).items()}
    sampled = synthesize([read_job(path) for path in paths], output=output, facts=told, at=wanted, **words)
    answer(sampled, json, print_synthetic)


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


@chakra.command("stat")
def stat_(paths: Paths, json: Json = False) -> None:
    """Summarise a set, or any job as it would be exported: nodes, operators, communication, dependencies, symmetry."""
    from lumos.chakra.facade import stat
    from lumos.reports.text.chakra import print_stat

    answer(stat(read_job(*paths)), json, print_stat)
