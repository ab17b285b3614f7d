"""How long steps take with the profiler and without, from the calls that end them."""

from __future__ import annotations

import statistics
import time

#: Untouched steps to see before they are compared with recorded ones; the first of a loop is never representative.
ENOUGH = 3


class Pace:
    """Times steps 1, 2, … of a loop: untouched before `wait` and after `end`, recorded from `begin` to `end`.

    Times are from one call of `lap` to the next, less what `begin` leaves out: the work of the collector itself.
    """

    def __init__(self, wait: int, begin: int, end: int) -> None:
        self._wait, self._begin, self._end = wait, begin, end
        self._started: float | None = None
        self._done = 0
        self._traced: list[float] = []
        self._untraced: list[float] = []

    def begin(self) -> None:
        """The loop goes on: the time since the last lap was the collector's."""
        self._started = time.perf_counter()

    def lap(self) -> bool:
        """A step has ended. Whether enough steps of both kinds are known now."""
        now = time.perf_counter()
        self._done += 1
        if self._started is not None:
            if self._begin < self._done <= self._end:
                self._traced.append(now - self._started)
            elif 1 < self._done <= self._wait or self._done > self._end + 1:
                self._untraced.append(now - self._started)
        self._started = now
        return self._done > self._end and len(self._untraced) >= ENOUGH and bool(self._traced)

    def medians(self) -> tuple[float, float]:
        """Seconds of a recorded and of an untouched step."""
        return statistics.median(self._traced), statistics.median(self._untraced)

    @property
    def overhead(self) -> float | None:
        """By how much recorded steps are longer, as a fraction of untouched ones; None over nothing."""
        if not self._traced or not self._untraced:
            return None
        traced, untraced = self.medians()
        return traced / untraced - 1
