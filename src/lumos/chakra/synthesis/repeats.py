"""Find the part of a rank's program that repeats: its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from lumos.trace.table import Int64

#: A unit must repeat at least so often to be a layer.
_LEAST = 3
#: A layer has so many nodes at least in each pass over it.
LAYER_NODES = 8


class RepeatedRegion(NamedTuple):
    """`times` equal units of `period` entries, from the entry `start` of a sequence."""

    start: int
    period: int
    times: int


def layer_regions(labels: Int64, layers: int) -> list[RepeatedRegion]:
    """The stretches that may be passes over so many layers, in order; each has a unit of its own, the shortest that repeats.

    labels: one per node of a rank. Passes differ (a backward pass runs other nodes than a forward pass), and what repeats around them,
    such as microbatches, has longer units. What repeats within a layer is too short to be a pass. Outside of the passes, what repeats just
    as often as there are layers counts too, such as the gathers of their parameters.
    """
    taken = np.zeros(len(labels), bool)
    out = []
    for period in range(1, len(labels) // _LEAST + 1):
        for found in _of_period(labels, period):
            whole = slice(found.start, found.start + found.period * found.times)
            if found.period * found.times >= LAYER_NODES * layers and not taken[whole].any():
                taken[whole] = True
                out.append(found)
    for period in range(1, LAYER_NODES):
        for found in _of_period(labels, period):
            whole = slice(found.start, found.start + found.period * found.times)
            if found.times == layers and not taken[whole].any():
                taken[whole] = True
                out.append(found)
    return sorted(out)


def _of_period(labels: Int64, period: int) -> list[RepeatedRegion]:
    """Maximal stretches that are periodic with this period, LEAST times or more."""
    same = np.concatenate(([False], labels[period:] == labels[:-period], [False]))
    edges = np.flatnonzero(np.diff(same.astype(np.int8)))
    out = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        count = (end - begin + period) // period
        if count >= _LEAST:
            out.append(RepeatedRegion(begin, period, count))
    return out
