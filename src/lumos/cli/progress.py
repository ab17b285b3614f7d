"""Long work on a terminal: the stage, how far it has come, at which rate, and the time that is left.

Everything goes to standard error, and only where that is a terminal. Nothing is shown of work that is done within PATIENCE_S; so short
commands do not even load what would draw it.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from lumos.units import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

#: Nothing is shown for the first so many seconds of a stage.
PATIENCE_S = 0.3


class Shown:
    """A watcher that shows on standard error which stage is running, once the outermost one has taken longer than PATIENCE_S."""

    def __init__(self) -> None:
        self._stages: list[str] = []
        self._since = 0.0
        self._counted = (0, 0)
        self._unit = ""
        self._left = ""
        self._drawn: Progress | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    @property
    def stage(self) -> str:
        """The stage and the part of it that is running."""
        return ": ".join(self._stages[:2])

    def began(self, name: str) -> None:
        self._stages.append(name)
        if len(self._stages) == 1:
            self._since, self._counted = time.monotonic(), (0, 0)
            self._wait()
        self._update()

    def ended(self) -> None:
        if not self._left and isinstance(sys.exc_info()[1], KeyboardInterrupt):
            self._left = f" while {self.stage}, after {time.monotonic() - self._since:.1f} s"
        self._stages.pop()
        self._update()
        if not self._stages:
            self.leave()

    def advanced(self, done: int, total: int, unit: str) -> None:
        """So much of the outermost stage is done."""
        self._counted, self._unit = (done, total), unit
        self._update()

    def leave(self) -> None:
        """Take what is drawn off the terminal."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            drawn, self._drawn = self._drawn, None
        if drawn is not None:
            drawn.stop()

    def interrupted(self) -> str:
        """What to say where the user interrupts: what was going on, and that no output is half-written."""
        return f"interrupted{self._left}; no output is left half-written"

    def rate(self, speed: float) -> str:
        """What is done in a second."""
        return size(speed) + "/s" if self._unit == "bytes" else f"{speed:,.0f} {self._unit}/s"

    def _wait(self) -> None:
        if sys.stderr.isatty():
            self._timer = threading.Timer(PATIENCE_S, self._draw)
            self._timer.daemon = True
            self._timer.start()

    def _update(self) -> None:
        drawn = self._drawn
        if drawn is not None and self._stages:
            done, total = self._counted
            drawn.update(drawn.task_ids[0], description=self.stage, completed=done, total=total or None)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        class Rate(ProgressColumn):
            def render(self, task: Any) -> str:
                return SHOWN.rate(task.speed) if task.total and task.speed else ""

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
        )
        with self._lock:
            if not self._stages:
                return
            self._drawn = Progress(*columns, console=Console(stderr=True), transient=True)
            self._drawn.add_task(self.stage, total=None)
            self._drawn.start()
        self._update()


#: The one display of this process.
SHOWN = Shown()


def progress(stage: str, unit: str) -> Callable[[int, int], None] | None:
    """A function of (done, total) that shows this stage until everything is done; None where nobody would see it.

    unit: what is counted: "bytes", or a plural such as "plans".
    """
    show = stages(unit)
    return None if show is None else partial(show, stage)


def stages(unit: str) -> Callable[[str, int, int], None] | None:
    """A function of (stage, done, total) that shows one stage after the other; a total of 0 means that nothing is counted.

    None where nobody would see it. unit: what is counted, a plural such as "plans".
    """
    if not sys.stderr.isatty():
        return None
    running = ended = ""

    def show(stage: str, done: int, total: int) -> None:
        nonlocal running, ended
        if stage == ended and done:  # several threads count, and the last to report need not be the last that was done
            return
        if running != stage:
            if running:
                SHOWN.ended()
            SHOWN.began(stage)
            running, ended = stage, ""
        SHOWN.advanced(done, total, unit)
        if done >= total > 0:
            SHOWN.ended()
            running, ended = "", stage

    return show
