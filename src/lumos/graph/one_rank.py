"""The dependency graph of one rank, from its trace.

Cut the threads into slices, match device work with its calls, find what waits for what, then make the tasks' columns: first the tasks
of the CPU, then the device work. Durations, orders and a few constants are taken from the trace. Start times and waits are not, or a
replay would only repeat the measurement; the exceptions are the boundary conditions of the window, in `Graph.release_task`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import GraphError
from lumos.graph.constants import dispatches, rank_constants
from lumos.graph.evidence import inferred_waits, row_evidence
from lumos.graph.hand_offs.slices import host_slices
from lumos.graph.hand_offs.threads import SHORTEST_HAND_OFF, hand_offs, timers
from lumos.graph.hand_offs.unclaimed_waits import unclaimed_waits
from lumos.graph.host import HostPlan, HostTasks, host_tasks, plan
from lumos.graph.implausible import plausible
from lumos.graph.joined.collectives import collectives
from lumos.graph.launches import Call, DeviceWork, classify, device_work
from lumos.graph.lists import Edges
from lumos.graph.loaders import AWAITS_BATCH, loader_waits
from lumos.graph.occupancy import occupancy
from lumos.graph.one_off import one_off
from lumos.graph.places import steps
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor, Waits
from lumos.graph.waits.full_queue import FullQueue, full_queue, held_up_at_begin, launched_before
from lumos.graph.waits.streams import StreamWaits, graph_order, stream_waits
from lumos.graph.waits.syncs import NONE, BlockingCopies, Synchronisations, blocking_copies, synchronisations
from lumos.graph.waits.unsaid import Polls, polls, with_unsaid_waits
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace, excluding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.constants import Dispatches
    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.hand_offs.threads import HandOffs

#: Name of the tasks that are a thread's time between operators.
BETWEEN = "(between operators)"


class _Device(NamedTuple):
    """The device work of a rank, and what it and the CPU wait for.

    calls: the `Call` of every row of the trace. held_up: first work of streams that earlier work kept busy.
    """

    calls: Int8
    work: DeviceWork
    syncs: Synchronisations
    copies: BlockingCopies
    waits: StreamWaits
    dispatched: Dispatches
    held_up: Int64
    queue: FullQueue


class _Host(NamedTuple):
    """The CPU threads of a rank, as slices and as tasks. alone: bool[lanes], threads that work on their own."""

    alone: NDArray[np.bool_]
    slices: HostSlices
    handed: HandOffs
    planned: HostPlan
    tasks: HostTasks


def rank_graph(trace: Trace) -> Graph:
    """The dependency graph of one rank's trace, on its own. Raises GraphError where it contains no work."""
    polled = polls(plausible(trace))
    trace, device = polled.trace, _device(polled)
    work, syncs = device.work, device.syncs
    delays = rank_constants(trace, work, device.waits, syncs, device.copies, device.dispatched)
    host = _host(trace, device, int(delays.lag[Dependency.LAUNCH]))
    tasks, lanes = host.tasks, host.slices.lanes()
    once, once_said = one_off(trace, host.planned, tasks, work)
    before = _edges(trace, host, device).predecessors(len(tasks) + len(work))
    release_task, release_time = _boundary(host, device, lanes)
    unclaimed, unclaimed_time = _unclaimed(trace, host, device)
    batches, waiting = loader_waits(trace, host.slices, host.handed)
    return Graph(
        ranks=(trace.rank,),
        processors=_processors(trace, lanes, host.alone, work),
        names=(*trace.strings, BETWEEN, AWAITS_BATCH),
        duration=np.concatenate((tasks.duration, work.end - work.start)),
        processor=np.concatenate((np.searchsorted(lanes, tasks.lane), len(lanes) + work.stream)).astype(np.int32),
        kind=np.concatenate((tasks.kind, _device_kinds(trace, work))),
        name=_names(trace, tasks, work, tasks.of_slice[batches]),
        event=np.concatenate((tasks.row, work.row)),
        pred_offset=before.offset,
        pred=before.task,
        pred_kind=before.kind,
        lag=delays.lag[None, :],
        gap_range=None if delays.gap_range is None else np.array([delays.gap_range], np.int64),
        release_task=release_task,
        release_time=release_time,
        queue_depth=np.array([device.queue.depth], np.int32) if device.queue.depth else None,
        waits=_waits(host, syncs, len(lanes)),
        occupancy=occupancy(trace, work, len(tasks)),
        collectives=_collectives(trace, tasks, work),
        measured_start=np.concatenate((tasks.start, work.start)),
        measured_end=np.concatenate((tasks.end, work.end)),
        unclaimed_wait_task=unclaimed,
        unclaimed_wait_time=unclaimed_time,
        one_off=once,
        steps=steps(trace),
        diagnostics=(
            *trace.diagnostics,
            *once_said,
            *inferred_waits(trace, work, device.waits, device.queue.depth),
        ),
        evidence=row_evidence(polled, device.calls, host.slices, waiting, work, device.waits),
    )


def _device(polled: Polls) -> _Device:
    trace = polled.trace
    work = device_work(trace)
    calls = with_unsaid_waits(trace, classify(trace), work)
    calls[polled.call] = Call.EVENT_SYNC
    waits = stream_waits(trace, calls, work)
    held_up = held_up_at_begin(trace, work, waits)
    return _Device(
        calls,
        work,
        synchronisations(trace, calls, work),
        blocking_copies(trace, calls, work, waits),
        waits,
        dispatches(work, waits),
        held_up,
        full_queue(trace, work, held_up),
    )


def _host(trace: Trace, device: _Device, latency: int) -> _Host:
    """The threads of a rank. latency: of a launch, ns. Raises GraphError where neither they nor the device did any work."""
    work, syncs = device.work, device.syncs
    anchors = np.concatenate((work.call[work.call >= 0], syncs.row)).astype(np.int32)
    slices = host_slices(trace, anchors)
    if not len(slices) and not len(work):
        raise GraphError(_without_work(trace))
    alone = timers(trace, slices, anchors, SHORTEST_HAND_OFF)
    slices, handed = hand_offs(trace, slices, alone)
    planned = plan(trace, slices)
    _plan_launches(planned, device, latency)
    awaiting = np.flatnonzero((syncs.target != NONE) | (syncs.event >= 0))
    planned.cut(syncs.row[awaiting], Kind.SYNC, syncs.own[awaiting])
    return _Host(alone, slices, handed, planned, host_tasks(planned, handed))


def _without_work(trace: Trace) -> str:
    """Why no graph can be made of a trace without operators and device work."""
    unknown = next((d.message.removeprefix(f"{trace.path}: ") for d in trace.diagnostics if d.code == "unknown-category"), None)
    if unknown is not None:
        return f"{trace.path}: a timeline, but not the profiler's: {unknown}; give the file that torch.profiler (Kineto) wrote"
    return f"{trace.path}: rank {trace.rank} has neither operators nor device work; record with CPU and CUDA activities on"


def _plan_launches(planned: HostPlan, device: _Device, latency: int) -> None:
    """Launch calls keep their measured time, except those that waited inside, for their copy or for a place in the queue.

    A call that waited for a place costs what the others cost, or the time from the free place to its return where that is shorter: of a
    few others, some may have waited too.
    latency: of a launch, ns.
    """
    work, copies = device.work, device.copies
    at = planned.last_of_row[work.call[(work.call >= 0) & work.placed]]
    planned.kind[at] = Kind.LAUNCH
    planned.cut(work.call[copies.work], Kind.LAUNCH, np.maximum(copies.own - latency, 0))
    queue = device.queue
    blocked = planned.last_of_row[work.call[np.concatenate((queue.waited, queue.at_begin))]]
    if len(blocked):
        free = excluding(at, blocked)
        made = planned.finish[blocked[: len(queue.waited)]] - work.end[queue.freed]
        usual = int(min(np.median(durations) for durations in (planned.duration[free], np.maximum(made, 0)) if len(durations)))
        planned.duration[blocked] = np.minimum(usual, planned.duration[blocked])
        planned.begin[blocked] = planned.finish[blocked] - planned.duration[blocked]


def _returns(planned: HostPlan, tasks: HostTasks, rows: Int32) -> Int64:
    """The RETURN after each call, -1 without one."""
    return tasks.return_of_slice[planned.last_of_row[rows]]


def _edges(trace: Trace, host: _Host, device: _Device) -> Edges:
    """All edges of one rank except those of processor order, and those of a full queue between launches that the trace has."""
    planned, tasks, first_work = host.planned, host.tasks, len(host.tasks)
    work, syncs, copies, waits = device.work, device.syncs, device.copies, device.waits
    edges = Edges()
    launched = np.flatnonzero(work.call >= 0)
    edges.add(tasks.of_slice[planned.last_of_row[work.call[launched]]], first_work + launched, Dependency.LAUNCH)
    edges.add(first_work + waits.source, first_work + waits.work, Dependency.STREAM_WAIT)
    edges.add(first_work + copies.work, _returns(planned, tasks, work.call[copies.work]), Dependency.COPY)
    on_event = np.flatnonzero(syncs.event >= 0)
    edges.add(first_work + syncs.event[on_event].astype(np.int64), _returns(planned, tasks, syncs.row[on_event]), Dependency.SYNC)
    early = work.call[device.queue.freed] < 0
    blocked = tasks.of_slice[planned.last_of_row[work.call[device.queue.waited[early]]]]
    edges.add(first_work + device.queue.freed[early], blocked, Dependency.QUEUE_DEPTH)
    edges.add(tasks.hand_off_source, tasks.hand_off_task, Dependency.HAND_OFF)
    earlier, later = graph_order(trace, work)
    edges.add(first_work + earlier, first_work + later, Dependency.STREAM_WAIT)
    dispatched = device.dispatched.work
    edges.add(first_work + dispatched - 1, first_work + dispatched, Dependency.OCCUPANCY)
    return edges


def _waits(host: _Host, syncs: Synchronisations, lanes: int) -> Waits:
    """The returns of calls that wait for a stream, and the processor of that stream. lanes: how many processors are threads."""
    on_stream = np.flatnonzero(syncs.target != NONE)
    target = syncs.target[on_stream]
    return Waits(
        _returns(host.planned, host.tasks, syncs.row[on_stream]).astype(np.int32),
        np.where(target < 0, -1, target + lanes).astype(np.int32),
    )


def _unclaimed(trace: Trace, host: _Host, device: _Device) -> tuple[Int32, Int64]:
    """The tasks whose durations hold waiting that no dependency explains, and how much, ns."""
    gap, gap_time = unclaimed_waits(trace, host.planned, device.work, host.handed, host.alone)
    call = np.flatnonzero(device.syncs.unclaimed > 0)
    slices = np.concatenate((gap, host.planned.last_of_row[device.syncs.row[call]]))
    return host.tasks.of_slice[slices].astype(np.int32), np.concatenate((gap_time, device.syncs.unclaimed[call]))


def _boundary(host: _Host, device: _Device, lanes: Int32) -> tuple[Int32, Int64]:
    """The tasks that start at their measured time because the cause lies before the window, and those times.

    They are the first tasks of threads that no hand-off starts, launches that waited for work from before the window to end, device work
    launched before the window, and the first work of streams that such work still held up.
    """
    tasks, work = host.tasks, device.work
    first = np.array([int(np.flatnonzero(tasks.lane == lane)[0]) for lane in lanes], np.int64)
    first = first[~np.isin(first, tasks.hand_off_task)]
    waited = tasks.of_slice[host.planned.last_of_row[work.call[device.queue.at_begin]]]
    on_host = np.concatenate((first, waited[~np.isin(waited, first)]))
    queued = np.concatenate((launched_before(work), device.held_up))
    return (
        np.concatenate((on_host, len(tasks) + queued)).astype(np.int32),
        np.concatenate((tasks.start[on_host], work.start[queued])),
    )


def _processors(trace: Trace, lanes: Int32, alone: NDArray[np.bool_], work: DeviceWork) -> tuple[Processor, ...]:
    threads = [
        Processor(trace.rank, False, trace.lanes[i].thread_name or f"thread {trace.lanes[i].tid}", lane=int(i), timer=bool(alone[i]))
        for i in lanes
    ]
    streams = [Processor(trace.rank, True, f"stream {stream}", device, stream) for device, stream in work.streams]
    return (*threads, *streams)


def _device_kinds(trace: Trace, work: DeviceWork) -> Int8:
    of_category = np.full(256, Kind.KERNEL, np.uint8)
    of_category[Category.MEMCPY] = Kind.MEMCPY
    of_category[Category.MEMSET] = Kind.MEMSET
    return np.where(work.communicates, Kind.COLLECTIVE, of_category[trace.category[work.row]]).astype(np.uint8)


def _collectives(trace: Trace, tasks: HostTasks, work: DeviceWork) -> Collectives | None:
    """Collectives on CPU threads, then those on streams."""
    on_cpu = np.flatnonzero(tasks.kind == Kind.COLLECTIVE)
    on_stream = np.flatnonzero(work.communicates)
    rows = np.concatenate((tasks.row[on_cpu], work.row[on_stream]))
    calls = np.concatenate((np.full(len(on_cpu), ABSENT, np.int32), work.call[on_stream]))
    return collectives(trace, np.concatenate((on_cpu, len(tasks) + on_stream)), rows, calls)


def _names(trace: Trace, tasks: HostTasks, work: DeviceWork, batches: Int64) -> Int32:
    host = np.where(tasks.row >= 0, trace.name[tasks.row], len(trace.strings))
    host[batches] += 1
    return np.concatenate((host, trace.name[work.row])).astype(np.int32)
