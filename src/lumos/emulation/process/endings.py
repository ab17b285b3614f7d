"""The ways in which a script ends before its steps are recorded, and the line of it that does so, for the message."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from lumos.emulation.process.script import line_of_error, line_of_script
from lumos.emulation.process.settings import WHERE

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal

_leave = os._exit


class Endings:
    """Watches for the end of one process; those that it forks are not watched. early: called where the script ends itself without an
    exception, fail: where it raised one, say: with a message for the process that started the script."""

    def __init__(self, early: Callable[[], None], fail: Callable[[Any, Any, Any], None], say: Callable[[str], None]) -> None:
        self._early, self._fail, self._say = early, fail, say
        self._process = os.getpid()
        self._called = ""

    def install(self) -> None:
        """Begin to watch."""
        sys.excepthook = self._fail
        threading.excepthook = self._in_thread
        signal.signal(WHERE, lambda _, frame: self._say(line_of_script(frame)))
        ending = sys.exit

        def exit_(*status: Any) -> None:
            self._called = f", by sys.exit at {line_of_script()}"
            ending(*status)

        def exit_at_once(status: int) -> None:
            if self.is_here:
                self._called = f", by os._exit at {line_of_script()}"
                self._early()
            _leave(status)

        sys.exit, os._exit = exit_, exit_at_once  # type: ignore[assignment]

    @property
    def is_here(self) -> bool:
        """Whether this is the process that is watched rather than one that it forked."""
        return os.getpid() == self._process

    def too_early(self, done: int, needed: int, journal: Journal) -> str:
        """What to say of a script that ended itself after `done` steps."""
        read = list(dict.fromkeys(each.where for each in journal.assumed.values() if each.code.startswith("stand-in") and each.where))
        remedy = "let it run longer, or ask for fewer with --steps and --warmup"
        if read:
            remedy = f"it read values that stand-ins took the place of ({', '.join(read[:3])}): let it go on whatever they are"
        return f"the script ended after {done} steps of its optimizer, {needed} are needed{self._called}: {remedy}"

    def _in_thread(self, error: Any) -> None:
        """An exception that a line of the script raised in a thread ends the emulation: others may wait for that thread for ever."""
        if self.is_here and line_of_error(error.exc_traceback):
            self._fail(error.exc_type, error.exc_value, error.exc_traceback)
        threading.__excepthook__(error)


def leave(status: int) -> None:
    """End the process at once, so that nothing after the recorded steps is done for nothing, and nothing is saved."""
    sys.stdout.flush()
    (sys.__stderr__ or sys.stderr).flush()
    _leave(status)
