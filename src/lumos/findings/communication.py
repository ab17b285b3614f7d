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
from lumos.trace.table import unique
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
    """Collectives of one kind, or of several that are carried out by the same kernels, the kind with most time first. patterns: of the
    names of their tasks. groups: the names of the groups that meet in them. tasks: all of the job's, ascending."""

    kinds: tuple[CollectiveKind, ...]
    patterns: tuple[str, ...]
    groups: tuple[str, ...]
    tasks: Int64


def communication_findings(case: Case) -> Iterator[Priced]:
    """Exposed communication."""
    every = collective_times(case.truth, case.owners)
    for group in _groups(case)[:MOST_PRICED]:
        rows = [row for row in every if row.kind in group.kinds]
        merge = _merge(case, rows)
        price = case.ask({"scale": {**dict.fromkeys(group.patterns, 0), **(_calls(case, group) if merge else {})}})
        if price is not None:
            yield _exposed(case, group, rows, price, merge=merge)


def _groups(case: Case) -> list[_Group]:
    """The collectives of every kind, those first whose transfers take longest. Ranks still meet in what takes no time."""
    facts = case.graph.collectives
    if facts is None or not len(facts.task):
        return []
    time = np.bincount(facts.kind, case.graph.duration[facts.task], len(facts.kinds))
    kinds: dict[tuple[str, ...], list[int]] = {}
    for kind in sorted(unique(facts.kind).tolist(), key=lambda kind: -time[kind]):
        names = unique(case.graph.name[facts.task[facts.kind == kind]]).tolist()
        short = {re.split(r"[(<\[]", str(case.graph.names[i]))[0] + "*" for i in names}  # without what differs from call to call
        kinds.setdefault(tuple(sorted(short)), []).append(kind)
    groups = []
    for patterns, alike in kinds.items():
        own = np.isin(facts.kind, alike)
        named = tuple(facts.groups[i] for i in unique(facts.group[own]).tolist() if i >= 0)
        of = tuple(facts.kinds[kind] for kind in alike)
        groups.append(_Group(of, patterns, named, np.sort(facts.task[own]).astype(np.int64)))
    return sorted(groups, key=lambda g: -int(case.graph.duration[g.tasks].sum()))


def _merge(case: Case, rows: list[CollectiveRow]) -> bool:
    """Whether most of the collectives are small, and many: each then costs its latency and the call that starts it."""
    small = sum(row.calls for row in rows if row.size_bytes is not None and row.size_bytes < SMALL_BYTES)
    return small > MANY * case.steps * len(case.graph.ranks) and 2 * small > sum(row.calls for row in rows)


def _calls(case: Case, group: _Group) -> dict[str, float]:
    """The patterns of the operators of torch.distributed that start collectives of the kind."""
    named = (str(name) for name in case.graph.names if str(name).startswith("c10d::"))
    return {f"operator:{escape(name)}": 0 for name in named if CollectiveKind.in_name(name) in group.kinds}


def _exposed(case: Case, group: _Group, rows: list[CollectiveRow], price: Worth, *, merge: bool) -> Priced:
    calls = round(sum(row.calls for row in rows) / case.steps / max(len(case.graph.ranks), 1))
    lone = bool(np.isin(group.tasks, case.graph.waiting_unknown).any())
    whose = f" of group {group.groups[0].partition(' [')[0]}" if len(group.groups) == 1 else ""
    known = [kind.value for kind in group.kinds if kind is not CollectiveKind.UNKNOWN] or [group.kinds[0].value]
    evidence = f"{count(max(calls, 1), known[0] if len(group.kinds) == 1 else 'collective')} a step{_largest(rows)}"
    if lone:
        evidence += "; their time may hold waiting for ranks that are not in the recording"
    what = "small collectives that nothing hides" if merge else "communication that nothing hides"
    return case.finding(
        FindingCode.EXPOSED_COMMUNICATION,
        f"{' and '.join(known)}{whose}: {what}",
        case.at_longest(group.tasks),
        price,
        evidence=evidence,
        fix=_advice(group.kinds[0], merge),
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
