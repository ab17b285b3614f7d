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
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lumos.trace.table import Int64

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

    def messages(self, nbytes: float, distance: Int64) -> Int64:
        """ns that messages of `nbytes` take over so many places: a switch has two hops, a ring as many as the shorter way has places."""
        hops: Int64 = np.full(distance.shape, 2 if self.topology is Topology.SWITCH else 1)
        if self.topology is Topology.RING:
            hops = np.minimum(distance % self.npus, -distance % self.npus)
        return (hops * self.latency + nbytes / (self.bandwidth * GIB)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Links:
    """The dimensions of a network, the innermost first."""

    dimensions: tuple[Dimension, ...]

    @property
    def npus(self) -> int:
        """How many ranks the network joins."""
        return prod(d.npus for d in self.dimensions)

    def messages(self, nbytes: float, source: Int64, target: Int64) -> Int64:
        """ns that messages take between ranks, each in the first dimension in which the two differ."""
        out = self.dimensions[-1].messages(nbytes, np.ones(source.shape, np.int64))  # of a set with more ranks: the outermost links
        first = np.ones(source.shape, bool)
        for dimension in self.dimensions:
            distance = target % dimension.npus - source % dimension.npus
            here = first & (distance != 0)
            out[here] = dimension.messages(nbytes, distance[here])
            first &= distance == 0
            source, target = source // dimension.npus, target // dimension.npus
        return out
