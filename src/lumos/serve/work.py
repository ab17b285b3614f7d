"""Work that takes long, in a thread of its own: others can ask for its progress and cancel it."""

import threading
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from lumos.errors import LumosError

_Answer = TypeVar("_Answer")
State = Literal["running", "done", "failed", "cancelled"]

#: Called by the work with what it is doing, how much of that is done, and out of how much. Raises CancelledError if it is to stop.
Progressing = Callable[[str, int, int], None]


class CancelledError(Exception):
    """The work was asked to stop."""


def fault_of(error: BaseException) -> str:
    """What the page shows of an error that no part of Lumos foresaw."""
    return f"{type(error).__name__}: {error}; this is a fault of Lumos, please report it"


class BackgroundWork(Generic[_Answer]):
    """Runs `call(report)` in a thread. Once cancelled, it stops at the next call of `report`."""

    def __init__(self, call: Callable[[Progressing], _Answer]) -> None:
        self._call = call
        self._stop = threading.Event()
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._progress: tuple[str, int, int] = ("starting", 0, 0)
        self._state: State = "running"
        self._error = ""
        self._result: list[_Answer] = []
        threading.Thread(target=self._run, daemon=True, name="lumos-work").start()

    @property
    def state(self) -> State:
        """Whether the work runs, or how it ended."""
        with self._lock:
            return self._state

    @property
    def result(self) -> _Answer:
        """What the call returned. Valid only in the state "done"."""
        return self._result[0]

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the work has ended. Returns False where that takes longer than `seconds`."""
        return self._finished.wait(seconds)

    def cancel(self) -> None:
        """Ask the work to stop; it does so where it next says how far it is."""
        self._stop.set()

    def status(self) -> dict[str, Any]:
        """The state and the progress, ready for JSON."""
        with self._lock:
            what, done, total = self._progress
            return {"state": self._state, "doing": what, "done": done, "total": total, "error": self._error}

    def _report(self, what: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise CancelledError
        with self._lock:
            self._progress = (what, done, total)

    def _run(self) -> None:
        try:
            self._result.append(self._call(self._report))
            self._end("done")
        except CancelledError:
            self._end("cancelled")
        except LumosError as error:
            self._end("failed", f"{error}")
        except BaseException as error:
            self._end("failed", fault_of(error))
            raise

    def _end(self, state: State, error: str = "") -> None:
        with self._lock:
            self._state, self._error = state, error
        self._finished.set()
