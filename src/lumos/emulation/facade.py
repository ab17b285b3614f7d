"""A training command run without its accelerators, as a function of the command and where to write.

With a placeholder, as in `python train.py --batch {batch}`, the largest number is found with which the script still fits on its device.
Memory grows with the number nearly in a straight line, so that the two values that fit tell where the limit is; what is tried there says
whether that is so, until one value fits and the next does not.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumos.cost.cluster import load_cluster
from lumos.diagnostics import Diagnostic
from lumos.emulation.accelerators import emulated_device
from lumos.emulation.device.files import WrittenTraces, write_traces
from lumos.emulation.execution_trace import NodeSheet, execution_trace_name, own_meetings
from lumos.emulation.launchers import launched_ranks
from lumos.emulation.peak import Peak, peak
from lumos.emulation.process.settings import SNAPSHOTS
from lumos.emulation.run import DeviceFullError, Launched, records
from lumos.errors import LumosError, UsageError
from lumos.output_files import check_only_own, new_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from lumos.emulation.record import Process

#: The code of the note that a script met a full device and went on.
_SHRANK = "out-of-memory"
#: A number that moves memory has done so by here.
_MOVES = 64


class Tried(NamedTuple):
    """A value that was tried. allocated_bytes, reserved_bytes, room_bytes: the most of any rank, and what it may have, 0 where the script
    ended without room. reason: why it does not fit, "" where it does."""

    value: int
    allocated_bytes: int
    reserved_bytes: int
    room_bytes: int
    reason: str

    @property
    def fits(self) -> bool:
        return not self.reason


def filled_in(command: Sequence[str], name: str, value: int) -> list[str]:
    """The command with a number in the place of `{name}`. Raises UsageError where it has no such place."""
    placeholder = f"{{{name}}}"
    if not any(placeholder in word for word in command):
        raise UsageError(f"--fit {name}: the command has no {placeholder}; write it where the number belongs, as in --batch {placeholder}")
    return [word.replace(placeholder, str(value)) for word in command]


def largest_that_fits(name: str, run: Callable[[int], list[Process]], said: Callable[[Tried], None]) -> tuple[list[Process], list[Tried]]:
    """The records of the largest whole number from 1 on that fits, and what was tried in order. run: the script with a number; said: called
    with each try.

    Raises LumosError where 1 does not fit, and where memory does not grow with the number.
    """
    tried: list[Tried] = []
    best: list[Process] = []
    value: int | None = 1
    while value is not None:
        try:
            processes = run(value)
            tried.append(_taken(value, processes))
        except DeviceFullError as full:
            tried.append(Tried(value, 0, 0, 0, str(full)))
        best = processes if tried[-1].fits else best
        said(tried[-1])
        value = next_value(name, tried)
    return best, tried


def next_value(name: str, tried: Sequence[Tried]) -> int | None:
    """What to try after these, None where one fits and the next does not. Raises LumosError as `largest_that_fits`."""
    fitting = sorted(attempt for attempt in tried if attempt.fits)
    above = min((attempt.value for attempt in tried if not attempt.fits), default=None)
    if not fitting:
        raise LumosError(f"--fit {name}: 1 does not fit: {tried[-1].reason}")
    low = fitting[-1]
    if above == low.value + 1:
        return None
    if len(fitting) < 2:
        return low.value + 1
    growth = (low.allocated_bytes - fitting[-2].allocated_bytes) / (low.value - fitting[-2].value)
    if above is None and low.value >= _MOVES and low.allocated_bytes <= fitting[0].allocated_bytes:
        raise LumosError(
            f"--fit {name}: {fitting[0].value} and {low.value} take the same memory ({low.allocated_bytes:,} bytes): "
            f"put {{{name}}} where it changes what each process holds"
        )
    guess = low.value + int((low.room_bytes - low.allocated_bytes) / growth) if growth > 0 else 2 * low.value
    if above is None:
        return max(low.value + 1, guess)
    missed_twice = len(tried) > 1 and not tried[-1].fits and not tried[-2].fits
    return (low.value + above) // 2 if missed_twice else min(max(low.value + 1, guess), above - 1)


def _taken(value: int, processes: Sequence[Process]) -> Tried:
    most = max((peak(process) for process in processes), key=lambda highest: (highest.reserved_bytes, highest.allocated_bytes))
    shrank = next((note for process in processes for note in process.notes if note.code == _SHRANK), None)
    reason = f"{shrank.where}: {shrank.message}" if shrank else ""
    return Tried(value, most.allocated_bytes, most.reserved_bytes, most.room_bytes, reason)


#: The name of the folder of a command without a number to try.
_ONLY = 0

#: Files that a reader takes for parts of a job.
_TRACES = "*.json*"


class Emulated(NamedTuple):
    """What an emulated job left. ranks: of the job. distinct: those that did work of their own and ran; the others are copies.
    operators: of the recorded steps, over the distinct ranks. peak_bytes: the most memory that a rank had allocated; memory: the peak of
    each distinct rank, with its moment and owners, none for "cpu". span_ns: from the first recorded work to the last, None for "cpu", whose
    work is not priced. files: the traces by rank, which have their execution traces beside them; for "cpu" the execution traces of the
    distinct ranks alone. tried: the values of `fit` in order; the traces are of the largest that fits."""

    ranks: int
    distinct: list[int]
    operators: int
    peak_bytes: int
    memory: list[Peak]
    span_ns: int | None
    files: list[str]
    diagnostics: list[Diagnostic]
    tried: list[Tried]


def emulate(
    command: Sequence[str],
    folder: str | os.PathLike[str],
    cluster: str,
    *,
    ranks: int | None = None,
    steps: int = 1,
    warmup: int = 1,
    limit_s: float = 1800.0,
    fit: str = "",
    random_weights: bool = False,
    traceback: bool = False,
    progress: Callable[[int, int], None] | None = None,
    said: Callable[[Tried], None] = lambda _: None,
) -> Emulated:
    """Run a training command on tensors without data, as each rank of the job, and write the traces that its devices would have left.

    cluster: whose accelerators the script is shown, or "cpu". ranks: of the job; None for as many as the launcher in the command starts, or
    one. steps: recorded, each ended by the optimizer's step (of a script without one, by a call of its outermost module); warmup: before
    them. limit_s: seconds for each process. fit: a name, of which the largest whole number that fits takes the place of `{name}` in the
    command; said: called with each number that was tried. random_weights: trained models are made of their configurations alone, and no
    weights are read. traceback: an error of the script has the lines of libraries that it came through, each on a line below it.

    Raises UsageError for impossible numbers or a command that does not exist, and LumosError where the script cannot be emulated, with
    the first line of it that cannot, and where not even 1 fits.
    """
    if not command or shutil.which(command[0]) is None:
        raise UsageError(f"{command[0] if command else ''!r}: no such command; write it after --, as you would start it")
    ranks = launched_ranks(command) or 1 if ranks is None else ranks
    if ranks < 1 or steps < 1 or warmup < 0:
        raise UsageError("--ranks and --steps must be at least 1, --warmup at least 0")
    device = emulated_device(cluster)
    if fit and device.is_cpu:
        raise UsageError("--fit needs a device with a limit of its memory; name a cluster, as in --emulate h100")
    if not device.is_cpu:
        load_cluster(cluster).check_size(ranks)
    with tempfile.TemporaryDirectory(prefix="lumos-emulate-") as work:

        def run(value: int) -> list[Process]:
            inner = Path(work) / str(value)
            inner.mkdir()
            asked = filled_in(command, fit, value) if fit else command
            return records(Launched(asked, device, ranks, steps, warmup, inner, limit_s, random_weights, traceback), progress)

        processes, tried = largest_that_fits(fit, run, said) if fit else (run(_ONLY), [])
        written = _execution_traces(folder, processes) if device.is_cpu else write_traces(folder, processes, load_cluster(cluster))
        largest = max((attempt.value for attempt in tried if attempt.fits), default=_ONLY)
        for snapshot in (Path(work) / str(largest) / SNAPSHOTS).glob("*"):
            shutil.copy(snapshot, folder)
    peaks = [] if device.is_cpu else [peak(process) for process in processes]
    most, operators = max((highest.allocated_bytes for highest in peaks), default=0), sum(len(process.operators) for process in processes)
    notes, distinct = [*_diagnostics(processes), *written.diagnostics], [process.rank for process in processes]
    return Emulated(ranks, distinct, operators, most, peaks, written.span_ns, list(written.files), notes, tried)


def _execution_traces(folder: str | os.PathLike[str], processes: Sequence[Process]) -> WrittenTraces:
    names = [execution_trace_name(process.rank) for process in processes]
    check_only_own(folder, _TRACES, names)
    with new_folder(folder) as draft:
        for process, name in zip(processes, names, strict=True):
            NodeSheet(process).write(draft / name, process.groups, own_meetings(process))
    return WrittenTraces(tuple(str(Path(folder) / name) for name in names), len(processes), None, ())


def _diagnostics(processes: Sequence[Process]) -> list[Diagnostic]:
    """The assumptions of all ranks, each once."""
    diagnostics: dict[tuple[str, str], Diagnostic] = {}
    for process in processes:
        for note in process.notes:
            where = f" ({note.where}{f', {note.count} times' if note.count > 1 else ''})" if note.where else ""
            diagnostics.setdefault((note.code, note.where), Diagnostic(note.code, note.message + where))
    if processes[0].world > 1 and not any(process.groups for process in processes):
        message = "the ranks form no process group, so that each trains a model of its own: start the script as you do on several devices"
        diagnostics["no-process-group", ""] = Diagnostic("no-process-group", message)
    return list(diagnostics.values())
