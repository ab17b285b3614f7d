"""Tasks and the dependencies between them, as columns.

The order of tasks on one processor is implicit: a CPU thread runs its tasks in ascending id, and a stream runs its
tasks in the order in which their launches enqueue them (ascending id where a graph is frozen). All other dependencies
are edges from the end of one task to the start of another, stored as predecessors in CSR form. An edge has no lag of
its own: the delay that it adds is a constant of its kind and of the successor's rank (`lag`), because a replay may take
only a few named constants per rank from a trace, and nothing per task.

Three dependencies are known only while simulating and have tables of their own: a return that waits for what is queued
on a stream at that time (`waits`), a launch that waits for a place in the queue (`queue_depth`), and kernels that share
the SMs (`occupancy`). `simulation.freeze` turns the first two into edges where the order on every processor is fixed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from lumos.result import Described
from lumos.trace.table import ABSENT
from lumos.units import count
from lumos.vocabulary import CollectiveKind, Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.diagnostics import Diagnostic
    from lumos.trace.table import Int8, Int32, Int64, Job


class Kind(IntEnum):
    """What a task is."""

    OPERATOR = 0  # self-time of an operator (or annotation) on a CPU thread
    HOST = 1  # CPU time between operators: Python, data loading
    LAUNCH = 2  # a runtime call that enqueues device work
    RUNTIME = 3  # any other runtime call
    SYNC = 4  # a synchronising call: its own cost, without the wait
    RETURN = 5  # the moment a blocking call returns, when what it waits for has ended: no duration
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    COLLECTIVE = 9  # a collective or point-to-point transfer, on a stream or (gloo) on a CPU thread


#: Kinds that run on a device stream. (COLLECTIVE runs on either: ask the processor.)
DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COLLECTIVE)


class Dependency(IntEnum):
    """Why one task waits for another. COPY is a synchronisation with a return constant of its own. OCCUPANCY is what the streams of a
    device share: its SMs (`Graph.occupancy`) and, as an edge, the command processor that dispatches their kernels."""

    THREAD_ORDER = 0
    HAND_OFF = 1
    LAUNCH = 2
    STREAM_ORDER = 3
    STREAM_WAIT = 4
    SYNC = 5
    COPY = 6
    QUEUE_DEPTH = 7
    OCCUPANCY = 8
    RENDEZVOUS = 9
    DATA = 10

    @property
    def word(self) -> str:
        """Its name in text and JSON, such as "hand-off"."""
        return self.name.lower().replace("_", "-")


#: The names on the command line (`replay --ignore KIND`) and the dependencies that each names.
DEPENDENCY_NAMES: Mapping[str, tuple[Dependency, ...]] = {
    "thread-order": (Dependency.THREAD_ORDER,),
    "hand-off": (Dependency.HAND_OFF,),
    "launch": (Dependency.LAUNCH,),
    "stream-order": (Dependency.STREAM_ORDER,),
    "stream-wait": (Dependency.STREAM_WAIT,),
    "sync": (Dependency.SYNC, Dependency.COPY),
    "queue-depth": (Dependency.QUEUE_DEPTH,),
    "occupancy": (Dependency.OCCUPANCY,),
    "rendezvous": (Dependency.RENDEZVOUS,),
    "data": (Dependency.DATA,),
}


@dataclass(frozen=True, slots=True)
class Processor:
    """What runs tasks one at a time: a CPU thread or a device stream."""

    rank: int  # global rank
    is_stream: bool
    name: str  # "thread 1234 (python)" or "stream 7"
    device: int = -1  # device number of a stream; -1 for a thread
    stream: int = -1  # stream id of a stream; -1 for a thread
    lane: int = -1  # index into the rank's Trace.lanes for a thread; -1 if none
    timer: bool = False  # only waits, by the clock or for word from another rank: part of no step


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Returns that wait for device work which is known only while simulating.

    task[i] (kind RETURN) starts no earlier than the end of the last task enqueued, by the time its predecessor on the
    thread has started, on stream processor `target[i]`, or on every stream of the task's rank where `target[i]` is -1.
    """

    task: Int32
    target: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """How much of a device's SMs each listed kernel takes, and for how long.

    Kernel task[i] takes the fraction share[i] (0..1] of its device's SM slots from its start for hold[i] ns; it may
    start only while the shares held on its device (by other streams) sum to less than 1.
    """

    task: Int32
    share: NDArray[np.float32]
    hold: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """Facts of collective and point-to-point tasks; row i describes task[i].

    kind: index into `kinds`. nbytes: bytes of this rank's input, in recorded and in predicted jobs alike (of an all-gather, the
    rank's own part; of a message, the same number on both sides; ABSENT if unknown). group: index into `groups` (ABSENT if
    unknown). sequence: number within the group, or the tag of a message of a Chakra set (ABSENT if unknown). peer: the other rank of a
    send or receive, else ABSENT. size: ranks in the group (ABSENT if unknown); None where no group's size is known. messages: of a
    recording, what its point-to-point tasks carry, of which one may carry several: row, whether it sends, the other rank, group, bytes; ()
    once the ranks are joined. The tests hold every builder to it (`tests.graph_contract`).
    """

    task: Int32
    kind: Int32
    nbytes: Int64
    group: Int32
    sequence: Int64
    peer: Int32
    kinds: Sequence[CollectiveKind]
    groups: Sequence[str]
    size: Int32 | None = None
    messages: tuple[tuple[int, bool, int, int, int], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a kind that is no `CollectiveKind`."""
        object.__setattr__(self, "kinds", tuple(map(CollectiveKind, self.kinds)))

    def rows_of(self, *tasks: Int64) -> Int64:
        """The rows that describe these tasks, ascending."""
        return np.flatnonzero(np.isin(self.task, np.concatenate(tasks)))

    def of_kind(self, *wanted: CollectiveKind) -> NDArray[np.bool_]:
        """Which rows are of one of these kinds."""
        return np.array([kind in wanted for kind in self.kinds], bool)[self.kind]

    def members(self, row: int) -> tuple[int, ...]:
        """The ranks that the name of a row's group lists; () where it lists none, or not all of them."""
        return _listed(self.groups[self.group[row]]) if self.group[row] >= 0 else ()

    def usual_size(self, rows: Int64) -> int:
        """The usual size of the groups of these rows, of those of more than one rank; 0 where there is none."""
        groups = self.ranks[rows]
        return int(np.bincount(groups[groups > 1]).argmax()) if (groups > 1).any() else 0

    @property
    def ranks(self) -> Int32:
        """How many ranks each row's group has; ABSENT where that is unknown."""
        return np.full(len(self.task), ABSENT, np.int32) if self.size is None else self.size


@cache
def _listed(group: str) -> tuple[int, ...]:
    listed = re.search(r"\[([0-9, ]+)\]", group)
    return tuple(map(int, re.findall("[0-9]{1,9}", listed.group(1)))) if listed else ()


#: What a job does once and not in every step, by the codes of the diagnostics that name it.
ONCE = ("driver-start", "module-loading", "compilation", "autotuning")


@dataclass(frozen=True, slots=True, eq=False)
class OneOff:
    """Time that a job takes once and not in every step. task: int32[k]; share: float64[k], of each task's duration, 0 to 1. cause: int8[k],
    index into ONCE."""

    task: Int32
    share: NDArray[np.float64]
    cause: NDArray[np.int8]


#: A table of which each row describes a task.
ByTask = TypeVar("ByTask", Waits, Occupancy, Collectives, OneOff)


def rows_placed(table: ByTask | None, new_number: Int64) -> ByTask | None:
    """The rows whose tasks have a new number. new_number: int64[n], that of each task, -1 without one."""
    if table is None:
        return None
    task = new_number[table.task]
    columns: dict[str, Any] = {name: column[task >= 0] for name, column in task_columns(table)}
    return replace(table, **{**columns, "task": task[task >= 0].astype(np.int32)})


def rows_together(tables: Sequence[ByTask | None]) -> ByTask | None:
    """The rows of all tables; None where there is no table. What is no column is that of the first."""
    some = [table for table in tables if table is not None]
    if not some:
        return None
    columns: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in some]) for name, _ in task_columns(some[0])}
    return replace(some[0], **columns)


def task_columns(table: Any) -> list[tuple[str, Any]]:
    """The columns of such a table by name."""
    return [(field.name, value) for field in fields(table) if isinstance(value := getattr(table, field.name), np.ndarray)]


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of one rank as its profiler marked it (ProfilerStep#…), or the whole recording where it did not.

    start, end: ns of the mark, in the graph's time. lane: the marked thread, as `Processor.lane`; -1 where it is not known. Which tasks
    belong to the step is in `analyze.loop.spans`.
    """

    rank: int
    name: str
    start: int
    end: int
    lane: int = -1


class Evidence(NamedTuple):
    """One finding on which the trust in an answer depends.

    code: a stable kebab-case word. message: what was found, where, and what is unknown because of it. grade: the best grade that an answer
    can have all the same. share: the fraction of a step's time that it leaves unknown, as far as that can be said. Where that is all it
    does, its grade is `sound`, and what all findings together leave unknown decides (`analyze.trust`).
    """

    code: str
    message: str
    grade: Grade
    share: float = 0.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Graph(Described):
    """The dependency graph of a whole job; n tasks, m edges.

    duration: int64[n] ns. processor: int32[n], index into `processors`. kind: uint8[n] `Kind`.
    name: int32[n], index into `names`. event: int32[n], row of the rank's Trace that the task came from; -1 if none.
    pred_offset: int64[n + 1]; pred: int32[m]; pred_kind: uint8[m] `Dependency`: the predecessors of task t are
    pred[pred_offset[t]:pred_offset[t + 1]], each of which must end (plus the kind's lag) before t starts.
    CPU tasks of a rank ascend in id with their measured (or assembled) start, whatever their thread; the tasks of a
    stream ascend in id in issue order. A device task's launch is its predecessor of kind LAUNCH.
    lag: int64[ranks, len(Dependency)] ns: the constant that each kind of dependency adds, by position in `ranks`.
    gap_range: int64[ranks, 2] ns, the least and the most that the delay of STREAM_ORDER may be; the same twice where it was measured. None
    where it was on all ranks.
    release_task, release_time: tasks that may not start before a time (boundary conditions of the window).
    rendezvous_offset, rendezvous_task: CSR sets of tasks that transfer together: all of a set's members run from the
    moment the last became ready, each for its own duration.
    queue_depth: int32[ranks]; launches of one rank that may be outstanding at a time; 0 = no limit.
    measured_start, measured_end: int64[n], where the task was measured; None for assembled graphs.
    origin: absolute ns of the graph's time zero, the earliest measured start; nothing starts before it.
    unclaimed_wait_task, unclaimed_wait_time: CPU tasks, and the ns of their duration that are waiting which no rule explained.
    one_off: the time that is taken once, such as to load code; None without any.
    waiting_unknown: collective tasks whose duration may still hold waiting, because peers were not recorded or not found.
    steps: the training steps of every rank, by rank and start; empty for assembled graphs, which are one step. steps_alone: whether the
    times of one step say nothing about those of another, as in a recording of whole operations.
    ignored: dependencies switched off (`--ignore`).
    left_out: bool[n], tasks that a change takes out of every step, with all that they wait for (`graph.concatenate`); None for none.
    evidence: what the recordings say against trusting an answer (`graph.evidence`, `graph.joined.one_job`).
    job: what `graph.build` made it of; None of every graph that is made in another way, also by `dataclasses.replace`.
    """

    ranks: tuple[int, ...]
    processors: tuple[Processor, ...]
    names: Sequence[str]
    duration: Int64
    processor: Int32
    kind: Int8
    name: Int32
    event: Int32
    pred_offset: Int64
    pred: Int32
    pred_kind: Int8
    lag: Int64
    gap_range: Int64 | None = None
    release_task: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    release_time: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    rendezvous_offset: Int64 = field(default_factory=lambda: np.zeros(1, np.int64))
    rendezvous_task: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    queue_depth: Int32 | None = None
    waits: Waits | None = None
    occupancy: Occupancy | None = None
    collectives: Collectives | None = None
    measured_start: Int64 | None = None
    measured_end: Int64 | None = None
    origin: int = 0
    unclaimed_wait_task: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    unclaimed_wait_time: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    one_off: OneOff | None = None
    waiting_unknown: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    steps: tuple[Step, ...] = ()
    steps_alone: bool = False
    ignored: frozenset[Dependency] = frozenset()
    left_out: NDArray[np.bool_] | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    job: Job | None = field(init=False, default=None)

    def __len__(self) -> int:
        return len(self.duration)

    def described(self) -> str:
        """Its ranks, processors, tasks, edges and steps, and whether it was measured or assembled."""
        size = (
            f"{count(len(self.ranks), 'rank')}, {count(len(self.processors), 'processor')}, {len(self):,} tasks, {len(self.pred):,} edges"
        )
        names = list(dict.fromkeys(step.name for step in self.steps))
        steps = f"{count(len(names), 'step')} ({names[0]} to {names[-1]})" if names else "1 step"
        return f"{size}, {steps}, {'assembled' if self.measured_start is None else 'measured'}"

    @property
    def on_device(self) -> NDArray[np.bool_]:
        """Whether each task runs on a stream of a device, bool[n]."""
        mask: NDArray[np.bool_] = np.array([p.is_stream for p in self.processors], bool)[self.processor]
        return mask

    @property
    def rank_of_task(self) -> Int32:
        """The global rank of each task, int32[n]."""
        ranks: Int32 = np.array([p.rank for p in self.processors], np.int32)[self.processor]
        return ranks

    def named(self, test: Callable[[str], object]) -> NDArray[np.bool_]:
        """Which tasks have a name of which `test` says so, bool[n]."""
        return np.array([bool(test(name)) for name in self.names] or [False], bool)[self.name]

    @property
    def position_of_task(self) -> Int32:
        """The position in `ranks` of each task's rank, int32[n]."""
        position_of_rank = {rank: i for i, rank in enumerate(self.ranks)}
        positions: Int32 = np.array([position_of_rank[p.rank] for p in self.processors], np.int32)[self.processor]
        return positions
