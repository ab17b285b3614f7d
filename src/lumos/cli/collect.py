"""`lumos collect -- COMMAND`: profile a training command, or run it without its accelerators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from lumos.arguments import Term
from lumos.cli import new_app
from lumos.cli.fitting import say
from lumos.cli.options import takes
from lumos.cli.output import Json, answer, console, next_command, write_json
from lumos.cli.progress import progress
from lumos.errors import INTERRUPTED
from lumos.units import count, size

if TYPE_CHECKING:
    from lumos.emulation.facade import Tried

collect = new_app()


class StepWords(TypedDict, total=False):
    """Which steps are recorded."""

    steps: Annotated[int, Term("Steps to record (3; with --emulate 1).", shown="N")]
    warmup: Annotated[int, Term("Steps before the recorded ones, for the profiler's warm-up (2; with --emulate 1).", shown="N")]


class ProfileWords(TypedDict, total=False):
    """What the profiler records beside the steps."""

    wait: Annotated[int, Term("Steps before those, without the profiler.  [default: 5]", shown="N")]
    memory: Annotated[bool, Term("Also record every allocation.")]
    execution_trace: Annotated[bool, Term("Also write the execution trace of one step.")]
    align: Annotated[
        bool, Term("Wait for all ranks before recording; turn off where only some ranks run an optimizer.  [default: align]", off=True)
    ]


class EmulateWords(TypedDict, total=False):
    """How a job is emulated."""

    ranks: Annotated[int, Term("With --emulate: processes of the job.  [default: those of its launcher, or 1]", least=1, shown="N")]
    limit: Annotated[float, Term("With --emulate: the longest that a process may take.  [default: 1800.0]", least=1, shown="SECONDS")]
    fit: Annotated[str, Term("With --emulate: find the largest {NAME} in COMMAND that fits.", shown="NAME")]
    random_weights: Annotated[bool, Term("With --emulate: make trained models of their configurations alone.")]
    traceback: Annotated[bool, Term("With --emulate: show the lines of libraries that an error of the script came through.")]


class CollectWords(StepWords, ProfileWords, EmulateWords, total=False):
    """All of them."""


@collect.command(context_settings={"allow_interspersed_args": False})
@takes(CollectWords, last=True)
def collect_(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the training.", show_default=False)
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where to write the traces.")] = "lumos-traces",
    emulate: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER", help="Run without a GPU, as on this cluster's accelerators, or as on the 'cpu'.", show_default=False
        ),
    ] = None,
    json: Json = False,
    **words: Any,
) -> None:
    """Profile a training command without changing its script: every call of Optimizer.step ends a step."""
    from lumos.output_files import check_places

    check_places(folders=(output,))
    kind = ProfileWords if emulate is None else EmulateWords
    taken = {key: value for key, value in words.items() if key in StepWords.__annotations__ or key in kind.__annotations__}
    if emulate is not None:
        _emulate(command, output, emulate, taken, json)
        return
    from lumos.collect.command import run

    status, written = run(command, output, **taken)
    if json:
        write_json({"status": status, "files": written})
    if status:
        how = "interrupted" if status == INTERRUPTED else f"{' '.join(command)}: ended with status {status}"
        say(f"{how}; {count(len(written), 'recording')} in {output}")
        raise typer.Exit(status)
    if written and not json:
        out = console()
        out.print(f"{count(len(written), 'recording')} in {output}", markup=False, soft_wrap=True)
        out.print(next_command("diagnose", (output,)), markup=False, soft_wrap=True)


def _ran(done: int, total: int) -> None:
    """Say how far the job has come, where no terminal shows it."""
    say(f"{done} of {total} ranks that do work of their own have been emulated so far")


def _tried(name: str, one: Tried) -> None:
    """Say whether a number fits."""
    held = f"{size(one.allocated_bytes)} allocated, {size(one.reserved_bytes)} of {size(one.room_bytes)} reserved"
    say(f"{name} {one.value}: {held if one.fits else f'does not fit: {one.reason}'}")


def _emulate(command: list[str], output: str, cluster: str, words: dict[str, Any], json: bool) -> None:
    from lumos.emulation.facade import emulate
    from lumos.reports.text.runs import print_emulated

    if "limit" in words:
        words["limit_s"] = words.pop("limit")
    shown = progress("emulating other ranks", "ranks") or _ran
    job = emulate(command, output, cluster, said=partial(_tried, words.get("fit", "")), progress=shown, **words)
    steps, fit = words.get("steps", 1), words.get("fit", "")
    answer(job, json, lambda out, emulated: print_emulated(out, output, emulated, steps=steps, fit=fit))
    if not json:
        following = ("diagnose", (output,)) if job.span_ns is not None else ("proxy", ("generate", job.files[0]))
        console().print(next_command(*following), markup=False, soft_wrap=True)
