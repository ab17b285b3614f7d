"""The dependency graph of a job, from its traces.

One rank at a time: cut the threads into slices, match device work with its calls, find what waits for what, then make the
tasks' columns. Durations, orders and a few constants per rank are taken from the trace. Start times and waits are not, or a
replay would only repeat the measurement; the exceptions are the boundary conditions of the window, in `Graph.release_task`.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.arrivals import arrivals, loader_waits
from lumos.graph.calls import classify
from lumos.graph.concatenate import concatenate
from lumos.graph.constants import rank_constants
from lumos.graph.dispatch import dispatches
from lumos.graph.edges import Edges
from lumos.graph.evidence import row_evidence
from lumos.graph.hand_offs.joins import joins
from lumos.graph.hand_offs.slices import host_slices
from lumos.graph.hand_offs.threads import SHORTEST_HAND_OFF, hand_offs
from lumos.graph.hand_offs.timers import timers
from lumos.graph.hand_offs.unclaimed_waits import unclaimed_calls, unclaimed_gaps
from lumos.graph.host import HostPlan, HostTasks, host_tasks, plan
from lumos.graph.joined.collectives import collectives
from lumos.graph.joined.one_job import job_evidence
from lumos.graph.joined.ranks import join
from lumos.graph.launches import DeviceWork, device_work
from lumos.graph.occupancy import occupancy
from lumos.graph.one_off import one_off
from lumos.graph.operations.graph import operations_graph
from lumos.graph.steps import steps
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor, Waits
from lumos.graph.waits.graph_launches import graph_order
from lumos.graph.waits.streams import StreamWaits, stream_waits
from lumos.graph.waits.syncs import NONE, USUAL_QUEUE, BlockingCopies, Synchronisations, blocking_copies, queue_depth, synchronisations
from lumos.graph.waits.window import held_up_at_begin, launched_before, stalled_at_begin
from lumos.stages import stage
from lumos.trace.operations import is_operations
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Job, Trace
from lumos.units import count, duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The group of entry points under which packages register builders for formats that state their dependencies. An entry is
#: named like the `format` in the metadata of its traces; `pyproject.toml` has Lumos' own.
BUILDERS = "lumos.graph_builders"

_KNOW_WAITS = "record with CUDA sync events to know them"

#: Name of the tasks that are a thread's time between operators.
BETWEEN = "(between operators)"


@stage("building the graph")
def build(job: Job) -> Graph:
    """The dependency graph of a job, its ranks joined. Raises GraphError where a trace contains no work."""
    if written := job.traces[0].metadata.get("format"):
        return _registered(str(written))(job)
    if is_operations(job.traces[0]):
        return operations_graph(job)
    world = max((trace.world_size for trace in job.traces if trace.world_size is not None), default=None)
    graph = _from_zero(join(concatenate([rank_graph(trace) for trace in job.traces]), world))
    return replace(graph, evidence=(*graph.evidence, *job_evidence(job.traces, graph)))


def _registered(written: str) -> BuildGraph:
    """The builder of a format. GraphError where none is registered."""
    for entry in entry_points(group=BUILDERS, name=written):
        builder: BuildGraph = entry.load()
        return builder
    raise GraphError(f"no builder is registered for traces of the format {written!r}; install Lumos again, or the package that reads them")


class BuildGraph(Protocol):
    """Builds the graph of a job whose format states its dependencies."""

    def __call__(self, job: Job) -> Graph: ...


def _from_zero(graph: Graph) -> Graph:
    """The graph with the earliest measured start as its time zero, so that a task without predecessors starts with the job."""
    if graph.measured_start is None or graph.measured_end is None:
        return graph
    origin = int(graph.measured_start.min())
    return replace(
        graph,
        measured_start=graph.measured_start - origin,
        measured_end=graph.measured_end - origin,
        release_time=graph.release_time - origin,
        steps=tuple(replace(s, start=s.start - origin, end=s.end - origin) for s in graph.steps),
        origin=origin,
    )


def rank_graph(trace: Trace) -> Graph:
    """The dependency graph of one rank's trace, on its own."""
    calls = classify(trace)
    work = device_work(trace)
    syncs = synchronisations(trace, calls, work)
    copies = blocking_copies(trace, calls, work)
    waits = stream_waits(trace, calls, work)
    held_up = held_up_at_begin(trace, work, waits)
    stalled = stalled_at_begin(trace, work, held_up)
    depth, full, freed = _full_queue(work, stalled)
    anchors = np.concatenate((work.call[work.call >= 0], syncs.row)).astype(np.int32)
    slices = host_slices(trace, anchors)
    if not len(slices) and not len(work):
        raise GraphError(_without_work(trace))
    alone = timers(trace, slices, anchors, SHORTEST_HAND_OFF)
    slices, handed = hand_offs(trace, slices, alone)
    dispatched = dispatches(work, waits)
    delays = rank_constants(trace, work, waits, syncs, copies, dispatched)

    planned = plan(trace, slices)
    _plan_launches(planned, work, copies, (full, freed), stalled, delays.launch_latency)
    awaiting = np.flatnonzero((syncs.target != NONE) | (syncs.event >= 0))
    planned.cut(syncs.row[awaiting], Kind.SYNC, syncs.own[awaiting])
    tasks = host_tasks(planned, handed, joins(trace, slices, handed, np.flatnonzero(~alone)))

    awaited = loader_waits(trace, slices, handed)
    once, once_said = one_off(trace, planned, tasks, work)
    first_work = len(tasks)
    edges = _edges(planned, tasks, work, syncs, copies, waits, (full, freed))
    earlier, later = graph_order(trace, work)
    edges.add(first_work + earlier, first_work + later, Dependency.STREAM_WAIT)
    edges.add(first_work + dispatched.work - 1, first_work + dispatched.work, Dependency.OCCUPANCY)
    before = edges.predecessors(first_work + len(work))
    lanes = slices.lanes()
    release_task, release_time = _boundary(tasks, work, held_up, lanes)
    on_stream = np.flatnonzero(syncs.target != NONE)
    target = syncs.target[on_stream]
    gap, gap_time = unclaimed_gaps(slices, work, handed, alone)
    call, call_time = unclaimed_calls(syncs)
    unclaimed = np.concatenate((tasks.of_slice[gap], tasks.of_slice[planned.last_of_row[syncs.row[call]]]))
    return Graph(
        ranks=(trace.rank,),
        processors=_processors(trace, lanes, alone, work),
        names=(*trace.strings, BETWEEN),
        duration=np.concatenate((tasks.duration, work.end - work.start)),
        processor=np.concatenate((np.searchsorted(lanes, tasks.lane), len(lanes) + work.stream)).astype(np.int32),
        kind=np.concatenate((tasks.kind, _device_kinds(trace, work))),
        name=_names(trace, tasks, work),
        event=np.concatenate((tasks.row, work.row)),
        pred_offset=before.offset,
        pred=before.task,
        pred_kind=before.kind,
        lag=delays.lags()[None, :],
        gap_range=None if delays.gap_range is None else np.array([delays.gap_range], np.int64),
        release_task=release_task,
        release_time=release_time,
        queue_depth=np.array([depth], np.int32) if depth else None,
        waits=Waits(
            _returns(planned, tasks, syncs.row[on_stream]).astype(np.int32),
            np.where(target < 0, -1, target + len(lanes)).astype(np.int32),
        ),
        occupancy=occupancy(trace, work, first_work),
        collectives=_collectives(trace, tasks, work),
        measured_start=np.concatenate((tasks.start, work.start)),
        measured_end=np.concatenate((tasks.end, work.end)),
        unclaimed_wait_task=unclaimed.astype(np.int32),
        unclaimed_wait_time=np.concatenate((gap_time, call_time)),
        arrivals=arrivals(awaited, tasks.of_slice, tasks.duration),
        one_off=once,
        steps=steps(trace),
        diagnostics=(
            *trace.diagnostics,
            *once_said,
            *_findings(trace, work, syncs, waits, held_up),
            *_queue_findings(trace, depth, stalled),
        ),
        evidence=row_evidence(trace, calls, slices, awaited, work, waits),
    )


def _without_work(trace: Trace) -> str:
    """Why no graph can be made of a trace without operators and device work."""
    unknown = next((d.message.removeprefix(f"{trace.path}: ") for d in trace.diagnostics if d.code == "unknown-category"), None)
    if unknown is not None:
        return f"{trace.path}: a timeline, but not the profiler's: {unknown}; give the file that torch.profiler (Kineto) wrote"
    return f"{trace.path}: rank {trace.rank} has neither operators nor device work; record with CPU and CUDA activities on"


def _full_queue(work: DeviceWork, stalled: Int64) -> tuple[int, Int64, Int64]:
    """The depth of the launch queue (0 where the trace shows no limit), the work whose launch had to wait for a place in it, and the
    work whose end made that place. stalled: work whose launch waited for work from before the recording."""
    depth, order, outstanding, freed = queue_depth(work)
    if not depth and len(stalled):
        return max(USUAL_QUEUE, int(outstanding.max())), order[:0], freed[:0]
    blocked = np.flatnonzero(outstanding >= depth) if depth else order[:0]
    return depth, order[blocked], freed[blocked]


def _plan_launches(
    planned: HostPlan, work: DeviceWork, copies: BlockingCopies, queued: tuple[Int64, Int64], stalled: Int64, latency: int
) -> None:
    """Launch calls keep their measured time, except those that waited inside, for their copy or for a place in the queue.

    A call that waited for a place costs what the others cost. Where all waited, it costs the time from the free place to its return.
    queued: the work whose launch waited for a place, and the work whose end made it. stalled: work whose launch waited for work from
    before the recording.
    """
    full, freed = queued
    launched = work.call[work.call >= 0]
    at = planned.last_of_row[launched]
    planned.kind[at] = Kind.LAUNCH
    planned.cut(work.call[copies.work], Kind.LAUNCH, np.maximum(copies.own - latency, 0))
    waited = np.union1d(full, stalled)
    if len(waited):
        blocked = planned.last_of_row[work.call[waited]]
        free = np.setdiff1d(at, blocked)
        made = planned.finish[planned.last_of_row[work.call[full]]] - work.end[freed]
        usual = int(np.median(planned.duration[free] if len(free) else np.maximum(made, 0)))
        planned.duration[blocked] = np.minimum(usual, planned.duration[blocked])
        planned.begin[blocked] = planned.finish[blocked] - planned.duration[blocked]


def _returns(planned: HostPlan, tasks: HostTasks, rows: Int32) -> Int64:
    """The RETURN after each call, -1 without one."""
    return tasks.return_of_slice[planned.last_of_row[rows]]


def _edges(
    planned: HostPlan,
    tasks: HostTasks,
    work: DeviceWork,
    syncs: Synchronisations,
    copies: BlockingCopies,
    waits: StreamWaits,
    queued: tuple[Int64, Int64],
) -> Edges:
    """All edges of one rank except those of processor order, and those of a full queue between launches that the trace has."""
    first_work = len(tasks)
    edges = Edges()
    launched = np.flatnonzero(work.call >= 0)
    edges.add(tasks.of_slice[planned.last_of_row[work.call[launched]]], first_work + launched, Dependency.LAUNCH)
    edges.add(first_work + waits.source, first_work + waits.work, Dependency.STREAM_WAIT)
    edges.add(first_work + copies.work, _returns(planned, tasks, work.call[copies.work]), Dependency.COPY)
    on_event = np.flatnonzero(syncs.event >= 0)
    edges.add(first_work + syncs.event[on_event].astype(np.int64), _returns(planned, tasks, syncs.row[on_event]), Dependency.SYNC)
    full, freed = queued
    early = work.call[freed] < 0
    edges.add(first_work + freed[early], tasks.of_slice[planned.last_of_row[work.call[full[early]]]], Dependency.QUEUE_DEPTH)
    edges.add(tasks.hand_off_source, tasks.hand_off_task, Dependency.HAND_OFF)
    return edges


def _boundary(tasks: HostTasks, work: DeviceWork, held_up: Int64, lanes: Int32) -> tuple[Int32, Int64]:
    """The tasks that start at their measured time because the cause lies before the window, and those times.

    They are the first tasks of threads that no hand-off starts, device work launched before the window, and the first work of streams
    that such work still held up (`held_up`).
    """
    first = np.array([int(np.flatnonzero(tasks.lane == lane)[0]) for lane in lanes], np.int64)
    first = first[~np.isin(first, tasks.hand_off_task)]
    queued = np.concatenate((launched_before(work), held_up))
    return (
        np.concatenate((first, len(tasks) + queued)).astype(np.int32),
        np.concatenate((tasks.start[first], work.start[queued])),
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


def _names(trace: Trace, tasks: HostTasks, work: DeviceWork) -> Int32:
    host = np.where(tasks.row >= 0, trace.name[tasks.row], len(trace.strings))
    return np.concatenate((host, trace.name[work.row])).astype(np.int32)


def _findings(trace: Trace, work: DeviceWork, syncs: Synchronisations, waits: StreamWaits, held_up: Int64) -> list[Diagnostic]:
    """What the graph had to infer or could not know."""
    where = f"rank {trace.rank}"
    found = []
    orphans = int((work.call == ABSENT).sum())
    if orphans:
        found.append(
            Diagnostic(
                "launch-missing",
                f"{where}: {orphans} of {len(work)} pieces of device work have no launch call in the trace;"
                " they follow the order of their stream alone",
            )
        )
    for i in held_up.tolist():
        name = f"stream {work.streams[work.stream[i]][1]}"
        late = duration(int(work.start[i] - trace.start[work.call[i]] - trace.duration[work.call[i]]))
        message = (
            f"{where}: the first work of {name} started {late} after its launch: work from before the recording held it up,"
            " or its code was being loaded; this one start is taken from the trace"
        )
        found.append(Diagnostic("device-held-up", message))
    if not len(work):
        found.append(Diagnostic("no-device-work", f"{where}: no device work recorded; the replay covers the CPU threads alone"))
    if waits.inferred:
        message = f"{where}: {waits.inferred} waits between streams were inferred from the order of calls; {_KNOW_WAITS}"
        found.append(Diagnostic("stream-waits-inferred", message))
    if waits.unresolved:
        shown = count(waits.unresolved, "wait")
        message = f"{where}: for {shown} between streams the trace shows no awaited work, so nothing is held back; {_KNOW_WAITS}"
        found.append(Diagnostic("stream-waits-unresolved", message))
    unknown = int(((syncs.target == NONE) & (syncs.event < 0)).sum())
    if unknown:
        found.append(
            Diagnostic(
                "sync-unknown",
                f"{where}: for {count(unknown, 'synchronising call')} the trace shows no awaited work; their measured time is kept",
            )
        )
    return found


def _queue_findings(trace: Trace, depth: int, stalled: Int64) -> list[Diagnostic]:
    """What the graph inferred about the queue of launches."""
    if not depth:
        return []
    message = f"rank {trace.rank}: launches wait for a place in a queue of {depth}"
    if len(stalled):
        message += f"; {count(len(stalled), 'call')} waited for work from before the recording"
    return [Diagnostic("queue-full", message)]
