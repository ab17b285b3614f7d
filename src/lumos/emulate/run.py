"""Run a training command as each rank of a job that does work of its own, one or two at a time, on tensors without data."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lumos.emulate import record
from lumos.emulate.distinct import copies, mesh_dimensions, neighbour, same_work, to_run
from lumos.emulate.process.settings import EmulationSettings
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lumos.emulate.process.settings import Device

#: Exit status of a process whose script ended before enough steps.
_TOO_FEW_STEPS = 3

#: Processes at a time: each needs about a gigabyte for a model of some ten billion parameters.
_AT_ONCE = 2


class Launched(NamedTuple):
    """What is emulated. limit_s: for each process."""

    command: Sequence[str]
    device: Device
    ranks: int
    steps: int
    warmup: int
    folder: Path
    limit_s: float


def records(job: Launched, progress: Callable[[int, int], None] | None = None) -> list[record.Process]:
    """The records of the ranks that do work of their own, with their copies; also in the job's folder.

    Raises LumosError where the script cannot be emulated.
    """
    by_forward = _run(job, 0, False)
    first = _read(job, 0)
    if job.ranks == 1:
        return [first]
    along = mesh_dimensions(first)
    others = {place: rank for place, each in enumerate(along) if (rank := neighbour(each)) is not None}
    _run_all(job, set(others.values()), by_forward, progress)
    changing = [along[place] for place, rank in others.items() if not same_work(first, _read(job, rank))]
    needed = to_run(changing)
    _run_all(job, {rank for rank in needed if not _file(job, rank).exists()}, by_forward, progress)
    alike = copies(job.ranks, needed, [each for each in along if each not in changing])
    found = [msgspec.structs.replace(_read(job, rank), copies=alike[rank]) for rank in needed]
    for rank in set(others.values()) - set(needed):
        _file(job, rank).unlink()
    for each in found:
        record.write_record(each, _file(job, each.rank))
    return found


def _run_all(job: Launched, ranks: Iterable[int], by_forward: bool, progress: Callable[[int, int], None] | None) -> None:
    waiting = sorted(ranks)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done, _ in enumerate(pool.map(lambda rank: _run(job, rank, by_forward), waiting)):
            if progress is not None:
                progress(done + 1, len(waiting))


def _run(job: Launched, rank: int, by_forward: bool) -> bool:
    """Run one rank. Returns whether its steps are calls of a module, because it has no optimizer."""
    file = _file(job, rank)
    file.unlink(missing_ok=True)
    settings = EmulationSettings(job.device, rank, job.ranks, job.steps, job.warmup, str(file), by_forward)
    status = _execute(job, settings)
    message = _message(file)
    if file.exists():
        return by_forward
    if status == _TOO_FEW_STEPS and not by_forward and " 0 steps" in message:
        return _run(job, rank, True)
    if message:
        raise LumosError(f"rank {rank}: {message}")
    raise LumosError(
        f"{' '.join(job.command)}: ended with status {status} without importing torch in a Python process of this environment: "
        "install lumos where the script runs"
    )


def _execute(job: Launched, settings: EmulationSettings) -> int:
    """Run the command to its end, or to the limit. What it prints goes to standard error, of rank 0 alone."""
    startup = str(Path(__file__).parent / "startup")
    rest = os.environ.get("PYTHONPATH")
    variables = {**os.environ, **settings.environment(), "PYTHONPATH": startup + (os.pathsep + rest if rest else "")}
    said = sys.stderr.fileno() if settings.rank == 0 else subprocess.DEVNULL
    process = subprocess.Popen(job.command, env=variables, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(job.limit_s)
    except subprocess.TimeoutExpired:
        raise LumosError(
            f"{' '.join(job.command)}: not done after {job.limit_s:.0f} s, as rank {settings.rank}: raise --limit, or make the script's "
            "model, data or steps smaller"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _file(job: Launched, rank: int) -> Path:
    return job.folder / f"rank{rank}.record"


def _read(job: Launched, rank: int) -> record.Process:
    return record.read(_file(job, rank))


def _message(file: Path) -> str:
    error = file.with_suffix(".error")
    if not error.exists():
        return ""
    text = error.read_text(encoding="utf-8")
    error.unlink()
    return text
