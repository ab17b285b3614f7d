"""What the ranks of the simulated machine of `validation.machine` did: their rows, their device work and what that waited for.

All times are whole ns from the begin of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from validation.program import Collective, Message


@dataclass(slots=True)
class Work:
    """A kernel of a run. launched: when its launch returned. start, end: None as long as they are not known.

    step, correlation: the step and the call that launched it. after: other work that it waits for. meets: the transfers that it carries.
    meetings: of each, the work of all of its ranks.
    """

    name: str
    stream: int
    duration: int
    step: int
    correlation: int
    launched: int
    after: list[Work]
    meets: tuple[Collective | Message, ...] = ()
    meetings: list[Meeting] = field(default_factory=list)
    start: int | None = None
    end: int | None = None


@dataclass(slots=True)
class Meeting:
    """One transfer. work: that of the ranks which have launched theirs. ranks: how many there are."""

    ranks: int
    work: list[Work] = field(default_factory=list)


class Event(NamedTuple):
    """An event that was recorded. work: the last on the stream by then. call: the correlation of the call that recorded it."""

    work: Work | None
    stream: int
    call: int


class Row(NamedTuple):
    """What a thread did: an operator ("cpu_op"), a runtime call ("cuda_runtime") or a range ("user_annotation")."""

    category: str
    name: str
    thread: int
    step: int
    start: int
    duration: int
    correlation: int = -1


class Note(NamedTuple):
    """What a call that waits refers to, as the profiler may note it. name: of the note. call: its correlation.

    stream: the one that waits, or that is waited for by a synchronisation of a stream; -1 none. event: the one that is waited for.
    """

    name: str
    call: int
    stream: int
    event: Event | None = None


@dataclass(slots=True)
class RankRun:
    """What one rank did. marks: begin and end of every step's mark. work: in the order of the launches. seen: of its threads, those that
    are in the recorded process, the first ones."""

    seen: int
    rows: list[Row] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What all ranks did in `steps` steps."""

    ranks: tuple[RankRun, ...]
    steps: int

    def completions(self) -> list[int]:
        """When every step was complete: all that it did has ended on every rank, and so have the steps before."""
        last = [0] * self.steps
        for rank in self.ranks:
            for row in rank.rows:
                last[row.step] = max(last[row.step], row.start + row.duration)
            for work in rank.work:
                last[work.step] = max(last[work.step], work.end or 0)
        for i in range(1, self.steps):
            last[i] = max(last[i], last[i - 1])
        return last

    def period_ns(self, steps: int = 4) -> float:
        """What the loop takes for a step: the mean over the last `steps`."""
        ends = self.completions()
        return (ends[-1] - ends[-1 - steps]) / steps
