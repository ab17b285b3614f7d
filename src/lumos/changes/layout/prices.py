"""What every task of a measured job takes, as a multiple of what it took. What changes make of an operator's time is in `reprice`.

A price is measured × model(after) / model(before): the measured time holds what the job's own libraries and machine make of an operator,
and only the change is modelled. Changes follow one another, so the multiples are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Int64

Factors = NDArray[np.float64]
#: Logarithm of the factor from which a scaled time has the whole interval of the model.
WHOLE_INTERVAL = log(4.0)


class Ratio(NamedTuple):
    """By what a duration is multiplied: best estimate and ends of the 80 % interval. fixed: ns of the duration that do not change.
    modelled: what an accelerator's model says of the operator before the change, ns; 0 where none does. launch: the high end of that where
    it multiplies nothing and is the launch most of all, else 0. work: by what the work is multiplied."""

    best: float
    low: float
    high: float
    fixed: float = 0.0
    modelled: float = 0.0
    launch: float = 0.0
    work: float = 1.0

    @property
    def far(self) -> bool:
        """Whether an accelerator's model makes it more than four times as long or as short, so that a measured call says less of it."""
        return self.modelled > 0 and self.best > 0 and abs(log(self.best)) > WHOLE_INTERVAL

    def carried(self, measured_ns: float) -> Ratio:
        """The factor where a call takes `measured_ns`, which is `slower` times as long as modelled.

        Where the model says that it is bound by its launch, and it took longer than a launch does, the rest is work that the model does not
        know: it grows with the work, and the interval holds the model's factor for it, too. Not so a multiplication, which takes as long
        for more rows until these fill the device.

        Up to a factor of four the new time is `slower` times the model's, too. Beyond, it is slower ** (log 4 / |log best|) times, which
        goes towards the model's; the interval reaches as far to either side as from there to `slower`, but not beyond the model. Where
        `slower` itself is beyond four, it takes the place of the four, so that more work never takes less time.
        """
        if not self.far or measured_ns <= 0:
            beyond = max(0.0, 1 - self.launch / measured_ns) if self.launch and measured_ns > 0 else 0.0
            best, low, high = ((1 - beyond) * end + beyond * self.work for end in self[:3])
            return self._replace(best=best, low=min(self.low, low), high=max(self.high, high))
        slower = log(measured_ns / self.modelled)
        share = min(1.0, max(WHOLE_INTERVAL, abs(slower)) / abs(log(self.best)))
        middle, far, near = (exp((part - 1) * slower) for part in (share, max(2 * share - 1, 0.0), 1.0))
        return self._replace(best=self.best * middle, low=self.low * min(far, near), high=self.high * max(far, near))


def exactly(times: float) -> Ratio:
    """A ratio that is known."""
    return Ratio(times, times, times)


#: The ratio of what is no longer done.
GONE = exactly(0.0)


def around(times: float, spread: float, fixed: float = 0.0) -> Ratio:
    """A ratio that may be larger or smaller by the factor 1 + spread."""
    return Ratio(times, times / (1 + spread), times * (1 + spread), fixed)


def growing(times: float, spread: float, fixed: float) -> Ratio:
    """A ratio whose interval is the wider the more changes, up to `spread` at a factor of four."""
    return around(times, spread * min(1.0, abs(log(times)) / WHOLE_INTERVAL) if times > 0 else spread, fixed)


@dataclass(frozen=True, slots=True, eq=False)
class TaskPrices:
    """duration: int64[n], the measured time of every task, ns. best, low, high: float64[n], by what it is multiplied, and the ends of the
    80 % interval. A change works on a copy of its own (`copy`), by the methods below."""

    duration: Int64
    best: Factors
    low: Factors
    high: Factors

    @classmethod
    def measured(cls, duration: Int64) -> TaskPrices:
        """Every task takes what was measured."""
        ones = np.ones(len(duration))
        return cls(duration, ones, ones, ones)

    @property
    def columns(self) -> tuple[Factors, Factors, Factors]:
        return self.best, self.low, self.high

    @property
    def ns(self) -> Factors:
        """What every task takes, float64[n] ns."""
        return self.duration * self.best

    def copy(self) -> TaskPrices:
        """The same prices, to be changed."""
        return TaskPrices(self.duration, *(column.copy() for column in self.columns))

    def times(self, tasks: Int64 | Mask, ratio: Ratio) -> TaskPrices:
        """The same prices, but that tasks take `ratio` times as long."""
        out = self.copy()
        out.multiply(tasks, ratio)
        return out

    def multiply(self, tasks: Int64 | Mask | int | list[int], ratio: Ratio) -> None:
        """Let tasks take `ratio` times as long, but for the part of their measured time that is fixed."""
        fixed = np.minimum(ratio.fixed / np.maximum(self.duration[tasks], 1), 1.0)
        for column, times in zip(self.columns, ratio[:3], strict=True):
            column[tasks] *= fixed + (1 - fixed) * times

    def combine(self, tasks: Int64, other: TaskPrices) -> None:
        """Let tasks take as many times as long as `other` says of each of them."""
        for column, times in zip(self.columns, other.columns, strict=True):
            column[tasks] *= times

    def hold(self, other: TaskPrices) -> None:
        """Let the intervals of all tasks hold those of other prices."""
        np.minimum(self.low, other.low, out=self.low)
        np.maximum(self.high, other.high, out=self.high)

    def reach(self, tasks: Int64, times: float) -> None:
        """Let the intervals of tasks reach to `times` their time, on the side where that is."""
        self.low[tasks] *= min(times, 1.0)
        self.high[tasks] *= max(times, 1.0)
