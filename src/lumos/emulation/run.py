"""Run a training command as each rank of a job that does work of its own, one or two at a time, on tensors without data."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from lumos.emulation import record
from lumos.emulation.distinct import distinct_work, mesh_dimensions
from lumos.emulation.process.settings import TOO_FEW_STEPS, WAITS, EmulationSettings
from lumos.emulation.processes import Processes, last_message
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from lumos.emulation.processes import Launched

#: Processes at a time: each needs about a gigabyte for a model of some ten billion parameters.
_AT_ONCE = 2


def records(job: Launched, progress: Callable[[int, int], None] | None = None) -> list[record.Process]:
    """The records of the ranks that do work of their own, with their copies; also in the job's folder.

    Raises LumosError where the script cannot be emulated.
    """
    last = job.ranks - 1
    processes = Processes(job)
    with ThreadPoolExecutor(_AT_ONCE) as pool, processes.ended_by_errors():
        beside = pool.submit(_run_at_once, processes, last) if last else None
        by_forward = _run(processes, 0, False)
        last_ran = beside is not None and beside.result()
    first = _read(job, 0)
    if not last:
        return [first]
    read = {0: first}

    def ran(ranks: Sequence[int]) -> list[record.Process]:
        _run_all(processes, {rank for rank in ranks if not _file(job, rank).exists()}, by_forward, progress)
        read.update((rank, _read(job, rank)) for rank in ranks if rank not in read)
        return [read[rank] for rank in ranks]

    needed, alike = distinct_work(job.ranks, mesh_dimensions(first), ran, last_ran)
    found = [msgspec.structs.replace(each, copies=alike[each.rank]) for each in ran(needed)]
    for rank in read.keys() - set(needed):
        _file(job, rank).unlink()
    for each in found:
        record.write_record(each, _file(job, each.rank))
    return found


def _run_all(processes: Processes, ranks: Iterable[int], by_forward: bool, progress: Callable[[int, int], None] | None) -> None:
    waiting = sorted(ranks)
    with ThreadPoolExecutor(_AT_ONCE) as pool, processes.ended_by_errors():
        for done, _ in enumerate(pool.map(lambda rank: _run(processes, rank, by_forward), waiting)):
            if progress is not None:
                progress(done + 1, len(waiting))


def _run_at_once(processes: Processes, rank: int) -> bool:
    """Run one rank before it is known whether its steps need others to run first. Returns whether it could be done."""
    job = processes.job
    file = _file(job, rank)
    status = processes.execute(EmulationSettings(job.device, rank, job.ranks, job.steps, job.warmup, str(file), patience_s=0.0))
    message = last_message(file)
    if file.exists() or status in (WAITS, TOO_FEW_STEPS):
        return file.exists()
    raise _failure(job, rank, status, message)


def _run(processes: Processes, rank: int, by_forward: bool) -> bool:
    """Run one rank. Returns whether its steps are calls of a module, because it has no optimizer."""
    job = processes.job
    file = _file(job, rank)
    status = processes.execute(EmulationSettings(job.device, rank, job.ranks, job.steps, job.warmup, str(file), by_forward))
    message = last_message(file)
    if file.exists():
        return by_forward
    if status == TOO_FEW_STEPS and not by_forward and " 0 steps" in message:
        return _run(processes, rank, True)
    raise _failure(job, rank, status, message)


def _failure(job: Launched, rank: int, status: int, message: str) -> LumosError:
    if message:
        return LumosError(f"rank {rank}: {message}")
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
