"""Run a training command as each rank of a job that does work of its own, one or two at a time, on tensors without data.

The processes of an emulated job: each is started in a session of its own, and none outlives the call that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lumos.collect.command import startup_path
from lumos.emulation import record
from lumos.emulation.distinct import distinct_work, mesh_dimensions
from lumos.emulation.process.settings import FULL, WAITS, WHERE, EmulationSettings
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lumos.emulation.process.settings import Device

#: Seconds that a process has to tell where its script is, before it is ended.
_ANSWER_S = 2.0


class DeviceFullError(LumosError):
    """The memory of a rank's device is too small for the script."""


class Launched(NamedTuple):
    """What is emulated. limit_s: for each process. random_weights: no weights of trained models are read. traceback: errors of the script
    have the lines of libraries that they came through."""

    command: Sequence[str]
    device: Device
    ranks: int
    steps: int
    warmup: int
    folder: Path
    limit_s: float
    random_weights: bool = False
    traceback: bool = False


class Processes:
    """Runs the command of a job as one rank or another, from several threads."""

    def __init__(self, job: Launched) -> None:
        self.job = job
        self._guards: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self._lock = threading.Lock()

    def execute(self, settings: EmulationSettings) -> int:
        """Run the command to its end. What it prints goes to standard error, of rank 0 alone. Returns its status.

        Raises LumosError where it is not done within the limit, and where the job has ended.
        """
        Path(settings.file).unlink(missing_ok=True)
        process, guard = self._start(settings)
        try:
            return process.wait(self.job.limit_s)
        except subprocess.TimeoutExpired:
            where = _where(process, Path(settings.file))
            raise LumosError(
                f"{' '.join(self.job.command)}: not done after {self.job.limit_s:.0f} s, as rank {settings.rank}{where}: raise --limit, "
                "make the script's model, data or steps smaller, or leave out what it waits for"
            ) from None
        finally:
            guard.communicate()
            process.wait()
            self._guards.discard(guard)

    @contextlib.contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """An error within it ends all processes, so that threads that wait for them return, and lets no other begin."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._ended = True
                for guard in list(self._guards):
                    guard.communicate()
            raise

    def _start(self, settings: EmulationSettings) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """The process, and its guard."""
        variables = {**os.environ, **settings.environment(), "PYTHONPATH": startup_path()}
        said = 2 if settings.rank == 0 else subprocess.DEVNULL  # a notebook has put something else in the place of sys.stderr
        with self._lock:
            if self._ended:
                raise LumosError(f"rank {settings.rank}: not run, because the job has ended")
            process = subprocess.Popen(
                self.job.command, env=variables, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True
            )
            guard = _guard(process)
            self._guards.add(guard)
        return process, guard


def last_message(file: Path) -> str:
    """What a process said why it left no record, once; empty where it said nothing. file: of the record."""
    error = file.with_suffix(".error")
    if not error.exists():
        return ""
    text = error.read_text(encoding="utf-8")
    error.unlink()
    return text


def _where(process: subprocess.Popen[bytes], file: Path) -> str:
    """Ask a process for the line of the script that it is at; empty where it does not answer."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, WHERE)
    said = record.awaited_file(file.with_suffix(".error"), _ANSWER_S)
    return f", at {last_message(file)}" if said else ""


def _guard(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """A process that ends another one and all that it started in its session's first group, once nobody holds the other end of its input:
    that is closed, or this process has ended in whatever way."""
    ends = ("/bin/sh", "-c", 'read end; kill -s KILL -- "-$0"', str(process.pid))
    return subprocess.Popen(ends, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


#: Processes at a time: each needs about a gigabyte for a model of some ten billion parameters.
_AT_ONCE = 2


def records(job: Launched, progress: Callable[[int, int], None] | None = None) -> list[record.Process]:
    """The records of the ranks that do work of their own, with their copies; also in the job's folder.

    Raises LumosError where the script cannot be emulated.
    """
    last = job.ranks - 1
    processes = Processes(job)
    with ThreadPoolExecutor(_AT_ONCE) as pool, processes.ended_by_errors():
        beside = pool.submit(_run, processes, last, at_once=True) if last else None
        _run(processes, 0)
        if beside is not None:
            beside.result()
    first = _read(job, 0)
    if not last:
        return [first]
    last_ran = _file(job, last).exists()
    read = {0: first} | ({last: _read(job, last)} if last_ran else {})

    def ran(ranks: Sequence[int]) -> list[record.Process]:
        before, waiting = len(read), sorted({rank for rank in ranks if not _file(job, rank).exists()})
        with ThreadPoolExecutor(_AT_ONCE) as pool, processes.ended_by_errors():
            for done, _ in enumerate(pool.map(lambda rank: _run(processes, rank, first.ended_by), waiting), before + 1):
                if progress is not None:
                    progress(done, before + len(waiting))
        read.update((rank, _read(job, rank)) for rank in ranks if rank not in read)
        return [read[rank] for rank in ranks]

    needed, alike = distinct_work(job.ranks, mesh_dimensions(first), ran, last_ran)
    distinct = [msgspec.structs.replace(process, copies=alike[process.rank]) for process in ran(needed)]
    if needed[-1] == last and len(needed) < 4 and not alike[last] and any(alike.values()):
        message = f"ranks before the last count as rank {needed[-2]}: the last one does the same on parts of other sizes, or other work"
        distinct[0].notes.append(record.Assumption("last-rank-apart", message))
    for rank in read.keys() - set(needed):
        _file(job, rank).unlink()
    for process in distinct:
        record.write_record(process, _file(job, process.rank))
    return distinct


def first_rank(job: Launched) -> record.Process:
    """The record of rank 0, run alone; also in the job's folder. Raises LumosError as `records` does."""
    processes = Processes(job)
    with processes.ended_by_errors():
        _run(processes, 0)
    return _read(job, 0)


def _run(processes: Processes, rank: int, ended_by: record.StepEnd = record.StepEnd.OPTIMIZER, at_once: bool = False) -> None:
    """Run one rank. ended_by: what the steps of the ranks before it ended by. at_once: before it is known whether its steps need others
    to run first, so that it may leave no record."""
    job = processes.job
    file = _file(job, rank)
    settings = EmulationSettings(job.device, rank, job.ranks, job.steps, job.warmup, str(file), ended_by, random_weights=job.random_weights)
    status = processes.execute(msgspec.structs.replace(settings, patience_s=0.0) if at_once else settings)
    message = last_message(file)
    if not file.exists() and not (at_once and status == WAITS):
        raise _failure(job, rank, status, message)


def _failure(job: Launched, rank: int, status: int, message: str) -> LumosError:
    if message:
        said = message if job.traceback else message.partition("\n")[0]
        return (DeviceFullError if status == FULL else LumosError)(f"rank {rank}: {said}")
    if status < 0:
        return LumosError(
            f"{' '.join(job.command)}: rank {rank} was ended by {signal.Signals(-status).name}: where the memory of this machine was full, "
            "make fewer tensors on the host; else see whether the script runs without --emulate"
        )
    return LumosError(
        f"{' '.join(job.command)}: ended with status {status} before it had imported torch in a Python process of this environment: see "
        "what it printed above; where it runs in another environment, install lumos there"
    )


def _file(job: Launched, rank: int) -> Path:
    return job.folder / f"rank{rank}.record"


def _read(job: Launched, rank: int) -> record.Process:
    return record.read(_file(job, rank))
