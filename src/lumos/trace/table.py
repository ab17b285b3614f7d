"""Traces, what one rank's profiler recorded, as columns; and jobs, the traces of all ranks.

A `Trace` has every row of the file once, in file order, in NumPy columns of integer nanoseconds and table indices. Not all
rows are work: flows, instants, counters and annotations are in the table too, under categories of their own, so that
nothing is lost and only work counts as work. Arguments are sparse columns by key, because each kind of row has its own.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lumos.result import Described
from lumos.units import count, duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lumos.diagnostics import Diagnostic

Int8 = NDArray[np.uint8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

#: Value of an integer column where the row has no such field.
ABSENT = -1


class Category(IntEnum):
    """What a row is, whatever name its profiler's version and its device's vendor use for the category."""

    OTHER = 0
    OPERATOR = 1  # cpu_op, Operator
    ANNOTATION = 2  # user_annotation: ProfilerStep#…, DDP and FSDP labels, nccl:… labels
    PYTHON = 3  # python_function
    RUNTIME = 4  # cuda_runtime, cuda_driver, hip…, mtia_runtime, Runtime: a host call into the device's runtime
    KERNEL = 5  # kernel, Kernel, and the work rows of devices that are neither CUDA nor HIP
    MEMCPY = 6
    MEMSET = 7
    SYNC = 8  # cuda_sync: says for which work a synchronising call waited; not work
    EVENT_RECORD = 9  # cuda_event: an event recorded on a stream; not work
    GPU_ANNOTATION = 10  # derived from ANNOTATION by the profiler; not work
    OVERHEAD = 11  # the profiler's own cost
    SPAN = 12  # the row that spans the whole recording
    MEMORY = 13  # [memory] instants: allocations and frees
    LAUNCH_FLOW_START = 14  # ac2g and its older names: from a runtime call …
    LAUNCH_FLOW_END = 15  # … to device work; the flow's id is in `correlation`
    BACKWARD_FLOW_START = 16  # fwdbwd: from a forward operator …
    BACKWARD_FLOW_END = 17  # … to its backward operator
    INSTANT = 18
    COUNTER = 19


#: For so few values, comparing a column with one after the other is faster than looking its entries up in a table.
FEW = 8

#: Categories that are device work.
DEVICE_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


@dataclass(frozen=True, slots=True)
class Column:
    """One argument of the rows that have it: `values[i]` belongs to row `rows[i]`; rows ascend.

    `kind` is "int" (int64), "float" (float64) or "string" (int64 index into `Trace.strings`; arrays and objects are
    stored as their compact JSON text, e.g. Input Dims as "[[8,1024],[]]").
    """

    rows: Int32
    values: NDArray[Any]
    kind: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One (pid, tid) pair of the file. `device` and `stream` are set where the lane is a device queue."""

    pid: str
    tid: str
    process_name: str = ""
    thread_name: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class Trace(Described):
    """One rank's recording. Columns have one entry per row of the file, in file order.

    start, duration: int64 nanoseconds, exact, since no digit passes through a float; `start` is absolute (baseTimeNanoseconds
    is added).
    name: int32 index into `strings`. category: uint8 `Category`. lane: int32 index into `lanes`.
    correlation: int64 launch-to-work id, or the flow id on flow rows; ABSENT where none.
    external_id: int64 operator-to-work id; ABSENT where none.
    args: sparse columns by canonical key ("stream", "device", "grid", "Input Dims", "wait_on_stream", …).
    """

    path: str
    rank: int
    rank_source: str  # "distributedInfo", "file name", "content" or "assumed"
    world_size: int | None
    strings: Sequence[str]
    start: Int64
    duration: Int64
    name: Int32
    category: Int8
    lane: Int32
    correlation: Int64
    external_id: Int64
    args: Mapping[str, Column]
    lanes: Sequence[Lane]
    #: header objects as parsed: deviceProperties, distributedInfo, versions, traceName, …
    metadata: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    #: by size, the axes that a user said it means (`segment.named_axes`)
    stated: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def described(self) -> str:
        """Its rank, number of rows, length and file."""
        world = f" of {self.world_size}" if self.world_size else ""
        lasts = duration(int((self.start + self.duration).max() - self.start.min())) if len(self) else "0 ns"
        return f"rank {self.rank}{world}, {len(self):,} rows in {lasts}, {self.path}"

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns and strings."""
        columns: list[NDArray[Any]] = [self.start, self.duration, self.name, self.category, self.lane, self.correlation, self.external_id]
        for column in self.args.values():
            columns += [column.rows, column.values]
        return sum(c.nbytes for c in columns) + sum(map(len, self.strings))

    @property
    def devices(self) -> Sequence[Mapping[str, Any]]:
        """What the header says of the accelerators (`trace.kineto_values.DEVICE_FIELDS`), one entry for each."""
        listed: Sequence[Mapping[str, Any]] = self.metadata.get("deviceProperties", ())
        return listed

    def dense(self, key: str, default: int = ABSENT) -> Int64:
        """Argument `key` over all rows: int64 (string indices for string columns), `default` where the row lacks it."""
        out = np.full(len(self), default, np.int64)
        column = self.args.get(key)
        if column is not None:
            out[column.rows] = column.values
        return out

    def without(self, gone: NDArray[np.bool_] | Int64) -> Trace:
        """The recording as if these rows (a mask, or their indices) were not in its file. Row i of the result is the i-th that is left."""
        kept = np.ones(len(self), bool)
        kept[gone] = False
        row = np.cumsum(kept, dtype=np.int32) - 1
        args = {}
        for key, column in self.args.items():
            has = kept[column.rows]
            args[key] = Column(row[column.rows[has]].astype(np.int32), column.values[has], column.kind)
        columns = ("start", "duration", "name", "category", "lane", "correlation", "external_id")
        return replace(self, args=args, **{key: getattr(self, key)[kept] for key in columns})

    def named(self, matches: Callable[[str], object]) -> NDArray[np.bool_]:
        """Rows for whose name `matches` returns something true, as a mask; it is called once for each distinct name."""
        names = [i for i, name in enumerate(self.strings) if matches(name)]
        if len(names) <= FEW:
            return _equal_to_any(self.name, names)
        wanted = np.zeros(len(self.strings), bool)
        wanted[names] = True
        return np.asarray(wanted[self.name])

    def is_any(self, *categories: Category) -> NDArray[np.bool_]:
        """Rows of any of the categories, as a mask."""
        return _equal_to_any(self.category, categories)

    def names_of(self, rows: NDArray[Any]) -> list[int]:
        """The distinct names of some rows (a mask, or their indices), as ascending indices into `strings`."""
        return np.flatnonzero(np.bincount(self.name[rows], minlength=1)).tolist()


def unique(*columns: NDArray[Number]) -> NDArray[Number]:
    """The values that occur in any of the columns, ascending.

    `np.unique` finds them in a table of hashes since NumPy 2.3, which takes some fifty times as long as sorting where most values differ.
    """
    ordered: NDArray[Number] = np.sort(np.concatenate([np.ravel(column) for column in columns]))
    first: NDArray[np.bool_] = np.append(np.ones(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1])
    return ordered[first]


def excluding(column: NDArray[Number], gone: NDArray[Any]) -> NDArray[Number]:
    """The values that occur in a column and not in `gone`, ascending."""
    values = unique(column)
    return values[np.isin(values, unique(gone), assume_unique=True, invert=True)]


def _equal_to_any(column: NDArray[Any], values: Iterable[int]) -> NDArray[np.bool_]:
    """Which entries of the column are one of the values, compared one value after the other."""
    mask = np.zeros(len(column), bool)
    for value in values:
        mask |= column == value
    return mask


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A communicator: its name as the profiler prints it and its global ranks in order (empty = unknown)."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


#: What made the files of a prediction, and of a what-if.
PREDICTED, CHANGED = "predicted", "changed"


class Origin(NamedTuple):
    """What made a job that no device ran ("emulated", "predicted", "changed", "emulated, then changed", …), and the grade that its times
    had then. within: the ends of the interval of its step then, as multiples of the step. sizes: of a rank's part of the model, where what
    made the job knows them. job: what was predicted (`plan.job.facts_of`), as JSON has it, unchecked.
    A file has it under the key `lumos`, as `said`."""

    what: str
    grade: Grade = Grade.LIMITED
    within: tuple[float, float] = (1.0, 1.0)
    sizes: Mapping[str, int] = MappingProxyType({})
    job: Mapping[str, object] = MappingProxyType({})

    @property
    def said(self) -> dict[str, object]:
        """The origin as files have it."""
        known = {key: dict(facts) for key, facts in (("sizes", self.sizes), ("job", self.job)) if facts}
        ends = {} if self.within == (1.0, 1.0) else {"within": list(self.within)}
        return {"origin": self.what, "grade": self.grade.value, **ends, **known}


def origin_of(trace: Trace) -> Origin | None:
    """The reverse of `Origin.said`, also of its JSON text; None for a file without it. Anything else under its key is a mere claim that no
    device ran the job."""
    if "lumos" not in trace.metadata:
        return None
    said = trace.metadata["lumos"]
    with suppress(ValueError, RecursionError):
        said = json.loads(said) if isinstance(said, str) else said
    facts = said if isinstance(said, dict) else {}
    grade = next((grade for grade in Grade if grade.value == facts.get("grade")), Grade.LIMITED)
    ends = facts.get("within")
    within = (1.0, 1.0)
    if isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) and isfinite(end) for end in ends):
        within = max(min(ends[0], 1.0), 0.0), max(ends[1], 1.0)
    sizes = facts.get("sizes")
    known = {key: x for key, x in sizes.items() if type(x) is int and x > 0} if isinstance(sizes, dict) else {}
    job = facts.get("job")
    return Origin(str(facts.get("origin", "modelled")), grade, within, known, job if isinstance(job, dict) else {})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Job(Described):
    """The traces of all given ranks, ascending by rank, and the process groups that they name."""

    traces: tuple[Trace, ...]
    groups: tuple[ProcessGroup, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def origin(self) -> Origin | None:
        """What made the job where no device ran it, by the worst of its files; None where none says so."""
        origins = [origin for origin in map(origin_of, self.traces) if origin is not None]
        return max(origins, key=lambda origin: list(Grade).index(origin.grade), default=None)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks whose traces were given, in their order."""
        return tuple(t.rank for t in self.traces)

    @property
    def world(self) -> int:
        """How many ranks the job has: as many as its files say, else as many as were given."""
        return max((t.world_size or 0 for t in self.traces), default=0) or len(self.traces)

    def described(self) -> str:
        """Its ranks, rows, process groups and findings, and its first file."""
        findings = len(self.diagnostics) + sum(len(t.diagnostics) for t in self.traces)
        first = f", {self.traces[0].path}" if self.traces else ""
        sizes = (count(len(self.traces), "rank"), count(sum(map(len, self.traces)), "row"), count(len(self.groups), "process group"))
        return f"{', '.join(sizes)}, {count(findings, 'diagnostic')}{first}"
