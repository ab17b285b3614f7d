"""`lumos proxy`: a runnable benchmark from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import typer

from lumos.arguments import REPAIR, Term
from lumos.cli import new_app
from lumos.cli.options import takes
from lumos.cli.output import Json, Paths, answer

proxy = new_app(no_args_is_help=True, help="A runnable benchmark from a trace: the same operators, shapes, order and overlap.")


class GenerateWords(TypedDict, total=False):
    """Which part of a job is generated, and how."""

    execution_trace: Annotated[Sequence[str], Term("The execution trace of a rank, in the order of the ranks.", shown="FILE")]
    step: Annotated[str, Term("The step, by its name in the trace (default: the typical one).", shown="NAME")]
    only: Annotated[Sequence[str], Term("Only operators of these names.", shown="GLOB")]
    blocks: Annotated[Sequence[str], Term("Only operators inside ranges of these names (modules, labels).", shown="GLOB")]
    obfuscate: Annotated[bool, Term("Replace the names that the job's own code defines by hashes.")]
    kernel_sources: Annotated[bool, Term("Take the sources of compiled kernels along, which are code of the job.")]
    max_memory: Annotated[float, Term("Bytes that tensors may take (default: what the device has).  [default: 0]", shown="BYTES", least=0)]
    repair: Annotated[bool, REPAIR]


class RunWords(TypedDict, total=False):
    """How a benchmark runs."""

    processes: Annotated[int, Term("Processes (default: all recorded ranks).", shown="N")]
    mode: Annotated[str, Term("What to run.  [default: full]", shown="full|compute|communication")]
    device: Annotated[str, Term("Where to run it (default: a GPU where there is one).", shown="cpu|cuda")]
    rank: Annotated[int, Term("Which recorded rank to run (default: each process its own).", shown="R")]
    warmup: Annotated[int, Term("Steps before the measured ones.  [default: 3]", shown="N")]
    repeat: Annotated[int, Term("Steps measured; their median counts.  [default: 10]", shown="N")]
    max_memory: Annotated[float, Term("Bytes that tensors may take.", shown="BYTES", least=0)]
    threads: Annotated[int, Term("Threads of an operator on the CPU (default: as recorded).", shown="N")]
    profile: Annotated[str, Term("Write a profile of this run, for replay and compare.", shown="DIR")]


@proxy.command()
@takes(GenerateWords, last=True)
def generate(
    paths: Paths,
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where to write the benchmark.")],
    json: Json = False,
    **words: Any,
) -> None:
    """Write a folder with benchmark.py, trace.json and a README.

    PATH is a profiler's trace, or execution traces alone, one for each rank.
    """
    from lumos.proxy.facade import generate as write
    from lumos.reports.text.runs import print_generated

    answer(write(paths, output, **words), json, lambda out, benchmark: print_generated(out, output, benchmark))


@proxy.command(context_settings={"ignore_unknown_options": False})
@takes(RunWords)
def run(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder that lumos proxy generate wrote.")],
    json: Json = False,
    **words: Any,
) -> None:
    """Run a generated benchmark and compare its step with the recorded one."""
    from lumos.proxy.facade import run as start
    from lumos.reports.text.runs import print_run

    answer(start(folder, **words), json, print_run)
