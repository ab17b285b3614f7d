"""What was issued to each stream before a moment, and where among it a wait finds its source.

A wait in the code has one source, wherever it is repeated: the work so many pieces before the last that was issued to one stream when
the call began. Which pieces may be awaited follows from the order of calls. Measured times only refute: a piece that ended
after the wait was over was not awaited, and a position that one repetition refutes is refuted for all of them. Calls, of which many have
one name, repeat each other where their threads launched the same kernels before and after them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.calls import Call
from lumos.graph.lists import grouped, numbered, ordinals
from lumos.graph.places import step_at
from lumos.graph.steps import is_step_mark
from lumos.graph.waits.notes import BEFORE
from lumos.trace.table import ABSENT, Int8, Int32, Int64, Trace

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork

#: The time at which work that no event marks can be awaited: never.
NO_TIME = np.iinfo(np.int64).max
#: In the place of awaited work where repetitions refute all of a stream.
REFUTED = -2


class Issued:
    """The device work issued to each stream, searched by the time of the launching call."""

    def __init__(self, work: DeviceWork) -> None:
        self.work = work
        self.bounds = work.bounds()
        #: A clock of whole microseconds may show the end of work up to 1 us late.
        self.rounding = 1000 if not (work.start % 1000).any() else 0
        #: When all work that had been issued to its stream before it, and it itself, had ended.
        self.ended = np.empty(len(work), np.int64)
        for low, high in pairwise(self.bounds.tolist()):
            np.maximum.accumulate(work.end[low:high], out=self.ended[low:high])

    def last_before(self, stream: int, time: Int64) -> Int64:
        """Index of the last work on `stream` whose call started before each time; ABSENT where there is none."""
        low, high = self.bounds[stream : stream + 2].tolist()
        at = np.searchsorted(self.work.issued[low:high], time, "left")
        return np.where(at > 0, low + at - 1, ABSENT)

    def next_after(self, stream: int, time: Int64) -> Int64:
        """Index of the first work on `stream` whose call started at each time or later; ABSENT where there is none."""
        low, high = self.bounds[stream : stream + 2].tolist()
        at = low + np.searchsorted(self.work.issued[low:high], time, "left")
        return np.where(at < high, at, ABSENT)

    def last_of_all_before(self, time: Int64) -> Int64:
        """Of the last work on each stream whose call started before each time, the one that ended last; ABSENT where there is none."""
        out = np.full(len(time), ABSENT, np.int64)
        for stream in range(len(self.work.streams)):
            last = self.last_before(stream, time)
            later = (last >= 0) & ((out < 0) | (self.work.end[last] > self.work.end[out]))
            out[later] = last[later]
        return out

    def marked(self, stream: int, recorded: Int64, called: Int64, until: Int64) -> Int64:
        """Index of the work on `stream` that events stand for; ABSENT where there is none. Of work from before the recording, the last that
        had ended by then. recorded: when they were (`Notes`). called, until: when a wait for each was called, and by when the work had
        ended."""
        low, high = self.bounds[stream : stream + 2].tolist()
        ended = low + np.searchsorted(self.ended[low:high], until + self.rounding, "right") - 1
        last = self.last_before(stream, np.where(recorded == ABSENT, called, recorded))
        return np.where((recorded == BEFORE) & (ended < last), np.where(ended >= low, ended, ABSENT), last)

    def sources(self, stream: int, time: Int64, until: Int64, awaitable: Int64, *, last: bool) -> Int64:
        """The work on `stream` that a repeated wait awaits, int64[k] indices; ABSENT where it was issued before the recording.

        time, until: int64[k], when each repetition was called, and by when the awaited work had ended. awaitable: int64[works], from
        when each piece of work can be awaited (`awaitable_from`). last: whether the last issued work can be awaited in any case.
        REFUTED throughout where every position is.
        """
        low, high = int(self.bounds[stream]), int(self.bounds[stream + 1])
        newest = low + np.searchsorted(self.work.issued[low:high], time, "left") - 1
        ended = low + np.searchsorted(self.ended[low:high], until + self.rounding, "right") - 1
        furthest = int((newest - low).max(initial=-1))
        position = max(int((newest - ended).max(initial=0)), 0)
        if position == 0 and last and furthest >= 0:
            return np.where(newest >= low, newest, ABSENT)
        while position <= furthest:  # in growing pieces, because the source is mostly near
            back = np.arange(position, min(2 * position + 64, furthest + 1))
            position = int(back[-1]) + 1
            for some in (slice(-1, None), slice(-8, -1), slice(0, -8)):  # the last have most work before them, and refute most positions
                at = newest[some, None] - back
                back = back[((at < low) | (awaitable[np.maximum(at, low)] <= time[some, None])).all(axis=0)]
            if len(back):
                found = newest - back[0]
                return np.where(found >= low, found, ABSENT)
        return np.full(len(time), REFUTED)

    def in_turn(self, stream: int, time: Int64, until: Int64, awaitable: Int64, in_step: int) -> Int64 | None:
        """The work on `stream` that calls await which wait for its events in turn, int64[k] indices; ABSENT where it was issued before
        the recording. None where there are not as many events in every step as calls.

        All calls wait for the same number of events back, the smallest that none of them refutes. time, until, awaitable: as in `sources`.
        in_step: how many calls a step has.
        """
        low, high = int(self.bounds[stream]), int(self.bounds[stream + 1])
        events = low + np.flatnonzero((awaitable[low:high] != NO_TIME) & (self.work.issued[low:high] > np.iinfo(np.int64).min))
        newest = np.searchsorted(awaitable[events], time, "left") - 1
        if not len(events) or (newest[in_step:] - newest[:-in_step] != in_step).any():
            return None
        ended = np.searchsorted(np.maximum.accumulate(self.work.end[events]), until + self.rounding, "right") - 1
        number = np.arange(len(time))
        at = number - int((number - np.minimum(newest, ended)).max())
        return np.where(at >= 0, events[np.maximum(at, 0)], ABSENT)


def awaitable_from(trace: Trace, calls: Int8, issued: Issued) -> Int64 | None:
    """From when each piece of work can be awaited through an event, int64[works] ns: the first record call after its launch and before
    the next launch to its stream; NO_TIME where there is none. None where the trace has no record calls. Record calls for work that was
    launched before the recording lie before it too, so that any such work can be awaited."""
    records = np.sort(trace.start[calls == Call.EVENT_RECORD])
    if not len(records):
        return None
    work, bounds = issued.work, issued.bounds
    out = np.where(work.issued == np.iinfo(np.int64).min, work.issued, NO_TIME)
    for low, high in pairwise(bounds.tolist()):
        last = low + np.searchsorted(work.issued[low:high], records, "left") - 1
        inside = last >= low
        np.minimum.at(out, last[inside], records[inside])
    return out


def issued_together(trace: Trace, work: DeviceWork) -> Int64:
    """The same where record calls were not recorded, int64[works] ns: the launch of every collective, which communication libraries
    follow by an event, and of work after which its thread went on to launch to another stream; any work from before the recording."""
    before = work.issued == np.iinfo(np.int64).min
    out = np.where(work.communicates | before, work.issued, NO_TIME)
    launched = np.flatnonzero(work.call >= 0)
    launched = launched[np.lexsort((launched, work.issued[launched], trace.lane[work.call[launched]]))]
    leaves = np.flatnonzero(work.stream[launched[1:]] != work.stream[launched[:-1]])
    out[launched[leaves]] = work.issued[launched[leaves]]
    return out


def recurrences(trace: Trace, work: DeviceWork, lane: Int32, time: Int64) -> list[Int64]:
    """The calls of each place in the code, as positions in `lane` and `time` (ns), which ascends; places by their first call."""
    places = [place for alike in alike_places(trace, work, lane, time) for place in alike]
    return sorted(places, key=lambda calls: int(calls[0]))


def alike_places(trace: Trace, work: DeviceWork, lane: Int32, time: Int64) -> list[list[Int64]]:
    """The same, with the places together that differ only in their number within a step: the layers of a model, say. Calls stand at one
    place where the same kernels were launched before and after them and, where steps are marked, where they are the same one of as many
    such calls in their step: a place is then run once in every step."""
    context = numbered(*_kernels_around(trace, work, lane, time))
    if not is_step_mark(trace).any():
        return [[calls] for calls in _by_value(context)]
    of_step = numbered(context, step_at(trace, time))
    place = numbered(ordinals(of_step), np.bincount(of_step)[of_step]) if len(time) else context
    return [[calls[of] for of in _by_value(numbered(place[calls]))] for calls in _by_value(context)]


def _by_value(number: Int64) -> list[Int64]:
    """The positions of each value, ascending."""
    lists = grouped(number, int(number.max(initial=-1)) + 1)
    return [lists.flat[low:high] for low, high in pairwise(lists.offset.tolist())]


def _kernels_around(trace: Trace, work: DeviceWork, lane: Int32, time: Int64) -> tuple[Int64, Int64]:
    """Names of the device work that the thread of each call launched last before it and first after it; -1 without any."""
    before, after = np.full(len(time), -1, np.int64), np.full(len(time), -1, np.int64)
    launched = np.flatnonzero(work.call >= 0)
    launched = launched[np.argsort(trace.start[work.call[launched]], kind="stable")]
    for thread in np.unique(lane):
        mine = launched[trace.lane[work.call[launched]] == thread]
        here = np.flatnonzero(lane == thread)
        at = np.searchsorted(trace.start[work.call[mine]], time[here], "left")
        name = np.concatenate(([-1], trace.name[work.row[mine]], [-1]))
        before[here], after[here] = name[at], name[at + 1]
    return before, after
