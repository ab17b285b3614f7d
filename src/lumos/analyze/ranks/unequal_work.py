"""What is said of a job whose ranks do unequal work, or are too few to tell which of them is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.ranks.straggler_causes import SHORTEST
from lumos.diagnostics import Diagnostic
from lumos.graph.table import Graph, Kind
from lumos.trace.table import unique
from lumos.units import count, duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.analyze.ranks.equal_work import EqualWork, Ideal
    from lumos.analyze.ranks.peers import Peers
    from lumos.trace.table import Int64


def unequal_work(graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_], aim: Ideal) -> tuple[Diagnostic, ...]:
    """The diagnostics. counted: bool[n], tasks of the steps that count."""
    notes = _by_place(graph, owners, counted, aim, aim.peers) if aim.peers is not None else _by_class(graph, owners, classes, counted)
    if len(graph.ranks) == 2:
        message = "two ranks have no majority: equal work takes the mean of their times, and which of the two is off cannot be told"
        notes.append(Diagnostic("no-majority", message))
    return tuple(notes)


def _by_place(graph: Graph, owners: Members, counted: NDArray[np.bool_], aim: Ideal, peers: Peers) -> list[Diagnostic]:
    """Of a job compared place by place: what ranks do more and less than most."""
    compared = counted & (peers.place >= 0) & (graph.kind != Kind.COLLECTIVE)
    long = compared & (graph.duration >= SHORTEST)
    lacking = _lacking(graph, owners, compared, peers)
    said = []
    for i, rank in enumerate(graph.ranks):
        own = owners.rank == i
        extra = long & own & aim.extra
        parts = []
        if extra.any():
            parts.append(f"does {count(int(extra.sum()), 'piece')} of work that most ranks lack ({duration(graph.duration[extra].sum())})")
        if lacking[i]:
            parts.append(f"lacks {count(lacking[i], 'piece')} that most have")
        if parts:
            said.append(f"rank {rank} {' and '.join(parts)}")
    out = []
    if said:
        message = "over the steps that count, " + _listed(said) + "; the ideal job leaves out what most ranks lack"
        out.append(Diagnostic("unequal-work", message))
    undecided = long & aim.undecided
    if undecided.any():
        why = "half of the ranks do it and half do not, or ranks that send to each other may be stages of a pipeline"
        number, time = count(int(undecided.sum()), "piece"), duration(graph.duration[undecided].sum())
        message = f"{number} of work ({time}) kept the time of their rank: {why}"
        out.append(Diagnostic("work-not-compared", message))
    return out


def _lacking(graph: Graph, owners: Members, compared: NDArray[np.bool_], peers: Peers) -> list[int]:
    """For each rank how many places it lacks at which most ranks work, and work long enough for the profiler to see."""
    places = len(peers.ranks)
    common = (2 * peers.ranks > peers.compared) & (peers.ranks < peers.compared)
    shortest = np.full(places, np.iinfo(np.int64).max)
    np.minimum.at(shortest, peers.place[compared], graph.duration[compared])
    common &= (shortest >= SHORTEST) & (shortest < np.iinfo(np.int64).max)
    wanted = int(common.sum())
    out = []
    for i, _ in enumerate(graph.ranks):
        own = peers.place[compared & (owners.rank == i)]
        out.append(wanted - int(common[unique(own)].sum()))
    return out


def _by_class(graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_]) -> list[Diagnostic]:
    """Of an operation-level job: classes of which the ranks of a stage run unequally many operations."""
    own = counted & ~classes.delay
    shape = (len(graph.ranks), len(classes.labels))
    number: Int64 = np.bincount(owners.rank[own] * shape[1] + classes.label[own], minlength=shape[0] * shape[1]).reshape(shape)
    stage = np.zeros(len(graph.ranks), np.int64) if classes.stage is None else classes.stage
    said = []
    for one_stage in unique(stage):
        ranks = np.flatnonzero(stage == one_stage)
        for label in np.flatnonzero(np.ptp(number[ranks], axis=0)):
            counts = number[ranks, label]
            usual = int(np.sort(counts)[(len(counts) - 1) // 2])
            said += [
                f"rank {graph.ranks[rank]} runs {value} of {classes.labels[label]}, its peers {usual}"
                for rank, value in zip(ranks.tolist(), counts.tolist(), strict=True)
                if value != usual
            ]
    if not said:
        return []
    message = "over the steps that count, " + _listed(said) + "; only the time of one operation is compared, not their number"
    return [Diagnostic("unequal-work", message)]


def _listed(said: list[str]) -> str:
    return ", ".join(said[:4]) + (f" and {len(said) - 4} more" if len(said) > 4 else "")
