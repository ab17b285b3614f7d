"""Time in which the loop waits for its data.

The worth is what the step is shorter by where loading is left out. Where other processes load, they then have every batch ready.
"""

from __future__ import annotations

from glob import escape
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.breakdown import LOADING
from lumos.findings.finding import FindingCode, ranks_words
from lumos.graph.loaders import from_processes
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.findings.case import Case, Priced


def loader_findings(case: Case) -> Iterator[Priced]:
    """The finding that the loop waits for data."""
    of_steps = case.loading & case.counted
    if not of_steps.any():
        return
    price = case.ask({"drop": _patterns(case)})
    if price is None:
        return
    by_rank = np.bincount(case.owners.rank[of_steps], case.graph.duration[of_steps], len(case.graph.ranks)) / case.steps
    slow = np.flatnonzero(by_rank >= by_rank.max() / 2)
    ranks = tuple(case.graph.ranks[i] for i in slow.tolist())
    others = [time for i, time in enumerate(by_rank.tolist()) if i not in slow]
    whose = "of all ranks" if not others else f"of {ranks_words(ranks)}" if len(ranks) == 1 else "of some ranks"
    compare = f", {duration(float(np.median(others)))} on the others" if others else ""
    workers = any(len(from_processes(trace)) for trace in case.job.traces)
    where = case.at_longest(of_steps & np.isin(case.owners.rank, slow), ranks=ranks)
    yield case.finding(
        FindingCode.DATA_LOADER,
        f"the loop {whose} waits for data",
        where,
        price,
        evidence=f"loading takes {duration(float(by_rank[slow].mean()))} a step on {ranks_words(ranks)}{compare}",
        fix=(
            "more workers or batches ahead (num_workers, prefetch_factor)"
            if workers
            else "load in worker processes, beside the step (DataLoader's num_workers)"
        ),
    )


def _patterns(case: Case) -> list[str]:
    """The patterns of what loads data, by the names of its ranges and operators up to a # that counts them; some begin with one."""
    names = {name.partition("#")[0] or name for trace in case.job.traces for name in trace.strings if LOADING.search(name)}
    return [f"operator:{escape(name)}*" for name in sorted(names)]
