"""The steps of a job as the report lists them: the time of each, and what its ranks did in that time.

Every rank is broken down over the interval of the job's step, so that the parts of each rank, and their mean over the ranks, sum to
the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.analyze.breakdown import breakdowns
from lumos.analyze.loop.steps import step_times
from lumos.result import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Job


def steps_shown(measured: Timeline, replayed: Timeline, owners: Members, job: Job | None = None) -> list[dict[str, Any]]:
    """Every step of the job, in order, in values that JSON can hold.

    basis: whether time_ns and replayed_ns are a period or a latency. latency_ns: as measured. begin_ns: its first start, from where the
    timeline of the step begins. once: what in it happens once; "" for nothing. counts: whether its time counts in the figures of the job.
    measured, replayed: its parts (`FourWay` and `NamedParts`), ns, as a mean over the ranks. ranks: the same for every rank. job: the
    recording; without it, data loading counts as the host's.
    """
    times = step_times(measured, owners)
    simulated = step_times(replayed, owners).job
    parts = {
        run: [{"four": row.breakdown._asdict(), "named": row.parts._asdict()} for row in breakdowns(timeline, owners, job)]
        for run, timeline in (("measured", measured), ("replayed", replayed))
    }
    out = []
    for step, time, other in zip(owners.job, times.job, simulated, strict=True):
        facts = {"name": plain(step.name), "basis": time.basis, "once": step.once, "counts": step.counts}
        lengths = {"time_ns": time.length_ns, "latency_ns": time.latency_ns, "replayed_ns": other.length_ns}
        lengths["begin_ns"] = time.begin_ns - time.since_ns
        means = {run: _mean([rows[i] for i in step.parts]) for run, rows in parts.items()}
        ranks = [{"rank": owners.steps[i].rank, **{run: rows[i] for run, rows in parts.items()}} for i in step.parts]
        out.append({**facts, **lengths, **means, "ranks": ranks})
    return out


def _mean(ranks: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, float]]:
    return {kind: {key: sum(rank[kind][key] for rank in ranks) / len(ranks) for key in keys} for kind, keys in ranks[0].items()}
