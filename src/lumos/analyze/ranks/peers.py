"""Which tasks of different ranks are the same work, in a job recorded by a profiler.

The tasks of a step are compared as sequences: those of a thread in order, each by its kind and name. A rank that does an operator
more, or lacks one, does not shift what follows, because the sequences are aligned by their longest common subsequence. Work that
sequences share is one *place*. The places of all ranks form one sequence, into which each rank's is aligned in turn, so that work
which only later ranks do has its place too. A thread of one rank is compared with the thread of another that does most of the same
work.

Work on a device is at the place of its launch: the first kernel of one launch is the same work as the first of the other, where
their names are equal. Device work without a known launch is aligned as its stream. A collective is one place for all ranks that meet
in it, and for sister groups that do the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import list_of, numbered, ordinals
from lumos.operators.sequences import align_names
from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.trace.table import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Peers:
    """place: int64[n], the place of each task, -1 outside the steps of the job. ranks: int64[places], how many ranks work there.
    compared: int64[places], how many ranks recorded the step. Where steps are compared, both are numbers of steps."""

    place: Int64
    ranks: Int64
    compared: Int64


def peers(owners: Members, *, over_steps: bool = False) -> Peers:
    """The places of a graph's tasks. over_steps: compare the steps of each rank that count, instead of the ranks in each step."""
    graph = owners.graph
    symbol = numbered(graph.name, graph.kind)
    roles = _roles(owners, symbol)
    task_place = np.full(len(graph), -1, np.int64)
    free = 0
    follows = owners.on_device & (owners.launch >= 0)
    compare = [step.parts for step in owners.job]
    if over_steps:
        of = owners.step_rank()
        counted = [part for i in owners.counted for part in owners.job[i].parts]
        compare = [tuple(part for part in counted if of[part] == position) for position in range(len(graph.ranks))]
    for parts in compare:
        tasks = [owners.tasks(part) for part in parts]
        for of_ranks in _by_role([of_rank[~follows[of_rank]] for of_rank in tasks], roles[graph.processor]).values():
            free = _align(of_ranks, symbol, task_place, free)
    _follow_launches(owners, symbol, follows, task_place)
    if not over_steps:
        _meet(owners, task_place)
    placed = np.flatnonzero(task_place >= 0)
    task_place[placed] = np.unique(task_place[placed], return_inverse=True)[1]
    recorded = np.zeros(len(owners.steps), np.int64)
    for parts in compare:
        recorded[list(parts)] = len(parts)
    compared = np.zeros(_above(task_place), np.int64)
    compared[task_place[placed]] = recorded[owners.step[placed]]
    in_steps = unique(task_place[placed] * len(owners.steps) + owners.step[placed]) // len(owners.steps)
    return Peers(task_place, np.bincount(in_steps, minlength=_above(task_place)).astype(np.int64), compared)


def _roles(owners: Members, symbol: Int64) -> Int64:
    """For each processor a number that it shares with the processors of other ranks which do most of the same work."""
    graph = owners.graph
    owned = np.flatnonzero(owners.step >= 0)
    works: list[Counter[int]] = [Counter() for _ in graph.processors]
    pairs, counts = np.unique(symbol[owned] * len(graph.processors) + graph.processor[owned], return_counts=True)
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        name, processor = divmod(pair, len(graph.processors))
        works[processor][name] = count
    role = np.arange(len(graph.processors))
    first: list[int] = []  # the first processor of every role
    of_rank: dict[int, list[int]] = {rank: [] for rank in graph.ranks}
    for i, processor in enumerate(graph.processors):
        of_rank[processor.rank].append(i)
    lanes = graph.processors
    for own in of_rank.values():
        shared = [((works[i] & works[j]).total(), -j, -i) for i in own for j in first if lanes[i].is_stream == lanes[j].is_stream]
        taken: set[int] = set()
        for common, j, i in sorted(shared, reverse=True):
            if common and -i not in taken and -j not in taken:
                role[-i] = -j
                taken |= {-i, -j}
        first += [i for i in own if i not in taken]
    return role


def _by_role(tasks: Sequence[Int64], role: Int64) -> dict[int, list[Int64]]:
    """The tasks of every rank, in ascending id, by role."""
    out: dict[int, list[Int64]] = {}
    for of_rank in tasks:
        of_role = role[of_rank]
        for number in unique(of_role).tolist():
            out.setdefault(number, []).append(of_rank[of_role == number])
    return out


def _align(sequences: Sequence[Int64], symbol: Int64, task_place: Int64, free: int) -> int:
    """Write the places of the tasks of one role in one step, each rank's in order. free: the first unused place. Returns the next."""
    names, places, ranks = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    for before, tasks in enumerate(sequences):
        own = symbol[tasks]
        partner = _best_partners(own, names, 2 * ranks > before)
        new = partner < 0
        ranks[partner[~new]] += 1
        task_place[tasks] = np.where(new, free + np.cumsum(new) - 1, places[partner] if len(places) else -1)
        free += int(new.sum())
        after = np.maximum.accumulate(partner)[new]  # what a new place follows
        order = np.argsort(np.concatenate((np.arange(len(names)), after)), kind="stable")
        names = np.concatenate((names, own[new]))[order]
        places = np.concatenate((places, task_place[tasks[new]]))[order]
        ranks = np.concatenate((ranks, np.ones(int(new.sum()), np.int64)))[order]
    return free


def _best_partners(own: Int64, names: Int64, common: NDArray[np.bool_]) -> Int64:
    """For each entry its partner among `names`, -1 without one: among the places where most ranks work first, so that what one rank has
    in addition draws nothing away from them, then among the others that lie between."""
    usual = np.flatnonzero(common)
    like_usual = _partners(own, names[usual])
    out = np.full(len(own), -1, np.int64)
    out[like_usual >= 0] = usual[like_usual[like_usual >= 0]]
    if len(usual) == len(names):
        return out
    left = np.flatnonzero(out < 0)
    below = np.maximum.accumulate(out)
    above = np.minimum.accumulate(np.where(out < 0, len(names), out)[::-1])[::-1]
    for run in np.split(left, np.flatnonzero(np.diff(left) > 1) + 1) if len(left) else ():
        between = np.flatnonzero(~common[below[run[0]] + 1 : above[run[0]]]) + below[run[0]] + 1
        if not len(between):
            continue
        partner = _partners(own[run], names[between])
        out[run[partner >= 0]] = between[partner[partner >= 0]]
    return out


def _partners(own: Int64, names: Int64) -> Int64:
    """For each entry its partner among `names`, -1 without one; equal ends of the sequences are partners at once."""
    both = min(len(own), len(names))
    differs = np.flatnonzero(own[:both] != names[:both])
    head = int(differs[0]) if len(differs) else both
    differs = np.flatnonzero(own[::-1][: both - head] != names[::-1][: both - head])
    tail = int(differs[0]) if len(differs) else both - head
    out = np.full(len(own), -1, np.int64)
    out[:head] = np.arange(head)
    out[len(own) - tail :] = np.arange(len(names) - tail, len(names))
    middle = align_names(own[head : len(own) - tail], names[head : len(names) - tail])
    out[head : len(own) - tail] = np.where(middle < 0, -1, middle + head)
    return out


def _follow_launches(owners: Members, symbol: Int64, follows: NDArray[np.bool_], task_place: Int64) -> None:
    """Give device work the place of its launch, its name and its number among the work of that name and launch; in place."""
    tasks = np.flatnonzero(follows)
    tasks = tasks[task_place[owners.launch[tasks]] >= 0]
    launch = owners.launch[tasks].astype(np.int64)
    task_place[tasks] = _above(task_place) + numbered(ordinals(launch, symbol[tasks]), symbol[tasks], task_place[launch])


def _meet(owners: Members, task_place: Int64) -> None:
    """Give all members of a rendezvous one place, together with those of sister groups; in place."""
    graph = owners.graph
    inside = task_place[graph.rendezvous_task] >= 0
    task_place[graph.rendezvous_task[inside]] = _above(task_place) + _sisters(owners)[list_of(graph.rendezvous_offset)][inside]


def _sisters(owners: Members) -> Int64:
    """A number for each rendezvous, the same for those of sister groups: as many ranks that exchange as many bytes, as often before in that
    step of the job."""
    graph, facts = owners.graph, owners.graph.collectives
    sizes = np.diff(graph.rendezvous_offset)
    out = np.arange(len(sizes), dtype=np.int64)
    if facts is None or not len(facts.task):
        return out
    row = np.full(len(graph), -1, np.int64)
    row[facts.task] = np.arange(len(facts.task))
    of_job = np.full(len(owners.steps) + 1, -1, np.int64)  # the last for work outside all steps
    for number, step in enumerate(owners.job):
        of_job[list(step.parts)] = number
    met = np.flatnonzero(sizes)
    first = graph.rendezvous_task[graph.rendezvous_offset[met]]
    known = (row[first] >= 0) & (facts.nbytes[row[first]] >= 0)
    met, first, at = met[known], first[known], row[first[known]]
    what = numbered(of_job[owners.step[first]], facts.kind[at], facts.nbytes[at], sizes[met])
    out[met] = len(sizes) + numbered(what, ordinals(what, facts.group[at]))
    return out


def _above(task_place: Int64) -> int:
    return int(task_place.max(initial=-1)) + 1
