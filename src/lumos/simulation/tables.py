"""A graph's columns in the form that the native loops read, after checking them.

Nothing reaches native code unchecked: dtypes and lengths are checked here, the ranges of indices and values in one native
pass. Of the dependencies in `graph.ignored`, those with tables of their own (waits, queue depth, occupancy, rendezvous) are
left out here; the loops skip the edges and the orders on processors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos import _engine
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph, Kind
from lumos.graph.without import without_left_out
from lumos.vocabulary import check_enum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int8, Int32, Int64

check_enum(_engine, Dependency)
check_enum(_engine, Kind)


class _Processors(NamedTuple):
    """Columns by processor: the position of its rank, whether it is a stream, and the number of its (rank, device), -1 for a
    thread; and the number of devices."""

    rank_of: Int32
    is_stream: Int8
    device_of: Int32
    devices: int


class _Occupancies(NamedTuple):
    """Kernels with an occupancy: the share of the device's SMs that each takes, and for how long it holds them, ns."""

    task: Int32
    share: NDArray[np.float32]
    hold: Int64


#: How the native check begins what it says of a job that is longer than the times of the simulator: no fault of the graph's form.
_TOO_LONG = "durations and lags sum to more than"


def tables(graph: Graph) -> _engine.Tables:
    """The native view of `graph`, in which nothing waits for what it leaves out. Raises GraphError that names the first column with a wrong
    type, length, index or value."""
    graph = without_left_out(graph)
    n, ranks = len(graph.duration), len(graph.ranks)
    _column("duration", graph.duration, np.int64, n)
    _column("pred_offset", graph.pred_offset, np.int64, n + 1)
    edges = int(graph.pred_offset[-1])
    if n >= 2**31 - 1 or edges >= 2**32:
        raise GraphError(f"the graph has {n} tasks and {edges} edges; the engine holds 2^31 tasks and 2^32 edges: split the job")
    processors = _processors(graph)
    offset, members = _rendezvous(graph)
    wait_task, wait_target = _waits(graph)
    occupancy = _occupancy(graph)
    release = np.lexsort((graph.release_time, graph.release_task)) if _same_length(graph) else np.empty(0, np.int64)
    view = _engine.Tables(
        duration=_column("duration", graph.duration, np.int64, n),
        processor=_column("processor", graph.processor, np.int32, n),
        kind=_column("kind", graph.kind, np.uint8, n),
        pred_offset=_column("pred_offset", graph.pred_offset, np.int64, n + 1),
        pred=_column("pred", graph.pred, np.int32, edges),
        pred_kind=_column("pred_kind", graph.pred_kind, np.uint8, edges),
        rank_of=processors.rank_of,
        is_stream=processors.is_stream,
        device_of=processors.device_of,
        devices=processors.devices,
        lag=_column("lag", graph.lag, np.int64, ranks, len(Dependency)).reshape(-1),
        release_task=_column("release_task", graph.release_task, np.int32, len(release))[release],
        release_time=_column("release_time", graph.release_time, np.int64, len(release))[release],
        rendezvous_offset=offset,
        rendezvous_task=members,
        queue_depth=_queue_depth(graph),
        wait_task=wait_task,
        wait_target=wait_target,
        occupancy_task=occupancy.task,
        occupancy_share=occupancy.share,
        occupancy_hold=occupancy.hold,
        ignored=sum(1 << kind for kind in graph.ignored),
    )
    if wrong := view.check():
        if wrong.startswith(_TOO_LONG):
            raise GraphError(f"{wrong}: the job would take more than a hundred years; ask for smaller sizes")
        raise GraphError(f"malformed graph: {wrong}; rebuild the graph")
    return view


def durations_of(graph: Graph, durations: Int64 | None) -> Int64:
    """`durations` (int64[n] ns, none negative) or the graph's own; what it leaves out takes no time. GraphError where they do not fit the
    graph."""
    chosen = graph.duration if durations is None else non_negative(_column("durations", durations, np.int64, len(graph)))
    return chosen if graph.left_out is None else np.where(graph.left_out, 0, chosen)


def non_negative(durations: Int64) -> Int64:
    """`durations`, or GraphError where one is negative or they sum to more than int64 times can hold."""
    if durations.size and int(durations.min()) < 0:
        raise GraphError(f"durations[{int(durations.argmin())}] is negative; durations are ns >= 0")
    if durations.size and float(durations.sum(axis=-1, dtype=np.float64).max()) > 4e18:
        raise GraphError("durations sum to more than 4e18 ns, which int64 times cannot hold; give them in ns")
    return durations


def _column(name: str, values: Any, dtype: Any, *shape: int) -> NDArray[Any]:
    if not isinstance(values, np.ndarray) or values.dtype != dtype or values.shape != shape:
        have = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else type(values).__name__
        raise GraphError(f"malformed graph: {name} is {have}, expected {np.dtype(dtype)}{list(shape)}; rebuild the graph")
    return np.ascontiguousarray(values)


def _same_length(graph: Graph) -> bool:
    if len(graph.release_task) != len(graph.release_time):
        raise GraphError("malformed graph: release_task and release_time differ in length; rebuild the graph")
    return True


def _processors(graph: Graph) -> _Processors:
    position = {rank: i for i, rank in enumerate(graph.ranks)}
    unknown = [p.name for p in graph.processors if p.rank not in position]
    if unknown:
        raise GraphError(f"malformed graph: processor {unknown[0]!r} is of a rank that the graph does not list; rebuild the graph")
    devices: dict[tuple[int, int], int] = {}
    device_of = [devices.setdefault((p.rank, p.device), len(devices)) if p.is_stream else -1 for p in graph.processors]
    return _Processors(
        np.array([position[p.rank] for p in graph.processors], np.int32),
        np.array([p.is_stream for p in graph.processors], np.uint8),
        np.array(device_of, np.int32),
        len(devices),
    )


def _rendezvous(graph: Graph) -> tuple[Int64, Int32]:
    if Dependency.RENDEZVOUS in graph.ignored:
        return np.zeros(1, np.int64), np.empty(0, np.int32)
    offset = _column("rendezvous_offset", graph.rendezvous_offset, np.int64, max(len(graph.rendezvous_offset), 1))
    return offset, _column("rendezvous_task", graph.rendezvous_task, np.int32, int(offset[-1]))


def _queue_depth(graph: Graph) -> Int32:
    ranks = len(graph.ranks)
    if graph.queue_depth is None or Dependency.QUEUE_DEPTH in graph.ignored:
        return np.zeros(ranks, np.int32)
    return _column("queue_depth", graph.queue_depth, np.int32, ranks)


def _waits(graph: Graph) -> tuple[Int32, Int32]:
    if graph.waits is None or Dependency.SYNC in graph.ignored:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    count = len(graph.waits.task)
    task = _column("waits.task", graph.waits.task, np.int32, count)
    target = _column("waits.target", graph.waits.target, np.int32, count)
    order = np.argsort(task, kind="stable")
    return task[order], target[order]


def _occupancy(graph: Graph) -> _Occupancies:
    if graph.occupancy is None or Dependency.OCCUPANCY in graph.ignored:
        return _Occupancies(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int64))
    count = len(graph.occupancy.task)
    return _Occupancies(
        _column("occupancy.task", graph.occupancy.task, np.int32, count),
        _column("occupancy.share", graph.occupancy.share, np.float32, count),
        _column("occupancy.hold", graph.occupancy.hold, np.int64, count),
    )
