"""`lumos collect -- COMMAND`: profile a training command, or run it without its accelerators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lumos.cli import new_app
from lumos.cli.fitting import say
from lumos.cli.output import Json, console, next_command, write_json
from lumos.cli.progress import progress
from lumos.errors import INTERRUPTED
from lumos.units import count, quantity, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.emulation.facade import Tried
    from lumos.emulation.peak import Peak

app = new_app()

#: Notes of the cost models, one for each class of kernels: too many for people to read one by one.
#: Owners of memory that people are shown.
_OWNERS = 5
OF_PRICES = {"generic-coefficients", "coefficients-of-kin", "extrapolated"}


@app.command(context_settings={"allow_interspersed_args": False})
def collect(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the training.", show_default=False)
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where to write the traces.")] = "lumos-traces",
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps to record (3; with --emulate 1).", show_default=False)] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Steps before the recorded ones, for the profiler's warm-up (2; with --emulate 1).", show_default=False
        ),
    ] = None,
    wait: Annotated[int, typer.Option(metavar="N", help="Steps before those, without the profiler.")] = 5,
    memory: Annotated[bool, typer.Option("--memory", help="Also record every allocation.")] = False,
    execution_trace: Annotated[bool, typer.Option("--execution-trace", help="Also write the execution trace of one step.")] = False,
    align: Annotated[
        bool, typer.Option(help="Wait for all ranks before recording; turn off where only some ranks run an optimizer.")
    ] = True,
    emulate: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER", help="Run without a GPU, as on this cluster's accelerators, or as on the 'cpu'.", show_default=False
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="With --emulate: processes of the job.")] = 1,
    limit: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="With --emulate: the longest that a process may take.")] = 1800.0,
    fit: Annotated[
        str, typer.Option(metavar="NAME", help="With --emulate: find the largest {NAME} in COMMAND that fits.", show_default=False)
    ] = "",
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="With --emulate: make trained models of their configurations alone.")
    ] = False,
    json: Json = False,
) -> None:
    """Profile a training command without changing its script: every call of Optimizer.step ends a step."""
    if emulate is not None:
        steps, warmup = 1 if steps is None else steps, 1 if warmup is None else warmup
        _emulate(command, output, emulate, ranks, steps, warmup, limit, fit, random_weights, json)
        return
    from lumos.collect.command import run

    steps, warmup = 3 if steps is None else steps, 2 if warmup is None else warmup
    status, written = run(
        command, output, steps=steps, warmup=warmup, wait=wait, memory=memory, execution_trace=execution_trace, align=align
    )
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


def _memory(peaks: Sequence[Peak]) -> Iterator[str]:
    """The peak of the rank that reserves most: figures, moment, owners."""
    size = partial(with_unit, measure=quantity("_bytes"))
    most = max(peaks, key=lambda each: (each.reserved_bytes, each.allocated_bytes))
    spare = size(most.room_bytes - most.reserved_bytes)
    when = " in ".join(filter(None, (most.operator, most.module))) or f"before the recorded steps, in these {size(most.steps_bytes)}"
    room = f", reserved {size(most.reserved_bytes)} of {size(most.room_bytes)}: {spare} to spare" if most.room_bytes else ""
    yield f"memory: rank {most.rank} has at most {size(most.allocated_bytes)} allocated ({when}){room}"
    yield f"  {', '.join(f'{kind} {size(held)}' for kind, held in most.by_kind().items())}"
    for each in most.held[:_OWNERS]:
        yield f"  {size(each.bytes):>9} {each.kind} {each.module or 'outside of modules'}"


def _ran(done: int, total: int) -> None:
    """Say how far the job has come, where no terminal shows it."""
    say(f"{done} of {total} ranks that do work of their own have been emulated so far")


def _tried(name: str, one: Tried) -> None:
    """Say whether a number fits."""
    size = partial(with_unit, measure=quantity("_bytes"))
    held = f"{size(one.allocated_bytes)} allocated, {size(one.reserved_bytes)} of {size(one.room_bytes)} reserved"
    say(f"{name} {one.value}: {held if one.fits else f'does not fit: {one.reason}'}")


def _emulate(
    command: list[str], output: str, cluster: str, ranks: int, steps: int, warmup: int, limit: float, fit: str, random_weights: bool,
    json: bool,
) -> None:
    from lumos.emulation.facade import emulate

    found = emulate(
        command,
        output,
        cluster,
        ranks=ranks,
        steps=steps,
        warmup=warmup,
        limit_s=limit,
        fit=fit,
        random_weights=random_weights,
        said=partial(_tried, fit),
        progress=progress("emulating other ranks", "ranks") or _ran,
    )
    if json:
        write_json(found)
        return
    out = console()
    alike = ", the others do the same as one of them" if len(found.distinct) < found.ranks else ""
    out.print(f"{output}: {len(found.distinct)} of {found.ranks} ranks ran{alike}", markup=False)
    out.print(f"{count(found.operators, 'operator')} in {count(steps, 'step')}")
    if fit:
        largest = max(each.value for each in found.tried if each.fits)
        out.print(f"the largest {fit} that fits is {largest}, which is what was recorded", markup=False)
    for line in _memory(found.memory) if found.memory else ():
        out.print(line, markup=False, soft_wrap=True)
    if found.span_ns is not None:
        out.print(f"{found.span_ns / 1e9:.3f} s from the first work to the last, simulated")
    priced = [each for each in found.diagnostics if each.code in OF_PRICES]
    for each in found.diagnostics:
        if each not in priced:
            out.print(f"note: {each.code}: {each.message}", markup=False)
    if priced:
        out.print(
            f"note: {len(priced)} prices have wider intervals than usual, beyond what was measured on this accelerator; --json lists them"
        )
    following = ("diagnose", (output,)) if found.span_ns is not None else ("proxy", ("generate", found.files[0]))
    out.print(next_command(*following), markup=False, soft_wrap=True)
