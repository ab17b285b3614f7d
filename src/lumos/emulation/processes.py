"""The processes of an emulated job: each is started in a session of its own, and none outlives the call that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumos.collect.command import startup_path
from lumos.emulation.process.settings import WHERE
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.emulation.process.settings import Device, EmulationSettings

#: What asks a program to end and does so at once where nothing is done about it. Ctrl-C raises KeyboardInterrupt as it is.
_ENDING = (signal.SIGTERM, signal.SIGHUP)

#: Seconds that a process has to tell where its script is, before it is ended.
_ANSWER_S = 2.0


class Launched(NamedTuple):
    """What is emulated. limit_s: for each process."""

    command: Sequence[str]
    device: Device
    ranks: int
    steps: int
    warmup: int
    folder: Path
    limit_s: float


class Processes:
    """Runs the command of a job as one rank or another, from several threads."""

    def __init__(self, job: Launched) -> None:
        self.job = job
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self._lock = threading.Lock()

    def execute(self, settings: EmulationSettings) -> int:
        """Run the command to its end. What it prints goes to standard error, of rank 0 alone. Returns its status.

        Raises LumosError where it is not done within the limit, and where the job has ended.
        """
        Path(settings.file).unlink(missing_ok=True)
        process = self._start(settings)
        try:
            return process.wait(self.job.limit_s)
        except subprocess.TimeoutExpired:
            where = _where(process, Path(settings.file))
            raise LumosError(
                f"{' '.join(self.job.command)}: not done after {self.job.limit_s:.0f} s, as rank {settings.rank}{where}: raise --limit, "
                "make the script's model, data or steps smaller, or leave out what it waits for"
            ) from None
        finally:
            _kill(process)
            process.wait()
            self._running.discard(process)

    @contextlib.contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """An error within it ends all processes, so that threads that wait for them return, and lets no other begin."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._ended = True
                for each in self._running:
                    _kill(each)
            raise

    def _start(self, settings: EmulationSettings) -> subprocess.Popen[bytes]:
        variables = {**os.environ, **settings.environment(), "PYTHONPATH": startup_path()}
        said = sys.stderr.fileno() if settings.rank == 0 else subprocess.DEVNULL
        with self._lock:
            if self._ended:
                raise LumosError(f"rank {settings.rank}: not run, because the job has ended")
            process = subprocess.Popen(
                self.job.command, env=variables, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True
            )
            self._running.add(process)
        return process


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
    until = time.monotonic() + _ANSWER_S
    while time.monotonic() < until:
        time.sleep(0.05)
        if line := last_message(file):
            return f", at {line}"
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started in its session's first group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def leaving_when_told() -> Iterator[None]:
    """Within it, a signal that would end this program at once raises SystemExit instead, with the status that a shell gives for the
    signal, so that what was begun is put in order. A handler that the program has is left alone, and so are threads, which get none."""
    asked = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        asked = []
    for each in asked:
        signal.signal(each, _leave)
    try:
        yield
    finally:
        for each in asked:
            signal.signal(each, signal.SIG_DFL)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
