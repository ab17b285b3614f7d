"""What the rows of one rank's recording say against trusting it: rows that are missing, or that contradict each other.

Every rule here holds in a whole recording without exception. Each launch of a kernel has its kernel, and each kernel its launch, unless it
was launched before the window. An id names one launch. Work starts after the call that launched it, and belongs to the same operator. A
stream runs one piece of work at a time, and the rows of a thread are nested. What is found is returned as `Evidence`; `analyze.trust`
grades it.

Limits: only kernels and graphs are counted as launches, because calls that copy or set no bytes leave no row on the device. Work that the
recording lacks together with its call leaves no sign here.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.graph.hand_offs.slices import ROUNDING
from lumos.graph.launches import Call
from lumos.graph.lists import equal_rows
from lumos.graph.places import Ranges, innermost, is_step_mark, places_in_code
from lumos.graph.table import Evidence
from lumos.trace.table import ABSENT, Category, Int8, Int32, Int64, Trace, unique
from lumos.units import count
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.graph.hand_offs.slices import HostSlices
    from lumos.graph.launches import DeviceWork
    from lumos.graph.places import Places
    from lumos.graph.waits.streams import StreamWaits
    from lumos.graph.waits.unsaid import Polls

#: The counter of rows jumps now and then. It does not at a larger share of the rows.
_MOST_JUMPS = 0.01

#: An unknown share of a step no larger than this is none: successive periods of a loop that differ by less are the same.
NEGLIGIBLE = 0.001

#: Device work names the operator that launched it. Where most of the names lead to a row, all should; in old recordings hardly any do,
#: because their ids are of another kind.
_MOST_NAMES = 0.5

#: Findings of the reader, and of `graph.implausible`, that leave the times or the links of some rows unknown.
UNREADABLE = (
    *("truncated", "missing-start", "missing-duration", "negative-duration", "id-too-large", "id-unreadable"),
    *("base-time-unreadable", "far-start", "stream-implausible", "duration-implausible", "start-implausible"),
)

#: The code of the diagnostic that waits between streams were inferred.
WAITS_INFERRED = "stream-waits-inferred"

#: The code of evidence that a job's times are not measured, so that there is nothing to compare its replay with.
NEVER_MEASURED = "never-measured"


def row_evidence(
    polled: Polls, calls: Int8, slices: HostSlices, waiting: float, work: DeviceWork, waits: StreamWaits
) -> tuple[Evidence, ...]:
    """The findings in the rows of one rank. calls: the `Call` of every row. waiting: the share of time that waits for loaders. The others
    are what was read from the rows."""
    trace = polled.trace
    evidence = [Evidence(d.code, d.message, Grade.LIMITED) for d in trace.diagnostics if d.code in UNREADABLE]
    launches = np.flatnonzero((calls == Call.LAUNCH) | (calls == Call.GRAPH_LAUNCH))
    launches = launches[~_captured(trace, launches)]
    where = f"rank {trace.rank}"
    evidence += _kernels_lost(where, work, launches, len(trace))
    evidence += _launches_lost(where, work)
    evidence += _repetitions_unequal(where, trace, work)
    evidence += _ids_shared(where, trace, calls, work, launches)
    evidence += _work_before_launch(where, trace, work)
    evidence += _returns_early(where, trace, calls, work)
    evidence += _operators_disagree(where, trace, work)
    evidence += _overlaps_on_streams(where, work)
    evidence += _overlaps_on_threads(where, trace, slices.crossing)
    evidence += _operators_lost(where, trace, work)
    evidence += _numbers_missing(where, trace)
    evidence += _branches(where, calls, work)
    evidence += _waits_unresolved(where, work, waits)
    evidence += _loader_waits(where, waiting)
    evidence += _polls(where, polled)
    return tuple(evidence)


def inferred_waits(trace: Trace, work: DeviceWork, waits: StreamWaits, depth: int) -> list[Diagnostic]:
    """What of launches and waits had to be inferred. What is not known of them is evidence, with the share of a step that it leaves open.
    depth: of the queue of launches, 0 without a limit."""
    where = f"rank {trace.rank}"
    notes = [Diagnostic("queue-full", f"{where}: launches wait for a place in a queue of {depth}")] if depth else []
    orphans = int((work.call == ABSENT).sum())
    if orphans:
        notes.append(
            Diagnostic(
                "launch-missing",
                f"{where}: {orphans} of {len(work)} pieces of device work have no launch call in the trace;"
                " they follow the order of their stream alone",
            )
        )
    if not len(work):
        notes.append(Diagnostic("no-device-work", f"{where}: no device work recorded; the replay covers the CPU threads alone"))
    if waits.inferred:
        known = f"{waits.inferred} waits between streams were inferred from the order of calls; record with CUDA sync events to know them"
        notes.append(Diagnostic(WAITS_INFERRED, f"{where}: {known}"))
    return notes


def _broken(code: str, message: str, broken: int, total: int, least: float = 0.0) -> Iterator[Evidence]:
    """The finding that `broken` of `total` rows break a rule: what happened is not known of that share of the time, and `least` of it."""
    if broken:
        yield Evidence(code, f"{message} ({broken / total:.1%})", Grade.UNSOUND, min(max(broken / total, least), 1.0))


def _captured(trace: Trace, launches: Int64) -> NDArray[np.bool_]:
    """Which launches a thread makes while it captures a graph: they run nothing, so that no kernel of theirs is lost."""
    last = []
    for named in ("StreamBeginCapture", "StreamEndCapture"):
        calls = np.flatnonzero((trace.category == Category.RUNTIME) & trace.named(re.compile(named).search))
        row = Ranges(trace, calls).last(trace.lane[launches], trace.start[launches])
        last.append(np.where(row == ABSENT, -1, trace.start[row]))
    return np.asarray(last[0] > last[1])


def _kernels_lost(where: str, work: DeviceWork, launches: Int64, rows: int) -> Iterator[Evidence]:
    """Launches whose kernels the recording lacks."""
    has_work = np.zeros(rows, bool)
    has_work[work.call[work.call >= 0]] = True
    lost = int((~has_work[launches]).sum())
    message = f"{where}: {lost:,} of {len(launches):,} launches have no kernel in the recording, so that its time is missing"
    return _broken("kernels-lost", message, lost, len(launches))


def _launches_lost(where: str, work: DeviceWork) -> Iterator[Evidence]:
    """Work without a launch on a stream on which launched work came before it, so that it was not launched before the window."""
    launched = work.call >= 0
    if len(work) and not launched.any():
        message = f"{where}: no launch of its device work is in the recording; how the CPU sets its pace is unknown"
        yield Evidence("no-launches", message, Grade.LIMITED)
    first = np.full(len(work.streams), len(work), np.int64)
    np.minimum.at(first, work.stream[launched], np.flatnonzero(launched))
    lost = int((~launched & (np.arange(len(work)) > first[work.stream])).sum())
    message = (
        f"{where}: {lost:,} of {len(work):,} pieces of device work have no launch call in the recording; no change of CPU work moves them"
    )
    yield from _broken("launches-lost", message, lost, len(work))


def _repetitions_unequal(where: str, trace: Trace, work: DeviceWork) -> Iterator[Evidence]:
    """Operators that launch more or less than the same ones do elsewhere: at the same place of other steps, or with the same arguments.
    Kernels that the recording lacks together with their launches show in nothing else."""
    calls = work.call[work.call >= 0]
    operators = np.flatnonzero((trace.category == Category.OPERATOR) & ~is_step_mark(trace))
    by = innermost(trace, operators, calls.astype(np.int64))
    pieces = np.bincount(by[by >= 0], minlength=len(trace))
    operators = operators[np.isin(trace.name[operators], trace.name[operators[pieces[operators] > 0]])]
    threads = [operators[trace.lane[operators] == lane] for lane in unique(trace.lane[operators])]
    in_steps = sum(_unequal(at := places_in_code(trace, of_thread), trace.name[at.row], pieces) for of_thread in threads)
    unequal = max(in_steps, _unequal_with_equal_arguments(trace, operators, pieces))
    if unequal:
        message = (
            f"{where}: operators launch {unequal:,} of {len(calls):,} pieces of device work more or less than at the same place of other"
            " steps or with the same arguments: rows are lost, or the program does not do the same every time"
        )
        yield Evidence("repetitions-unequal", message, Grade.LIMITED, min(unequal / len(calls), 1.0))


def _unequal_with_equal_arguments(trace: Trace, operators: Int64, pieces: Int64) -> int:
    """How many pieces of work operators launch more or less than is usual of those of their name with the same shapes, types and values; 0
    where these were not recorded, as those of the tensors in a list are not."""
    keys = [trace.dense(key)[operators] for key in ("Concrete Inputs", "Input Dims", "Input type", "Input Strides")]
    lists = np.append([any(word in text for word in ("TensorList", "GenericList")) for text in trace.strings], [True])
    known = (keys[0] != ABSENT) & ~lists[keys[2]]
    alike = equal_rows(trace.name[operators[known]], *(key[known] for key in keys))
    launched = (pieces[operators[known][rows]] for rows in alike)
    return int(sum(np.abs(number - np.floor(np.median(number))).sum() for number in launched))


def _unequal(at: Places, names: Int32, pieces: Int64) -> int:
    """How many pieces of work operators of one thread launch more or less than is usual at their place. names: of the operators. pieces: by
    every row of the trace.
    Steps that begin more or fewer operators of a name than most are left out: the window cut them, or they differ."""
    out = 0
    for name in unique(names[at.step > 0]).tolist():
        here = np.flatnonzero((names == name) & (at.step > 0))
        steps, times = np.unique(at.step[here], return_counts=True)
        alike = steps[times == np.bincount(times).argmax()]
        launched = pieces[at.row[here[np.isin(at.step[here], alike)]]].reshape(len(alike), -1)
        out += int(np.abs(launched - np.floor(np.median(launched, axis=0))).sum())
    return out


def _ids_shared(where: str, trace: Trace, calls: Int8, work: DeviceWork, launches: Int64) -> Iterator[Evidence]:
    """Launches that have the id of another launch, and kernels that have the id of another kernel although no graph launched them."""
    ids = trace.correlation[launches]
    single = work.call[(work.call >= 0) & (calls[work.call] == Call.LAUNCH)]
    shared, total = max((_repeated(some), len(some)) for some in (ids[ids != ABSENT], single))
    message = (
        f"{where}: {shared:,} of {total:,} launches or kernels have the correlation id of another; which call launched what is unknown"
    )
    return _broken("ids-shared", message, shared, total)


def _repeated(values: Int32 | Int64) -> int:
    """How many values are equal to another."""
    _, times = np.unique(values, return_counts=True)
    return int(times[times > 1].sum())


def _work_before_launch(where: str, trace: Trace, work: DeviceWork) -> Iterator[Evidence]:
    """Work that starts before the call that launched it begins. Clocks that make it start so early differ by no less."""
    by = (trace.start[work.call] - work.start)[work.call >= 0]
    early = int((by > 0).sum())
    message = f"{where}: {early:,} of {len(by):,} pieces of device work start before their launch: clocks or ids are wrong"
    off = float(by.max() / max(np.ptp(work.end), 1)) if early else 0.0
    return _broken("work-before-launch", message, early, len(by), off)


def _returns_early(where: str, trace: Trace, calls: Int8, work: DeviceWork) -> Iterator[Evidence]:
    """Synchronisations of a device that return before the work that was launched before them has ended."""
    waits = np.flatnonzero(calls == Call.DEVICE_SYNC)
    awaited = np.full(len(waits), np.iinfo(np.int64).max)
    device = np.array([device for device, _ in work.streams], np.int64)
    for own in unique(device).tolist():  # a call waits for one device, and which that is it does not say
        issued = np.flatnonzero((device[work.stream] == own) & (work.call >= 0))
        order = issued[np.argsort(work.issued[issued])]
        last = np.append(0, np.maximum.accumulate(work.end[order]))
        awaited = np.minimum(awaited, last[np.searchsorted(work.issued[order], trace.start[waits])])
    early = int((trace.start[waits] + trace.duration[waits] < awaited - ROUNDING).sum()) if len(work) else 0
    message = f"{where}: {early:,} of {count(len(waits), 'wait')} for the device return before its work ends: clocks or times are wrong"
    return _broken("returns-early", message, early, len(waits))


def _operators_disagree(where: str, trace: Trace, work: DeviceWork) -> Iterator[Evidence]:
    """Work that names another operator than the call that launched it."""
    launched = work.call >= 0
    of_work, of_call = trace.external_id[work.row[launched]], trace.external_id[work.call[launched]]
    both = (of_work > 0) & (of_call > 0)
    wrong = int((both & (of_work != of_call)).sum())
    message = f"{where}: {wrong:,} of {int(both.sum()):,} pieces of device work name another operator than their launch: the ids are wrong"
    return _broken("ids-disagree", message, wrong, int(both.sum()))


def _overlaps_on_streams(where: str, work: DeviceWork) -> Iterator[Evidence]:
    """Time in which a stream runs several pieces of work at once. Two can overlap where one was told to start before the other ends
    (programmatic dependent launch), three cannot."""
    total = int((work.end - work.start).sum())
    if not total or not _overlaps(work):
        return
    two, three = (_at_once(work, depth) / total for depth in (2, 3))
    message = f"{where}: streams run several pieces of work at once for {two:.1%} of their time, although a stream runs one after the other"
    if two > NEGLIGIBLE:
        yield Evidence("stream-overlap", message, Grade.UNSOUND if three > NEGLIGIBLE else Grade.SOUND, two)


def _overlaps(work: DeviceWork) -> bool:
    """Whether any work begins before all earlier work of its stream has ended, by more than times are rounded by."""
    return any(
        bool((np.maximum.accumulate(work.end[low:high])[:-1] - work.start[low + 1 : high] > ROUNDING).any())
        for low, high in pairwise(work.bounds().tolist())
    )


def _at_once(work: DeviceWork, depth: int) -> int:
    """The time in which a stream runs at least `depth` pieces of work, summed over streams, ns."""
    stream = np.concatenate((work.stream, work.stream))
    time = np.concatenate((work.start, work.end))
    step = np.concatenate((np.ones(len(work), np.int64), np.full(len(work), -1, np.int64)))
    order = np.lexsort((step, time, stream))
    running = np.cumsum(step[order])
    lasts = np.diff(time[order], append=time[order][-1:])
    return int(lasts[running >= depth].sum())


def _overlaps_on_threads(where: str, trace: Trace, crossing: int) -> Iterator[Evidence]:
    """Operators and calls that begin inside another on their thread and end after it."""
    rows = int(trace.is_any(Category.OPERATOR, Category.RUNTIME).sum())
    message = f"{where}: {crossing:,} of {rows:,} operators and calls end after the one on their thread in which they began"
    return _broken("thread-overlap", message, crossing, rows)


def _operators_lost(where: str, trace: Trace, work: DeviceWork) -> Iterator[Evidence]:
    """Device work that names an operator which the recording lacks. Times do not depend on it, names and shapes do."""
    named = trace.external_id[work.row]
    named = named[named > 0]
    if not len(named):
        return
    recorded = np.isin(named, trace.external_id[trace.is_any(Category.OPERATOR, Category.ANNOTATION)])  # messages sent together are a range
    share = 1 - float(recorded.mean())
    if 0 < share <= _MOST_NAMES:
        lost = len(named) - int(recorded.sum())
        message = f"{where}: {lost:,} of {len(named):,} pieces of device work name an operator that the recording lacks ({share:.1%})"
        yield Evidence("operators-lost", message, Grade.LIMITED)


def _numbers_missing(where: str, trace: Trace) -> Iterator[Evidence]:
    """Gaps in the numbers that the profiler gives the rows of CPU threads, where they are many. A few may be jumps of the counter."""
    column = trace.args.get("Ev Idx")
    if column is None:
        return
    gaps = np.diff(np.sort(column.values, kind="stable")) - 1  # mostly in order, and then sorted at once
    gaps = gaps[(gaps > 0) & (gaps < len(column.values))]
    missing = int(gaps.sum())
    total = len(column.values) + missing
    if len(gaps) > _MOST_JUMPS * len(column.values):
        message = f"{where}: {missing:,} of {total:,} numbered rows are missing ({missing / total:.1%}), operators or Python functions"
        yield Evidence("rows-lost", message, Grade.LIMITED)


def _branches(where: str, calls: Int8, work: DeviceWork) -> Iterator[Evidence]:
    """Graph launches whose kernels run on several streams: what waits for what inside the graph is not recorded."""
    of_graph = np.flatnonzero((work.call >= 0) & (calls[work.call] == Call.GRAPH_LAUNCH))
    pairs = unique(work.call[of_graph].astype(np.int64) * len(work.streams) + work.stream[of_graph])
    graphs, streams = np.unique(pairs // max(len(work.streams), 1), return_counts=True)
    branched = graphs[streams > 1]
    if not len(branched):
        return
    inside = of_graph[np.isin(work.call[of_graph], branched)]
    share = float((work.end[inside] - work.start[inside]).sum() / max(1, (work.end - work.start).sum()))
    message = (
        f"{where}: {count(len(branched), 'launched graph')} with {share:.0%} of the device work ran kernels on several streams;"
        " what waits for what inside a graph is not recorded"
    )
    yield Evidence("graph-branches", message, Grade.LIMITED)


def _waits_unresolved(where: str, work: DeviceWork, waits: StreamWaits) -> Iterator[Evidence]:
    """Waits between streams for which no awaited work was found, or that the profiler left out where ranks communicate, as ROCm's may. With
    one stream there is nothing to wait for."""
    total = waits.exact + waits.inferred + waits.unresolved
    unknown = waits.unresolved / total if total else float(work.communicates.any())
    if len(work.streams) < 2 or not unknown:
        return
    busy, window = int((work.end - work.start).sum()), int(work.end.max() - work.start.min())
    elsewhere = busy - int(np.bincount(work.stream, weights=work.end - work.start).max())
    shown = (
        f"for {waits.unresolved:,} of {total:,} waits between streams no awaited work was found"
        if total
        else ("it shows no waits between streams, although it communicates")
    )
    share = unknown * min(1.0, elsewhere / max(window, 1))
    if share > NEGLIGIBLE:
        message = f"{where}: {shown}; after a change, work on several streams may run in another order"
        yield Evidence("waits-unresolved", message, Grade.SOUND, share)


def _loader_waits(where: str, share: float) -> Iterator[Evidence]:
    """Time in which the loop waits for batches of other processes. What a change makes of it is in the answer's interval."""
    if share > NEGLIGIBLE:
        message = f"{where}: for {share:.1%} of its time the loop waits for batches of other processes, whose work is not recorded"
        yield Evidence("loader-waits", message, Grade.SOUND)


def _polls(where: str, polled: Polls) -> Iterator[Evidence]:
    """Waits that poll: when a thread asks next after the event has come to pass is chance after a change."""
    if len(polled.call):
        start, took = polled.trace.start[polled.call], polled.trace.duration[polled.call]
        share = min(polled.late / max(int((start + took).max() - start.min()), 1), 1.0)
        message = f"{where}: {count(len(start), 'wait')} poll for an event, and may go on {share:.1%} of the time after it has come to pass"
        yield Evidence("polled", message, Grade.SOUND, share)
