"""Ranks whose CPU gets less of the machine than it could use, and stalls of the CPU that no operator explains.

`lumos.collect` notes for each step how long each thread ran, and how long it was ready to run and had to wait for a processor. On
processors of their own, those that have operators take as long as they ran. Without such rows, a stall shows as an operator that now and
then takes many times as long as the same operator elsewhere: the thread was taken off its processor in the middle of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.ranks.equal_work import Like, durations_like
from lumos.findings.finding import FindingCode, ranks_words
from lumos.trace.table import Category, unique
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.findings.case import Case, Priced
    from lumos.trace.table import Trace


class Got(NamedTuple):
    """What the threads with operators of a rank got in a step, the mean over steps. cores: that the rank may use; 0 for unknown."""

    rank: int
    ran_ns: float
    waited_ns: float
    cores: float

    @property
    def share(self) -> float:
        """How much of the time in which it could run it did."""
        return self.ran_ns / (self.ran_ns + self.waited_ns)


def starved_findings(case: Case) -> Iterator[Priced]:
    """The finding that ranks get too little of their processors: those that wait at least half as much as the one that waits most."""
    every = [got for trace in case.job.traces if (got := got_of(trace, {time.name for time in case.times.counted})) is not None]
    worst = min(every, key=lambda got: got.share, default=None)
    if worst is None or round(worst.share, 3) == 1:
        return
    starved = [got for got in every if 2 * (1 - got.share) >= 1 - worst.share]
    every_rank = len(starved) == len(case.graph.ranks)
    share = sum(got.ran_ns for got in starved) / sum(got.ran_ns + got.waited_ns for got in starved)
    of_ranks = {f"rank{got.rank}:cpu:*": round(got.share, 3) for got in starved}
    price = case.ask({"scale": {"cpu:*": round(share, 3)} if every_rank else of_ranks})
    if price is None:
        return
    ranks = tuple(got.rank for got in starved)
    whose = ranks_words(ranks) if not every_rank else "every rank" if len(ranks) > 1 else "the job"
    own = case.counted & ~case.owners.on_device & np.isin(case.owners.rank, [case.graph.ranks.index(rank) for rank in ranks])
    allowed = f"; it may use {worst.cores:.3g} {'core' if worst.cores == 1 else 'cores'}" if worst.cores else ""
    yield case.finding(
        FindingCode.STARVED,
        f"the CPU of {whose} gets {worst.share:.0%} of the processor time that it could use".replace("%", " %"),
        case.at_longest(own, ranks=ranks),
        price,
        evidence=(
            f"on rank {worst.rank} the threads that train ran {duration(worst.ran_ns)} a step, and were ready for"
            f" {duration(worst.waited_ns)} more in which no processor ran them{allowed}"
        ),
        fix="give each rank cores of its own: more of them or a larger quota (cpus-per-task, cpu.max), fewer threads (OMP_NUM_THREADS,"
        " num_workers), and no other processes there",
    )


def got_of(trace: Trace, names: set[str]) -> Got | None:
    """What a rank got in the steps of those names; None where the recording does not say."""
    rows = [row for row in trace.metadata.get("lumos_host", ()) if f"ProfilerStep#{row.get('step')}" in names]
    threads = {trace.lanes[i].tid for i in unique(trace.lane[trace.category == Category.OPERATOR]).tolist()}

    def of_step(key: str) -> float:
        return float(np.mean([sum(time for thread, time in row.get(key, {}).items() if thread in threads) for row in rows]))

    if not rows or not of_step("ran_ns"):
        return None
    cores = min((rows[0][key] for key in ("cores", "quota_cores") if key in rows[0]), default=0.0)
    return Got(trace.rank, of_step("ran_ns"), of_step("waited_ns"), cores)


def stall_findings(case: Case, told: Sequence[Priced]) -> Iterator[Priced]:
    """The finding that operators stall now and then, wherever that is. told: what comparing ranks and steps found already, of
    which this must not be another name."""
    price = case.ask({"scale": {"cpu:*": "usual"}})
    if price is None or price.is_told_by(told):
        return
    excess = np.where(case.counted, case.graph.duration - durations_like(case.graph, case.job, Like.USUAL), 0)
    if case.loads_mostly(excess):
        return
    stalled = excess > 0
    where = case.at_longest(stalled, excess)
    number = int(stalled.sum())
    ranks = len(unique(case.owners.rank[stalled]))
    yield case.finding(
        FindingCode.HOST_STALLS,
        "the CPU stalls in operators that are short elsewhere",
        where,
        price,
        evidence=(
            f"{count(number, 'piece')} of operators on {count(ranks, 'rank')} take"
            f" {duration(float(excess.sum()) / case.steps / ranks)} a step and rank longer than the same"
            f" elsewhere; worst {where.task}, by {duration(int(excess.max()))}"
        ),
        fix="look for a CPU quota (cpu.stat), too few cores or other processes on them, and paging; record with lumos.collect to see the"
        " time in which no processor ran the job",
    )
