from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lumos.trace.table import Int8, Int32, Int64

ENUMS: Mapping[str, str]

class Cycle:
    """Tasks that wait for each other: tasks[i] waits for the one after it, the last for the first, by a dependency of kinds[i].
    missing: of the first rendezvous among them, the members that never arrive. False where there are none."""

    def __init__(self, tasks: Sequence[int], kinds: Sequence[int], missing: Sequence[int]) -> None: ...
    @property
    def tasks(self) -> list[int]: ...
    @property
    def kinds(self) -> list[int]: ...
    @property
    def missing(self) -> list[int]: ...
    def __bool__(self) -> bool: ...

class Tables:
    """The columns of a graph, as the loops read them: simulate/tables.py makes and checks them."""

    def __init__(
        self,
        duration: Int64,
        processor: Int32,
        kind: Int8,
        pred_offset: Int64,
        pred: Int32,
        pred_kind: Int8,
        rank_of: Int32,
        is_stream: Int8,
        device_of: Int32,
        devices: int,
        lag: Int64,
        release_task: Int32,
        release_time: Int64,
        rendezvous_offset: Int64,
        rendezvous_task: Int32,
        queue_depth: Int32,
        wait_task: Int32,
        wait_target: Int32,
        occupancy_task: Int32,
        occupancy_share: NDArray[np.float32],
        occupancy_hold: Int64,
        ignored: int,
    ) -> None: ...
    def check(self) -> str:
        """What is wrong with the columns, by name and index; empty where nothing is."""

class FrozenGraph:
    """A graph of n tasks with every dependency as one of m edges. Its arrays are read-only; what its methods fill is given to
    them, and ValueError says that an array does not fit."""

    @property
    def cycle(self) -> Cycle:
        """Why there is no order; the columns are not whole then."""
    @property
    def order(self) -> Int32:
        """int32[n]: the tasks in a topological order, the members of a rendezvous side by side."""
    @property
    def pred_offset(self) -> Int64:
        """int64[n + 1]: where in `pred` the predecessors of each position in the order begin."""
    @property
    def pred(self) -> Int32:
        """int32[m]: predecessors, as task ids."""
    @property
    def pred_kind(self) -> Int8:
        """uint8[m]: the kinds of these dependencies."""
    def sweep(self, duration: Int64, start: Int64, end: Int64) -> None:
        """Fill the starts and ends of the tasks, ns, with their durations given; all int64[n]."""
    def sweep_many(self, durations: Int64, makespan: Int64, ends: Int64) -> None:
        """Fill the makespans int64[k] of k configurations, durations int64[k, n], and the ends int64[k, n] of all tasks where room
        is given for them (else int64[0, n])."""
    def sweep_groups(self, duration: Int64, source: Int32, group: Int32, first: Int64, last: Int64) -> None:
        """Fill, by group, the earliest start (the largest int64 where it has no task) and the latest end (the smallest), ns, where the task
        at each position in `order` takes duration[source] and is of `group` (-1 for none), int32[n]."""
    def sweep_scaled(
        self, scaled: NDArray[np.uint16], factors: NDArray[np.float64], group: Int32, first: Int64, last: Int64
    ) -> None:
        """The same for k configurations, in which the graph's own durations are multiplied by factors[k, kinds] by scaled[n]; int64[k,
        groups]."""
    def causes(self, end: Int64, task: Int32, kind: Int8, ready: Int64) -> None:
        """Fill, by task: the predecessor whose end plus delay is the latest (the first of equals), the kind of that dependency, and that
        time; -1, 0 and 0 without one. end: int64[n], of a run."""
    def latest_ends(
        self, sequence: Int32, set: Int32, holder: Int32, early: Int64, start: Int64, began: Int64, end: Int64, late: Int64
    ) -> None:
        """Lower `late`, by task the time by which it must end on its own account (the largest int64: none), to what follows from it.

        All are [n]. sequence: positions in `order`, each after all that it waits for, the members of a rendezvous as neighbours. By
        task: set, its rendezvous (-1 none); holder, whose share of the SMs it waited for (-1 none); start, end and began, when its own
        work began, in a rendezvous with the last arrival. early: by holder, how long before its end it let go. An edge that the run
        refutes, because the task started before the edge would let it, binds nothing.
        """

def simulate(tables: Tables, duration: Int64, start: Int64, end: Int64) -> Cycle:
    """Run the event loop: fill the starts and ends of the tasks, ns, with their durations given; all int64[n]. The cycle is empty
    unless the run could not finish."""

def freeze(tables: Tables) -> FrozenGraph:
    """All dependencies as edges, with the order on every processor fixed (ascending id)."""
