"""What waits are for, where nobody noted it: candidates, of which repetitions refute some, and the choice of one.

What can be awaited follows from the order of calls: whatever was issued, or the work that an event stands for. A wait in the code has one
source, wherever it is repeated: so many events before the last that had been recorded when it was called. Measured times only refute: work
that ended after a wait was over was not awaited, and what one repetition refutes is refuted for all of them. The latest work that remains
on a stream is a candidate. Of several streams, the one is chosen whose work explains most of the calls that are alike, and of those the one
issued to last. Where nothing remains, the wait is unresolved.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import grouped, numbered, ordinals
from lumos.graph.places import step_at
from lumos.graph.waits.issued import BEFORE, NO_TIME, Issued
from lumos.trace.table import ABSENT, Int32, Int64, Trace

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
    alike = place = numbered(*_kernels_around(trace, work, rows))
    step = step_at(trace, trace.start[rows])
    if step.any():
        of_step = numbered(alike, step)
        place = numbered(alike, ordinals(of_step), np.bincount(of_step)[of_step])
    _, first, place = np.unique(place, return_index=True, return_inverse=True)
    return Repetitions(np.argsort(np.argsort(first))[place], alike)


def _kernels_around(trace: Trace, work: DeviceWork, rows: Int32 | Int64) -> tuple[Int64, Int64]:
    """Names of the device work that the thread of each call launched last before it and first after it; -1 without any."""
    before, after = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    launched = np.flatnonzero(work.call >= 0)
    launched = launched[np.argsort(trace.start[work.call[launched]], kind="stable")]
    for thread in np.unique(trace.lane[rows]):
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
    """What waits may be for. since: int64[works], from when each piece of work can be awaited, ascending on every stream, or NO_TIME.
    furthest: how many pieces before the last a wait may be for. in_turn: where positive, the waits, so many in a step, are for these pieces
    one after the other, instead of each for one so many before the last. fewest: how many of the waits that are alike it must explain."""

    since: Int64
    furthest: int | Int64 = NO_TIME
    in_turn: int = 0
    fewest: int = 0


class _Candidate(NamedTuple):
    """What the wait at a place may be for; in order, the likeliest comes first. explains: less by one for each call that it explains, and
    latest: less the later it was issued. kind: position among what is awaitable. rows: of `OpenWaits`, and source: the work that each is
    for."""

    place: int
    option: int
    explains: int
    latest: int
    kind: int
    stream: int
    rows: Int64
    source: Int64

    def pairs(self, waits: OpenWaits) -> set[tuple[int, int]]:
        """What is held back, and by what."""
        return {*zip(waits.held[self.rows].tolist(), self.source.tolist(), strict=True)}


def solve(issued: Issued, waits: OpenWaits, awaitable: Sequence[Awaitable], within: int = 0) -> tuple[Int64, Int64]:
    """The rows of the waits that are resolved, and the work that each is for, ABSENT where there was none. awaitable: the likeliest first.
    within: see `work_for`.

    Nobody lets the same work wait for the same work twice, so of several candidates those come first that no other wait has.
    """
    chosen: list[_Candidate] = []
    known: set[tuple[int, int]] = set()
    for _, of_place in groupby(_ranked(issued, waits, awaitable, within), key=lambda one: one.place):
        several = list(of_place)
        chosen.append(next((one for one in several if not one.pairs(waits) <= known), several[0]))
        known |= chosen[-1].pairs(waits)
    none = [np.empty(0, np.int64)]
    return np.concatenate(none + [one.rows for one in chosen]), np.concatenate(none + [one.source for one in chosen])


class WorkForWaits(NamedTuple):
    """What waits may be for, int64[streams, awaitable, waits]: the work, ABSENT without any, and how many of the waits that are alike it
    explains."""

    found: Int64
    explains: Int64


def work_for(issued: Issued, waits: OpenWaits, awaitable: Sequence[Awaitable], within: int) -> WorkForWaits:
    """What remains for each wait. within: so many ns after the end of some work a wait for it is over; where it is 0, that says nothing."""
    shape = len(issued.bounds) - 1, len(awaitable), len(waits.place)
    found = np.array([[unrefuted(issued, waits, s, some) for some in awaitable] for s in range(shape[0])], np.int64).reshape(shape)
    explains = _explained(issued, waits, found, within) if within else np.zeros_like(found)
    fewest = np.array([some.fewest for some in awaitable])[:, None]
    return WorkForWaits(np.where(explains >= fewest, found, ABSENT), explains)


def _ranked(issued: Issued, waits: OpenWaits, awaitable: Sequence[Awaitable], within: int) -> list[_Candidate]:
    """All candidates, in order."""
    found, explains = work_for(issued, waits, awaitable, within)
    out = []
    repeated = grouped(waits.option, int(waits.option.max(initial=-1)) + 1)
    for rows in (repeated.flat[low:high] for low, high in pairwise(repeated.offset.tolist()) if low < high):
        latest = issued.issued[found[:, :, rows].max(axis=(1, 2))].tolist()
        place, option = int(waits.place[rows[0]]), int(waits.option[rows[0]])
        for s, kind in np.argwhere((found[:, :, rows] >= 0).any(axis=2)).tolist():
            out.append(_Candidate(place, option, -int(explains[s, kind, rows[0]]), -latest[s], kind, s, rows, found[s, kind, rows]))
    return sorted(out, key=lambda one: one[:6])


def unrefuted(issued: Issued, waits: OpenWaits, stream: int, awaitable: Awaitable) -> Int64:
    """The latest work on a stream that each row may be for and that its repetitions do not refute, int64[k]; ABSENT without any. Of work
    from before the recording, it is the last that had ended when the wait was over."""
    low, high = issued.bounds[stream : stream + 2].tolist()
    events = low + np.flatnonzero(awaitable.since[low:high] != NO_TIME)
    newest = np.searchsorted(awaitable.since[events], waits.called, "left") - 1
    ended = np.searchsorted(issued.ended[events], waits.over + issued.rounding, "right") - 1
    turn = awaitable.in_turn  # where the waits are for one after the other, all together are one that is repeated
    number, group = (np.arange(len(newest)), np.zeros_like(newest)) if turn else (newest, waits.option)
    back, first = (np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min) for _ in range(2))
    np.maximum.at(back, group, number - np.minimum(newest, ended))
    np.maximum.at(first, group, number)
    remains = (back <= np.maximum(first, 0))[group] & (back[group] <= awaitable.furthest) & (waits.stream != stream)
    if turn and (newest[turn:] - newest[:-turn] != turn).any():
        remains[:] = False
    at = np.maximum(number - back[group], ABSENT)
    early = issued.marked(stream, np.full(len(at), BEFORE), waits.over)
    return np.where(remains, np.where(at >= 0, np.append(events, ABSENT)[at], early), ABSENT)


def _explained(issued: Issued, waits: OpenWaits, found: Int64, within: int) -> Int64:
    """For every row, how many of the waits that are alike lasted long, and were over `within` so many ns of the end of what was `found` for
    them."""
    end = np.where(found >= 0, np.append(issued.end, 0)[found], waits.begun)
    returned = (waits.over - waits.begun >= LONG_CALL) & (end > waits.begun) & (waits.over - end <= within)
    counted = np.zeros_like(found.T)
    np.add.at(counted, waits.alike, returned.T)
    return counted[waits.alike].T
