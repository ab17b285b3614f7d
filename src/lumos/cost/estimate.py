"""What every cost function returns: a time with its interval, what bounds it, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lumos.result import Described
from lumos.units import duration

if TYPE_CHECKING:
    from lumos.diagnostics import Diagnostic

_Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class Bound(IntEnum):
    """What limits the time: the resource that would have to be faster."""

    NOTHING = 0  # no work
    COMPUTE = 1  # arithmetic units
    MEMORY = 2  # device memory
    CACHE = 3  # on-chip traffic (L2)
    LATENCY = 4  # fixed costs: launch, prologue, hops
    LINK = 5  # links within a node
    FABRIC = 6  # the network between nodes
    HOST = 7  # processor cores of the host


class ModelledTime(NamedTuple):
    """What the formula of a cost model says of each shape: seconds, what bounds them (`Bound`), and the seconds of the roofline.

    Arrays of the shapes' shape, float64 but for `bound`.
    """

    seconds: Float64
    bound: Float64
    roofline: Float64


#: Where an estimate came from, best first.
MEASURED, SCALED, MODELLED = "measured", "scaled", "modelled"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate(Described):
    """A duration with its 80 % interval. All fields but `source` and `diagnostics` are arrays of one common shape.

    time, low, high: int64 nanoseconds; low ≤ time ≤ high. bound_by: uint8 `Bound`. roofline: int64 nanoseconds that
    the same work needs at the peak rates of the datasheet, so that roofline / time is the fraction of peak. extrapolated:
    bool, whether the input lies outside the range that the coefficients were fitted on. source: `MEASURED`, `SCALED` or
    `MODELLED`.
    """

    time: _Int64
    low: _Int64
    high: _Int64
    bound_by: NDArray[np.uint8]
    roofline: _Int64
    extrapolated: NDArray[np.bool_]
    source: str = MODELLED
    diagnostics: tuple[Diagnostic, ...] = ()

    def described(self) -> str:
        """The time with its interval and what bounds it; of several, how many there are."""
        if self.time.size != 1:
            return f"{self.time.size:,} estimates of shape {self.time.shape}, {self.source}"
        time, low, high = (duration(int(values.item())) for values in (self.time, self.low, self.high))
        share = f"{self.fraction_of_peak.item():.1%} of peak"
        return f"{time} (80 % interval {low} to {high}), bound by {Bound(int(self.bound_by.item())).name.lower()}, {share}, {self.source}"

    @property
    def fraction_of_peak(self) -> Float64:
        """Roofline time / time; 1 where there is no work."""
        return np.where(self.time > 0, self.roofline / np.maximum(self.time, 1), 1.0)

    def bounds(self) -> Any:
        """Names of what bounds each entry ("compute", "memory", …): a nested list, or one name for a single estimate."""
        names = np.array([b.name.lower() for b in Bound])
        return names[self.bound_by].tolist()

    def __add__(self, other: Estimate) -> Estimate:
        """One after the other. The intervals add, because a model errs the same way on similar work: errors are not independent."""
        longer = self.time >= other.time
        order = (MEASURED, SCALED, MODELLED)
        return Estimate(
            self.time + other.time,
            self.low + other.low,
            self.high + other.high,
            np.where(longer, self.bound_by, other.bound_by),
            self.roofline + other.roofline,
            self.extrapolated | other.extrapolated,
            max(self.source, other.source, key=order.index),
            tuple(dict.fromkeys(self.diagnostics + other.diagnostics)),
        )

    def scaled(self, factor: ArrayLike) -> Estimate:
        """Times, interval and roofline multiplied by `factor` ≥ 0 (repeats of one piece of work)."""
        f = np.asarray(factor, float)
        return replace(
            self,
            time=nanoseconds(self.time * f),
            low=nanoseconds(self.low * f),
            high=nanoseconds(self.high * f),
            roofline=nanoseconds(self.roofline * f),
            bound_by=np.broadcast_to(self.bound_by, np.broadcast_shapes(self.bound_by.shape, f.shape)),
            extrapolated=np.broadcast_to(self.extrapolated, np.broadcast_shapes(self.extrapolated.shape, f.shape)),
        )


def nanoseconds(values: ArrayLike) -> _Int64:
    """Nearest whole nanosecond, as int64 of the same shape."""
    return np.asarray(np.rint(values)).astype(np.int64)
