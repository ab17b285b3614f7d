"""Communication that nothing hides, by group of ranks, and kernels that run slower because of communication.

The worth of a group's collectives is what the step loses when their transfers take no time: what full overlap would give. How long ranks
wait for one another is no part of it; that is a matter of the ranks (`findings.ranks`).
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.collectives import collective_times
from lumos.analyze.interference import INSIDE, interference
from lumos.analyze.task_class import working
from lumos.changes.ranges import inside
from lumos.findings.finding import FindingCode
from lumos.intervals import union, within
from lumos.simulation.durations import with_durations
from lumos.units import count, duration, quantity, with_unit
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.analyze.collectives import CollectiveRow
    from lumos.findings.case import Case, Priced
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: How many groups of collectives are priced, those with most time first.
MOST_PRICED = 8
#: A collective of fewer bytes takes about the same time whatever its size: its latency (nccl-tests' curves are flat up to some 100 kB).
SMALL_BYTES = 1 << 17
#: So many small collectives in a step are worth merging.
MANY = 8
#: Kernels are slowed where they take this much longer than alone.
SLOWED = 1.05


class _Group(NamedTuple):
    """Collectives of one kind and group. tasks: all of the job's, ascending."""

    kind: CollectiveKind
    name: str
    tasks: Int64


def communication_findings(case: Case) -> Iterator[Priced]:
    """Exposed communication, then what communication costs the kernels beside it."""
    every = collective_times(case.truth, case.owners)
    for group in _groups(case)[:MOST_PRICED]:
        rows = [row for row in every if (row.kind, row.group) == (group.kind, group.name)]
        merge = _merge(case, rows)
        without = np.zeros(len(case.graph), bool)
        without[group.tasks] = True
        fixed = case.without(without | _calls(case, group) if merge else without)
        worth = case.saved_ns(fixed)
        if case.matters(worth):
            yield _exposed(case, group, rows, worth, fixed, merge=merge)
    yield from _slowed(case)


def _groups(case: Case) -> list[_Group]:
    """The collectives of every kind and group, those first whose transfers take longest."""
    facts = case.graph.collectives
    if facts is None or not len(facts.task):
        return []
    keys, of_row = np.unique(np.stack((facts.kind, facts.group)), axis=1, return_inverse=True)
    groups = []
    for i, (kind, group) in enumerate(keys.T.tolist()):
        tasks = np.sort(facts.task[of_row.reshape(-1) == i]).astype(np.int64)
        groups.append(_Group(facts.kinds[kind], facts.groups[group] if group >= 0 else "", tasks))
    return sorted(groups, key=lambda g: -int(case.graph.duration[g.tasks].sum()))


def _merge(case: Case, rows: list[CollectiveRow]) -> bool:
    """Whether most of the collectives are small, and many: each then costs its latency and the call that starts it."""
    small = sum(row.calls for row in rows if row.size_bytes is not None and row.size_bytes < SMALL_BYTES)
    return small > MANY * case.steps * len(case.graph.ranks) and 2 * small > sum(row.calls for row in rows)


def _calls(case: Case, group: _Group) -> NDArray[np.bool_]:
    """What the operators of torch.distributed do that start collectives of the group's kind, bool[n]."""
    return inside(case.graph, case.job, lambda name: name.startswith("c10d::") and CollectiveKind.in_name(name) is group.kind)


def _exposed(case: Case, group: _Group, rows: list[CollectiveRow], worth: float, fixed: Graph, *, merge: bool) -> Priced:
    calls = round(sum(row.calls for row in rows) / case.steps / max(len(case.graph.ranks), 1))
    lone = bool(np.isin(group.tasks, case.graph.waiting_unknown).any())
    whose = f" of group {group.name.partition(' [')[0]}" if group.name else ""
    evidence = (
        f"{count(max(calls, 1), group.kind.value)} a step and rank{whose}{_largest(rows)}; without {'them' if merge else 'their transfers'}"
        f" the step is {duration(worth)} shorter"
    )
    if lone:
        evidence += "; their time may hold waiting for ranks that are not in the recording"
    what = "small collectives that nothing hides" if merge else "communication that nothing hides"
    return case.finding(
        FindingCode.EXPOSED_COMMUNICATION,
        f"{group.kind.value}{whose}: {what}",
        case.at_longest(group.tasks),
        worth,
        evidence=evidence,
        fix=_advice(group.kind, merge),
        command=f"whatif {_free(case, group)}",
        range_ns=(0.0, worth) if lone else None,
        fixed=fixed,
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
        return "merge them: one collective of all their tensors takes little longer than one of them"
    if kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.SEND_RECEIVE):
        return "send earlier and receive later: post receives before the work that precedes them, or interleave more microbatches"
    if kind is CollectiveKind.ALL_TO_ALL:
        return "split the exchange into chunks that overlap with the work before and after it, or keep its ranks within a node"
    return "start it earlier so that it runs beside compute (buckets, prefetching), send fewer bytes, or place its ranks on faster links"


def _free(case: Case, group: _Group) -> str:
    """The options of `lumos whatif` with which the collectives take no time, by the names of their tasks; ranks still meet in them."""
    names = dict.fromkeys(re.split(r"[(<\[]", str(case.graph.names[i]))[0] for i in np.unique(case.graph.name[group.tasks]).tolist())
    return " ".join(f"--scale {shlex.quote(f'{name}*=0')}" for name in list(names)[:3])


def _slowed(case: Case) -> Iterator[Priced]:
    """Kernels that run slower beside collectives than alone."""
    rows = interference(case.job.traces)
    if not rows or rows[0].slowdown < SLOWED:
        return
    beside = _beside_collectives(case)
    times = np.where(beside, np.rint(case.graph.duration / rows[0].slowdown), case.graph.duration).astype(np.int64)
    faster = with_durations(case.graph, times)
    worth = case.saved_ns(faster) if beside.any() else 0.0
    if not case.matters(worth):
        return
    yield case.finding(
        FindingCode.KERNELS_SLOWED,
        "kernels run slower beside collectives than alone",
        case.at_longest(beside),
        worth,
        evidence=f"{rows[0].kernels:,} kernels that also ran alone took {rows[0].slowdown:.2f} times as long beside collectives",
        fix="give collectives fewer SMs (NCCL_MAX_NCHANNELS), or move bytes with copy engines",
        command="inspect",
        fixed=faster,
    )


def _beside_collectives(case: Case) -> NDArray[np.bool_]:
    """The compute kernels that run beside a collective of their rank, bool[n]."""
    graph, truth, owners = case.graph, case.truth, case.owners
    computes, communicates = working(owners)
    beside = np.zeros(len(graph), bool)
    for position in range(len(graph.ranks)):
        tasks = owners.of_rank(position)
        kernels, others = tasks[computes[tasks] & owners.on_device[tasks]], tasks[communicates[tasks]]
        covered = within(union(truth.start[others], truth.end[others]), truth.start[kernels], truth.end[kernels])
        beside[kernels] = (covered >= INSIDE * graph.duration[kernels]) & (graph.duration[kernels] > 0)
    return beside
