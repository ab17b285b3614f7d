"""What waits are for, where nobody noted it: candidates, of which repetitions refute some, and the choice of one.

What can be awaited follows from the order of calls: whatever was issued, or the work that an event stands for. A wait in the code has one
source, wherever it is repeated: so many events before the last that had been recorded when it was called. Measured times only refute: work
that ended after a wait was over was not awaited, and what one repetition refutes is refuted for all of them. The latest that remains of a
stream is a candidate. Candidates are chosen in one order for all waits, first those whose work explains how long a wait lasted: of a call
the one that explains most of those that are alike; other work, which may wait for several, is content with any. The waits that fewest
explain choose first, then those that hold back what is launched next, and of several streams the one issued to last, unless the waiting one
waits for that work anyhow. A wait may remain unresolved.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import grouped, numbered, ordinals
from lumos.graph.places import step_at
from lumos.graph.waits.issued import BEFORE, NO_TIME, Issued
from lumos.trace.table import ABSENT, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.graph.launches import DeviceWork

#: A call that returns within this time after the end of device work may have waited for that work (ns): an interrupt and
#: the wake-up of a thread take some 5-50 us.
WAKE_UP = 60_000

#: A call that takes at least this much longer than the usual call of its kind waits for something (ns).
LONG_CALL = 20_000


class Repetitions(NamedTuple):
    """Which calls repeat each other: those of one `place`, numbered by their first call. alike: also those of places that differ only in
    their number within a step, as in the layers of a model."""

    place: Int64
    alike: Int64


def repetitions(trace: Trace, work: DeviceWork, rows: Int32 | Int64) -> Repetitions:
    """The places of calls, in `rows` by their start, of which many have one name. They stand at one place where the same kernels were
    launched before and after them and, where steps are marked, where they are the same one of as many such calls in their step: a place
    is then run once in every step."""
    alike = numbered(*_kernels_around(trace, work, rows))
    call_place = in_steps(alike, step_at(trace, trace.start[rows]))
    _, first, call_place = np.unique(call_place, return_index=True, return_inverse=True)
    return Repetitions(np.argsort(np.argsort(first))[call_place], alike)


def in_steps(alike: Int64, step: Int64) -> Int64:
    """Numbers for the places of rows in the code, where steps are marked: those that are `alike`, the same one of as many in their step."""
    if not step.any():
        return alike
    of_step = numbered(alike, step)
    return numbered(alike, ordinals(of_step), np.bincount(of_step)[of_step])


def _kernels_around(trace: Trace, work: DeviceWork, rows: Int32 | Int64) -> tuple[Int64, Int64]:
    """Names of the device work that the thread of each call launched last before it and first after it; -1 without any."""
    before, after = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    launched = np.flatnonzero(work.call >= 0)
    launched = launched[np.argsort(trace.start[work.call[launched]], kind="stable")]
    for thread in unique(trace.lane[rows]):
        mine = launched[trace.lane[work.call[launched]] == thread]
        here = np.flatnonzero(trace.lane[rows] == thread)
        at = np.searchsorted(trace.start[work.call[mine]], trace.start[rows[here]], "left")
        name = np.concatenate(([-1], trace.name[work.row[mine]], [-1]))
        before[here], after[here] = name[at], name[at + 1]
    return before, after


class OpenWaits(NamedTuple):
    """Waits of which nobody noted what they are for, int64[k]; one has several rows where it is not known what it holds back.

    place: the same for waits that repeat each other; alike: also where they differ only in their number within a step, as in the layers of
    a model. option: numbers what waits of one place may hold back, the likeliest first. held: what that is, and stream: the one that it is
    on, ABSENT for calls. called, over: what was issued before can be awaited, and by when the wait was over; begun: from when it lasts, ns.
    """

    place: Int64
    alike: Int64
    option: Int64
    held: Int64
    stream: Int64
    called: Int64
    over: Int64
    begun: Int64


class Awaitable(NamedTuple):
    """What waits may be for. since: int64[works], from when each piece of work can be awaited, ascending on every stream, or NO_TIME; or,
    for events, when each of them was recorded, ascending, and `recorded`: each then stands for what had been issued last to whatever stream
    it is of. furthest: how many before the last a wait may be for. fewest: how many of the waits that are alike it must explain.
    in_turn: where positive, the waits, so many in a step, are for the work behind which events were recorded one after the other."""

    since: Int64
    furthest: int | Int64 = NO_TIME
    fewest: int = 0
    recorded: bool = False
    in_turn: int = 0

    def on(self, issued: Issued, stream: int) -> tuple[Int64, Int64]:
        """From when on something of a stream can be awaited, ascending, and the work that this is, ABSENT where that is not known."""
        if self.recorded:
            works = issued.last_before(stream, self.since)
            some = np.diff(works, prepend=ABSENT) > 0 if self.in_turn else np.ones(len(works), bool)
            return self.since[some], works[some]
        low, high = issued.bounds[stream : stream + 2].tolist()
        works = low + np.flatnonzero(self.since[low:high] != NO_TIME)
        return self.since[works], works


class _Candidate(NamedTuple):
    """What the wait at a place may be for; in order, the likeliest comes first. explains: less by one for each call that it explains.
    option: less likely the larger it is. place: less for places that are called later. since: how long before the wait it was issued, ns.
    kind: position among what is awaitable. rows: of `OpenWaits`, and source: the work that each is for."""

    explains: int
    option: int
    place: int
    since: int
    kind: int
    stream: int
    rows: Int64
    source: Int64


def solve(issued: Issued, waits: OpenWaits, awaitable: Sequence[Awaitable], within: int = 0) -> tuple[Int64, Int64]:
    """The rows of the waits that are resolved, and the work that each is for, ABSENT where there was none. awaitable: the likeliest first.
    within: see `work_for`.

    Nobody lets work wait for what a stream or call waits for anyhow, since it comes before other work that is awaited, or since earlier
    work of the waiting stream awaits it: such candidates come last. What work waits for anyhow shows in the waits that are called later, so
    that of several places the last has the first choice.
    """
    chosen: dict[int, _Candidate] = {}
    awaited = dict[tuple[int, int], Int64]()  # by waiting and awaited stream: of each work that may be held back, the latest it waits for
    held, at = np.unique(waits.held, return_inverse=True)
    ranked = _ranked(issued, waits, awaitable, within)
    for one in ranked:
        waiting = int(waits.stream[one.rows[0]])
        known = awaited.setdefault((waiting, one.stream), np.full(len(held), ABSENT, np.int64))
        if one.place not in chosen and (known[at[one.rows]] < one.source).any():
            chosen[one.place] = one
            np.maximum.at(known, at[one.rows], one.source)
            if waiting != ABSENT:  # what follows on a stream waits for it too
                np.maximum.accumulate(known, out=known)
    for one in ranked:
        chosen.setdefault(one.place, one)
    none = [np.empty(0, np.int64)]
    return np.concatenate(none + [one.rows for one in chosen.values()]), np.concatenate(none + [one.source for one in chosen.values()])


def work_for(issued: Issued, waits: OpenWaits, awaitable: Sequence[Awaitable], within: int) -> tuple[Int64, Int64]:
    """What remains for each wait, ABSENT without any, and how many that are alike it explains, int64[streams, awaitable, waits] each.
    within: so many ns after the end of some work a wait for it is over; where it is 0, that says nothing."""
    shape = len(issued.bounds) - 1, len(awaitable), len(waits.place)
    remaining = np.array([[unrefuted(issued, waits, s, some) for some in awaitable] for s in range(shape[0])], np.int64).reshape(shape)
    explains = _explained(issued, waits, remaining, within) if within else np.zeros_like(remaining)
    fewest = np.array([some.fewest for some in awaitable])[:, None]
    return np.where(explains >= fewest, remaining, ABSENT), explains


def _ranked(issued: Issued, waits: OpenWaits, awaitable: Sequence[Awaitable], within: int) -> list[_Candidate]:
    """All candidates, in order."""
    remaining, explains = work_for(issued, waits, awaitable, within)
    explains = np.where(waits.stream >= 0, explains > 0, explains)
    out, likeliest = list[_Candidate](), dict[int, int]()
    repeated = grouped(waits.option, int(waits.option.max(initial=-1)) + 1)
    for rows in (repeated.flat[low:high] for low, high in pairwise(repeated.offset.tolist()) if low < high):
        called, latest = int(waits.called[rows].max()), issued.issued[remaining[:, :, rows].max(axis=(1, 2))]
        since = [called - time for time in latest.tolist()]  # 64 bits do not hold it for what was issued before the recording
        call_place, option, most = -int(waits.place[rows[0]]), int(waits.option[rows[0]]), explains[:, :, rows[0]]
        option -= likeliest.setdefault(call_place, option)
        for s, kind in np.argwhere((remaining[:, :, rows] >= 0).any(axis=2)).tolist():
            out.append(_Candidate(-int(most[s, kind]), option, call_place, since[s], kind, s, rows, remaining[s, kind, rows]))
    rivals = Counter(one.place for one in out if one.explains)
    return sorted(out, key=lambda one: (one.explains, one.explains and rivals[one.place], one[1:6]))


def unrefuted(issued: Issued, waits: OpenWaits, stream: int, awaitable: Awaitable) -> Int64:
    """The latest work on a stream that each row may be for and that its repetitions do not refute, int64[k]; ABSENT without any. Of work
    from before the recording, it is the last that had ended when the wait was over."""
    since, works = awaitable.on(issued, stream)
    newest = np.searchsorted(since, waits.called, "left") - 1
    ended = np.searchsorted(np.maximum.accumulate(np.append(issued.ended, BEFORE)[works]), waits.over, "right") - 1
    turn = awaitable.in_turn  # where the waits are for one after the other, all together are one that is repeated
    number, group = (np.arange(len(newest)), np.zeros_like(newest)) if turn else (newest, waits.option)
    back, first = (np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min) for _ in range(2))
    np.maximum.at(back, group, number - np.minimum(newest, ended))
    np.maximum.at(first, group, number)
    remains = (back <= np.maximum(first, 0))[group] & (back[group] <= awaitable.furthest) & (waits.stream != stream)
    remains &= not turn or bool((newest[turn:] - newest[:-turn] == turn).all())
    early = issued.marked(stream, np.full(len(newest), BEFORE), waits.over)
    at = number - back[group]
    return np.where(remains, np.where(at >= 0, np.append(works, ABSENT)[np.maximum(at, ABSENT)], early), ABSENT)


def _explained(issued: Issued, waits: OpenWaits, remaining: Int64, within: int) -> Int64:
    """For every row, how many of the waits that are alike lasted long, and were over `within` so many ns of the end of what is
    `remaining` for them."""
    end = np.where(remaining >= 0, np.append(issued.end, 0)[remaining], waits.begun)
    returned = (waits.over - waits.begun >= LONG_CALL) & (end > waits.begun) & (waits.over - end <= within)
    counted = np.zeros((int(waits.alike.max(initial=-1)) + 1, *remaining.shape[1::-1]), np.int64)
    np.add.at(counted, waits.alike, returned.T)
    return counted[waits.alike].T
