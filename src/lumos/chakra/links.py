"""The links of a network as an analytical simulator sees them: dimensions, hops, and the time of one message.

A network has one to several dimensions, the innermost first. Ranks are numbered along the first dimension, then along the
second. A message of n bytes takes n / bandwidth plus the latency of its hops, whatever else is on the links, and whole
nanoseconds, rounded down. Two ranks that differ in several dimensions exchange messages in the first of these alone.

Source: the congestion-unaware back-end of ASTRA-sim (github.com/astra-sim/astra-network-analytical).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

#: Bytes per ns of 1 GiB/s, in which networks are given.
GIB = 2**30 / 1e9


class Topology(StrEnum):
    """How the ranks of one dimension are joined."""

    RING = "Ring"
    FULLY_CONNECTED = "FullyConnected"
    SWITCH = "Switch"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network. npus: ranks along it. bandwidth: GiB/s of a link. latency: ns of a hop."""

    npus: int
    bandwidth: float
    latency: float
    topology: Topology = Topology.SWITCH

    def hops(self, distance: int) -> int:
        """Hops between two ranks that are `distance` places apart: through a switch two, along a ring the shorter way."""
        if self.topology is Topology.RING:
            return min(distance % self.npus, -distance % self.npus)
        return 2 if self.topology is Topology.SWITCH else 1

    def message(self, nbytes: float, distance: int = 1) -> int:
        """ns that a message of `nbytes` takes over `distance` places."""
        return int(self.hops(distance) * self.latency + nbytes / (self.bandwidth * GIB))


@dataclass(frozen=True, slots=True)
class Links:
    """The dimensions of a network, the innermost first."""

    dimensions: tuple[Dimension, ...]

    @property
    def npus(self) -> int:
        """How many ranks the network joins."""
        return prod(d.npus for d in self.dimensions)

    def message(self, nbytes: float, source: int, target: int) -> int:
        """ns that a message between two ranks takes, in the first dimension in which they differ."""
        for dimension in self.dimensions:
            distance = target % dimension.npus - source % dimension.npus
            if distance:
                return dimension.message(nbytes, distance)
            source, target = source // dimension.npus, target // dimension.npus
        return self.dimensions[-1].message(nbytes)  # the network has fewer ranks than the set: its outermost links
