"""Changes that leave no job: blocks that fit in no order, more tasks than a machine holds, or next to nothing.

A pattern that matches more than was meant (`--drop '*'`), or a factor of next to nothing, takes away the job itself. What then remains of
a step is gaps, latencies and the offsets with which threads began, which is no job's time: it is an error. Where only the devices or only
the threads of a rank are left without work, the step is a bound: no faster device, or no faster CPU, could make it shorter.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import GraphError, LumosError
from lumos.graph.table import Evidence
from lumos.units import duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: The most tasks of a changed job: 25 million take some 8 GB and one to two minutes.
MOST_CHANGED = 25_000_000
#: Memory for each task of a changed job, bytes, with the loop in which it is simulated (measured on jobs of 6 and 24 million tasks).
BYTES_A_TASK = 340


@contextmanager
def schedulable(changes: str) -> Iterator[None]:
    """Raise LumosError where a job that was put together anew has no schedule. changes: what was changed.

    The ranks of such a recording were cut in different ways, so that each repeats, leaves out or moves other collectives than its peers.
    """
    try:
        yield
    except GraphError as error:
        lines = str(error).splitlines()
        why = "; ".join(line.strip() for line in (lines[0], *(line for line in lines[1:] if "different orders" in line)))
        raise LumosError(
            f"{changes}: the changed job could not run ({why}): the blocks of this recording, cut on each rank, do not fit together in"
            " another order; lumos inspect --blocks shows them"
        ) from error


def check_size(tasks: int, wanted: Mapping[str, int], measured: Mapping[str, int]) -> None:
    """Raise LumosError where the changed job would have more than MOST_CHANGED tasks, with what it would take.

    tasks: of the measured job. wanted: the settings that are whole numbers. measured: the counts of the measured job that multiply its
    tasks, by key.
    """
    changed = tasks
    for key, count in measured.items():
        changed = -(-changed * wanted.get(key, count) // count) if count else changed
    if changed <= MOST_CHANGED:
        return
    words = ", ".join(f"{key}={wanted[key]}" for key in measured if key in wanted)
    raise LumosError(
        f"--set {words}: the changed job would have about {changed:,} tasks instead of {tasks:,}, and take some"
        f" {changed * BYTES_A_TASK / 1e9:,.0f} GB of memory; at most {MOST_CHANGED:,} tasks are computed. Ask for two smaller values: the"
        " step grows in proportion to what is repeated"
    )


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
