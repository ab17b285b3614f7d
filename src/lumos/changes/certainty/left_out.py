"""What changes of durations leave of a job: with next to nothing left there is no step to speak of.

A pattern that matches more than was meant (`--drop '*'`), or a factor of next to nothing, takes away the job itself. What then remains of
a step is gaps, latencies and the offsets with which threads began, which is no job's time: it is an error. Where only the devices or only
the threads of a rank are left without work, the step is a bound: no faster device, or no faster CPU, could make it shorter. The answer
says that it is no more than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import LumosError
from lumos.graph.table import Evidence
from lumos.units import duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: The code of the finding.
SIDE_LEFT_OUT = "side-left-out"
#: A rank of whose work a smaller share remains does not do its part of the job any more: no device or code is so much faster. From V100 to
#: B200 the fastest arithmetic of a device became eighteen times as fast (`cost/data/clusters`).
LEAST_LEFT = 0.02


class _Side(NamedTuple):
    """The devices or the threads of the ranks. was, remains: int64[ranks], the time of their work before and after, ns."""

    name: str
    bound: str
    was: Int64
    remains: Int64

    @property
    def gone(self) -> NDArray[np.bool_]:
        """The ranks that had work on this side and have next to none, bool[ranks]."""
        gone: NDArray[np.bool_] = (self.was > 0) & (self.remains < LEAST_LEFT * self.was)
        return gone


def check_left(before: Graph, after: Graph, words: str) -> None:
    """Raise LumosError where changed durations leave a rank of `before` next to no work, neither on its devices nor on its threads. after:
    the same graph with them. words: what was changed."""
    sides = _sides(before, after)
    lost = np.all([side.gone | (side.was == 0) for side in sides], axis=0) & np.any([side.gone for side in sides], axis=0)
    for i in np.flatnonzero(lost)[:1].tolist():
        whole, left = (sum(int(time[i]) for time in times) for times in zip(*((s.was, s.remains) for s in sides), strict=True))
        raise LumosError(
            f"{words}: of {duration(whole)} of work on rank {before.ranks[i]}, {duration(left)} would be left: that is no job whose step"
            " could be told. Name the work that would not be needed, or a factor that other code or another device could reach"
        )


def sides_left_out(before: Graph, after: Graph) -> tuple[Evidence, ...]:
    """The finding that next to no work is left on the devices, or on the threads, of a rank; () where there is some, or was none."""
    for side in _sides(before, after):
        for rank in np.flatnonzero(side.gone)[:1].tolist():
            where = f"no work is left on the {side.name} of rank {before.ranks[rank]}"
            message = f"{where}: the step is the shortest that its {side.bound} would allow, which no job reaches"
            return (Evidence(SIDE_LEFT_OUT, message, Grade.LIMITED),)
    return ()


def _sides(before: Graph, after: Graph) -> tuple[_Side, _Side]:
    position = {rank: i for i, rank in enumerate(before.ranks)}
    key = np.array([2 * position[p.rank] + p.is_stream for p in before.processors], np.int64)[before.processor]
    was, remains = (np.bincount(key, graph.duration, 2 * len(position)).astype(np.int64).reshape(-1, 2).T for graph in (before, after))
    return _Side("devices", "CPU", was[1], remains[1]), _Side("threads", "devices", was[0], remains[0])
