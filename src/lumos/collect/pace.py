"""How long steps take with and without the profiler, measured between the calls that end them."""

from __future__ import annotations

import math
import statistics
import time

#: The least number of steps without the profiler to compare with recorded ones. The first of a loop does not count, because it is
#: never representative.
_ENOUGH = 3


#: Standard deviation of the median of n normally distributed values, times √n, in units of theirs: √(π/2), for large n.
_OF_MEDIAN = math.sqrt(math.pi / 2)


class Pace:
    """Times steps 1, 2, … of a loop: without the profiler up to `wait` and after `end`, recorded from `begin` to `end`.

    A step is timed from one call of `lap` to the next, or from a call of `begin` in between, which leaves out the collector's own
    work.
    """

    def __init__(self, wait: int, begin: int, end: int) -> None:
        self._wait, self._begin, self._end = wait, begin, end
        self._started: float | None = None
        self._done = 0
        self._traced: list[float] = []
        self._untraced: list[float] = []

    def begin(self) -> None:
        """Leave out the time since the last lap, which the collector itself used."""
        self._started = time.perf_counter()

    def lap(self) -> bool:
        """Note that a step has ended. Returns whether enough steps with and without the profiler are known now."""
        now = time.perf_counter()
        self._done += 1
        if self._started is not None:
            if self._begin < self._done <= self._end:
                self._traced.append(now - self._started)
            elif 1 < self._done <= self._wait or self._done > self._end + 1:
                self._untraced.append(now - self._started)
        self._started = now
        return self._done > self._end and len(self._untraced) >= _ENOUGH and bool(self._traced)

    def medians(self) -> tuple[float, float]:
        """Median seconds of a recorded step, and of one without the profiler."""
        return statistics.median(self._traced), statistics.median(self._untraced)

    @property
    def overhead(self) -> float | None:
        """How much longer recorded steps are, as a fraction of those without the profiler; None where either are missing."""
        if not self._traced or not self._untraced:
            return None
        traced, untraced = self.medians()
        return traced / untraced - 1

    @property
    def noise(self) -> float | None:
        """The standard error of `overhead`, from how much steps of either kind differ; None where there is one of a kind, or none.

        An overhead of less than about twice its noise cannot be told from none.
        """
        if min(len(self._traced), len(self._untraced)) < 2:
            return None
        variances = [statistics.variance(seconds) / len(seconds) for seconds in (self._traced, self._untraced)]
        return _OF_MEDIAN * math.sqrt(sum(variances)) / statistics.median(self._untraced)
