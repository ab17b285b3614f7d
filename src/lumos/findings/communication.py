"""Communication that nothing hides, by kind.

The worth of collectives is what the step loses when their transfers take no time: what full overlap would give. How long ranks wait for one
another is no part of it; that is a matter of the ranks (`findings.ranks`).
"""

from __future__ import annotations

import re
from glob import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.collectives import collective_times
from lumos.findings.finding import FindingCode
from lumos.units import count, duration, quantity, with_unit
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.analyze.collectives import CollectiveRow
    from lumos.findings.case import Case, Priced, Worth
    from lumos.trace.table import Int64

#: How many kinds of collectives are priced, those with most time first.
MOST_PRICED = 8
#: A collective of fewer bytes takes about the same time whatever its size: its latency (nccl-tests' curves are flat up to some 100 kB).
SMALL_BYTES = 1 << 17
#: So many small collectives in a step are worth merging.
MANY = 8


class _Group(NamedTuple):
    """Collectives of one kind. groups: the names of the groups that meet in them. tasks: all of the job's, ascending."""

    kind: CollectiveKind
    groups: tuple[str, ...]
    tasks: Int64


def communication_findings(case: Case) -> Iterator[Priced]:
    """Exposed communication."""
    every = collective_times(case.truth, case.owners)
    for group in _groups(case)[:MOST_PRICED]:
        rows = [row for row in every if row.kind == group.kind]
        merge = _merge(case, rows)
        price = case.ask({"scale": {**_free(case, group), **(_calls(case, group) if merge else {})}})
        if price is not None:
            yield _exposed(case, group, rows, price, merge=merge)


def _groups(case: Case) -> list[_Group]:
    """The collectives of every kind, those first whose transfers take longest."""
    facts = case.graph.collectives
    if facts is None or not len(facts.task):
        return []
    groups = []
    for kind in np.unique(facts.kind).tolist():
        own = facts.kind == kind
        names = tuple(facts.groups[i] for i in np.unique(facts.group[own]).tolist() if i >= 0)
        groups.append(_Group(facts.kinds[kind], names, np.sort(facts.task[own]).astype(np.int64)))
    return sorted(groups, key=lambda g: -int(case.graph.duration[g.tasks].sum()))


def _merge(case: Case, rows: list[CollectiveRow]) -> bool:
    """Whether most of the collectives are small, and many: each then costs its latency and the call that starts it."""
    small = sum(row.calls for row in rows if row.size_bytes is not None and row.size_bytes < SMALL_BYTES)
    return small > MANY * case.steps * len(case.graph.ranks) and 2 * small > sum(row.calls for row in rows)


def _calls(case: Case, group: _Group) -> dict[str, float]:
    """The patterns of the operators of torch.distributed that start collectives of the kind."""
    named = (str(name) for name in case.graph.names if str(name).startswith("c10d::"))
    return {f"operator:{escape(name)}": 0 for name in named if CollectiveKind.in_name(name) is group.kind}


def _exposed(case: Case, group: _Group, rows: list[CollectiveRow], price: Worth, *, merge: bool) -> Priced:
    calls = round(sum(row.calls for row in rows) / case.steps / max(len(case.graph.ranks), 1))
    lone = bool(np.isin(group.tasks, case.graph.waiting_unknown).any())
    whose = f" of group {group.groups[0].partition(' [')[0]}" if len(group.groups) == 1 else ""
    evidence = f"{count(max(calls, 1), group.kind.value)} a step and rank{_largest(rows)}"
    if lone:
        evidence += "; their time may hold waiting for ranks that are not in the recording"
    what = "small collectives that nothing hides" if merge else "communication that nothing hides"
    return case.finding(
        FindingCode.EXPOSED_COMMUNICATION,
        f"{group.kind.value}{whose}: {what}",
        case.at_longest(group.tasks),
        price,
        evidence=evidence,
        fix=_advice(group.kind, merge),
    )


def _largest(rows: list[CollectiveRow]) -> str:
    """The size and rate of the collectives that take most time, as a clause; "" where the recording does not say."""
    if not rows or rows[0].size_bytes is None:
        return ""
    top = max(rows, key=lambda row: (row.transfer_ns or row.time_ns) * row.calls)
    if top.size_bytes is None:
        return ""
    size = with_unit(top.size_bytes, quantity("size_bytes"))
    rate = f" at {top.bus_bytes_per_s / 1e9:.3g} GB/s" if top.bus_bytes_per_s else ""
    time = duration(top.time_ns if top.transfer_ns is None else top.transfer_ns)
    return f", mostly of {size} in {time}{rate}"


def _advice(kind: CollectiveKind, merge: bool) -> str:
    if merge:
        return "merge them: one of all their tensors takes little longer than each"
    if kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.SEND_RECEIVE):
        return "post receives before the work that precedes them, or interleave more"
    if kind is CollectiveKind.ALL_TO_ALL:
        return "split it into chunks that overlap, or keep its ranks within a node"
    return "start it earlier (buckets, prefetching), send less, or use faster links"


def _free(case: Case, group: _Group) -> dict[str, float]:
    """The patterns with which the collectives take no time, by the names of their tasks; ranks still meet in them."""
    names = {re.split(r"[(<\[]", str(case.graph.names[i]))[0] for i in np.unique(case.graph.name[group.tasks]).tolist()}
    return {f"{name}*": 0 for name in sorted(names)}
