"""Ranks whose CPU gets less of the machine than it could use, and stalls of the CPU that no operator explains.

`lumos.collect` notes for each step how long the thread that trains ran, and how long it was ready to run and had to wait for a processor.
On a processor of its own it takes as long as it ran. Without such rows, a stall shows as an operator that now and then takes many times as
long as the same operator elsewhere: the thread was taken off its processor in the middle of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.ranks.equal_work import Like, durations_like
from lumos.findings.finding import FindingCode, ranks_words
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.findings.case import Case, Priced
    from lumos.trace.table import Trace

#: A rank is starved that waited for this share of the time in which its thread could have run.
WAITS = 0.1


class _Got(NamedTuple):
    """What the training thread of a rank got in a step, the mean over steps. cores: that the rank may use; 0 for unknown."""

    rank: int
    ran_ns: float
    waited_ns: float
    switches: float
    cores: float

    @property
    def share(self) -> float:
        """How much of the time in which it could run it did."""
        return self.ran_ns / (self.ran_ns + self.waited_ns)


def starved_findings(case: Case) -> Iterator[Priced]:
    """The finding that ranks get too little of their processors."""
    names = {time.name for time in case.times.counted}
    every = [got for trace in case.job.traces if (got := _got(trace, names)) is not None]
    starved = [got for got in every if got.share < 1 - WAITS]
    if not starved:
        return
    if len(starved) == len(case.graph.ranks):
        share = sum(got.ran_ns for got in starved) / sum(got.ran_ns + got.waited_ns for got in starved)
        price = case.ask({"scale": {"cpu:*": round(share, 3)}})
    else:
        price = case.ask({"scale": {f"rank{got.rank}:cpu:*": round(got.share, 3) for got in starved}})
    if price is None:
        return
    worst = min(starved, key=lambda got: got.share)
    ranks = tuple(got.rank for got in starved)
    whose = "every rank" if 1 < len(ranks) == len(case.graph.ranks) else "the job" if len(case.graph.ranks) == 1 else ranks_words(ranks)
    own = case.counted & ~case.owners.on_device & np.isin(case.owners.rank, [case.graph.ranks.index(rank) for rank in ranks])
    allowed = f"; it may use {worst.cores:.3g} {'core' if worst.cores == 1 else 'cores'}" if worst.cores else ""
    yield case.finding(
        FindingCode.STARVED,
        f"the CPU of {whose} gets {worst.share:.0%} of the processor time that it could use".replace("%", " %"),
        case.at_longest(own, ranks=ranks),
        price,
        evidence=(
            f"on rank {worst.rank} the thread that trains ran {duration(worst.ran_ns)} a step, and was ready for"
            f" {duration(worst.waited_ns)} more in which no processor ran it ({worst.switches:,.0f} involuntary switches a step){allowed}"
        ),
        fix="give each rank cores of its own: more of them or a larger quota (cpus-per-task, cpu.max), fewer threads (OMP_NUM_THREADS,"
        " num_workers), and no other processes there",
    )


def _got(trace: Trace, names: set[str]) -> _Got | None:
    """What a rank got in the steps of those names; None where the recording does not say."""
    rows = [row for row in trace.metadata.get("lumos_host", ()) if f"ProfilerStep#{row.get('step')}" in names]
    rows = [row for row in rows if row.get("ran_ns", 0) + row.get("waited_ns", 0) > 0 and "waited_ns" in row]
    if not rows:
        return None
    ran, waited, switches = (float(np.mean([row.get(key, 0) for row in rows])) for key in ("ran_ns", "waited_ns", "involuntary_switches"))
    cores = min((rows[0][key] for key in ("cores", "quota_cores") if key in rows[0]), default=0.0)
    return _Got(trace.rank, ran, waited, switches, cores)


def stall_findings(case: Case, told_s: float) -> Iterator[Priced]:
    """The finding that operators stall now and then, wherever that is. told_s: the worth of what comparing ranks and steps found
    already, of which this must not be another name."""
    price = case.ask({"scale": {"cpu:*": "usual"}})
    if price is None or price.worth_s < 2 * told_s:
        return
    excess = np.where(case.counted, case.graph.duration - durations_like(case.graph, case.job, Like.USUAL), 0)
    stalled = excess > 0
    place = case.at_longest(stalled, excess)
    number = int(stalled.sum())
    ranks = len(np.unique(case.owners.rank[stalled]))
    yield case.finding(
        FindingCode.HOST_STALLS,
        "the CPU stalls in operators that are short elsewhere",
        place,
        price,
        evidence=(
            f"{count(number, 'piece')} of operators on {count(ranks, 'rank')} take"
            f" {duration(float(excess.sum()) / case.steps / ranks)} a step and rank longer than the same"
            f" elsewhere; worst {place.task}, by {duration(int(excess.max()))}"
        ),
        fix="look for a CPU quota (cpu.stat), too few cores or other processes on them, and paging; record with lumos.collect to see the"
        " time in which no processor ran the job",
    )
