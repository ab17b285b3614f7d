"""A graph's columns in the form that the native loops read, after checking them.

Nothing reaches native code unchecked: dtypes and lengths are checked here, the ranges of indices and values in one native
pass. Of the dependencies in `graph.ignored`, those with tables of their own (waits, queue depth, occupancy, rendezvous) are
left out here; the loops skip the edges and the orders on processors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos import _engine
from lumos.errors import GraphError
from lumos.graph.concatenate import without_left_out
from lumos.graph.table import Dependency, Graph, Kind
from lumos.vocabulary import check_enum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int32, Int64

check_enum(_engine, Dependency)
check_enum(_engine, Kind)


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
    if len(graph.release_task) != len(graph.release_time):
        raise GraphError("malformed graph: release_task and release_time differ in length; rebuild the graph")
    release = np.lexsort((graph.release_time, graph.release_task))
    view = _engine.Tables(
        duration=_column("duration", graph.duration, np.int64, n),
        processor=_column("processor", graph.processor, np.int32, n),
        kind=_column("kind", graph.kind, np.uint8, n),
        pred_offset=_column("pred_offset", graph.pred_offset, np.int64, n + 1),
        pred=_column("pred", graph.pred, np.int32, edges),
        pred_kind=_column("pred_kind", graph.pred_kind, np.uint8, edges),
        **_processors(graph),
        lag=_column("lag", graph.lag, np.int64, ranks, len(Dependency)).reshape(-1),
        release_task=_column("release_task", graph.release_task, np.int32, len(release))[release],
        release_time=_column("release_time", graph.release_time, np.int64, len(release))[release],
        **_rendezvous(graph),
        queue_depth=_queue_depth(graph),
        **_waits(graph),
        **_occupancy(graph),
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


def _processors(graph: Graph) -> dict[str, Any]:
    """By processor the position of its rank, whether it is a stream, and the number of its (rank, device), -1 for a thread; and the number
    of devices."""
    position = {rank: i for i, rank in enumerate(graph.ranks)}
    unknown = [p.name for p in graph.processors if p.rank not in position]
    if unknown:
        raise GraphError(f"malformed graph: processor {unknown[0]!r} is of a rank that the graph does not list; rebuild the graph")
    devices: dict[tuple[int, int], int] = {}
    device_of = [devices.setdefault((p.rank, p.device), len(devices)) if p.is_stream else -1 for p in graph.processors]
    return {
        "rank_of": np.array([position[p.rank] for p in graph.processors], np.int32),
        "is_stream": np.array([p.is_stream for p in graph.processors], np.uint8),
        "device_of": np.array(device_of, np.int32),
        "devices": len(devices),
    }


def _rendezvous(graph: Graph) -> dict[str, Any]:
    if Dependency.RENDEZVOUS in graph.ignored:
        return {"rendezvous_offset": np.zeros(1, np.int64), "rendezvous_task": np.empty(0, np.int32)}
    offset = _column("rendezvous_offset", graph.rendezvous_offset, np.int64, max(len(graph.rendezvous_offset), 1))
    members = _column("rendezvous_task", graph.rendezvous_task, np.int32, int(offset[-1]))
    return {"rendezvous_offset": offset, "rendezvous_task": members}


def _queue_depth(graph: Graph) -> Int32:
    ranks = len(graph.ranks)
    if graph.queue_depth is None or Dependency.QUEUE_DEPTH in graph.ignored:
        return np.zeros(ranks, np.int32)
    return _column("queue_depth", graph.queue_depth, np.int32, ranks)


def _waits(graph: Graph) -> dict[str, Any]:
    if graph.waits is None or Dependency.SYNC in graph.ignored:
        return {"wait_task": np.empty(0, np.int32), "wait_target": np.empty(0, np.int32)}
    count = len(graph.waits.task)
    task = _column("waits.task", graph.waits.task, np.int32, count)
    target = _column("waits.target", graph.waits.target, np.int32, count)
    order = np.argsort(task, kind="stable")
    return {"wait_task": task[order], "wait_target": target[order]}


def _occupancy(graph: Graph) -> dict[str, Any]:
    types = {"task": np.int32, "share": np.float32, "hold": np.int64}
    if graph.occupancy is None or Dependency.OCCUPANCY in graph.ignored:
        return {f"occupancy_{key}": np.empty(0, dtype) for key, dtype in types.items()}
    count = len(graph.occupancy.task)
    return {f"occupancy_{key}": _column(f"occupancy.{key}", getattr(graph.occupancy, key), dtype, count) for key, dtype in types.items()}
