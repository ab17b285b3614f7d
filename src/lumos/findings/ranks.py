"""Ranks that take longer than their peers, from `lumos stragglers`: more work, a stall, a slow host or device, a slow exchange, or a stage
or an input that is larger than those of the others.

The worth is what the step is shorter by where the rank does that work in the time of its peers. Where several ranks are slow at once, none
alone is worth much; what all of them together cost is then a finding of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import is_operation_level
from lumos.analyze.ranks.equal_work import Like, durations_like, has_transfers
from lumos.analyze.ranks.straggler_causes import StragglerCause
from lumos.analyze.ranks.stragglers import stragglers
from lumos.analyze.task_class import working
from lumos.findings.finding import FindingCode, FindingPlace, where_words
from lumos.graph.table import Kind
from lumos.result import cut
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.analyze.ranks.straggler_causes import StragglerFinding
    from lumos.analyze.ranks.stragglers import Stragglers
    from lumos.findings.case import Case, Priced, Worth
    from lumos.trace.table import Int64

#: Ranks are not compared where ranks × tasks exceed this, as every rank is simulated twice (5 ns a task).
MOST_TRIED = 4_000_000_000
#: Of so many operators, those that take a rank most time, the shapes are compared.
MOST_OPERATORS = 12
#: The longest shapes that a sentence quotes, in characters.
LONGEST_SHAPES = 60

_FIXES = {
    FindingCode.EXTRA_WORK: "leave it out here, use another thread, or share it among the ranks",
    FindingCode.STALL: "find what the thread does (py-spy dump), and move it out of the step",
    FindingCode.SLOW_HOST: "look for other processes, its clock rate and NUMA binding, Python work",
    FindingCode.SLOW_DEVICE: "look for throttling or another job on it (nvidia-smi -q -d PERFORMANCE)",
    FindingCode.SLOW_RANK: "look for other processes, throttling, and work that only it does",
    FindingCode.SLOW_EXCHANGE: "look for a slow link or port on its path, and for other traffic there",
    FindingCode.UNEVEN_INPUT: "sort or pack sequences by length, or balance experts and tables",
}


def rank_findings(case: Case, compared: Stragglers | None = None) -> Iterator[Priced]:
    """What slow ranks cost, but for what loading data takes longer. compared: what `stragglers` gives for the job, where it is known
    already."""
    if len(case.graph.ranks) < 2 or len(case.graph.ranks) * len(case.graph) > MOST_TRIED:
        return
    result = compared or stragglers(case.graph, case.job, force=True)
    asked: dict[str, Worth | None] = {}
    told = 0.0
    for slow in result.findings:
        task, pattern = _task(case, slow), _pattern(case, slow)
        if pattern in asked:
            continue
        price = asked[pattern] = case.ask({"scale": {pattern: "peers"}})
        if price is None or (slow.cause is StragglerCause.EXTRA_WORK and 1e9 * price.worth_s > 2 * slow.excess_ns):
            continue  # the second: what else the rank takes longer for
        told += price.worth_s
        if task is None or not case.loading[task] or not case.loads_mostly(_beyond_peers(case, task)):
            yield _of_rank(case, slow, price)
    yield from _stages(case)
    if len(case.graph.ranks) == 2 or has_transfers(case.graph):
        return  # of two, which is off cannot be told; and stages of a pipeline need not take equal times
    together = case.ask({"scale": {"*": "peers"}})
    if together is not None and 2 * told < together.worth_s:
        yield _together(case, result, together)


def _beyond_peers(case: Case, task: int) -> Int64:
    """What the tasks of the rank of a task take longer than those of its peers, int64[n] ns."""
    own = case.counted & (case.owners.rank == case.owners.rank[task]) & (case.graph.kind != Kind.COLLECTIVE)
    return np.where(own, case.graph.duration - durations_like(case.graph, case.job, Like.PEERS), 0)


def _pattern(case: Case, slow: StragglerFinding) -> str:
    """What would take the time of its peers: the work of a rank's CPU or device, all of its work, or the exchanges of a class."""
    if slow.cause is StragglerCause.SLOW_EXCHANGE:
        return f"{re.split(r'[(<[]', slow.where.task)[0]}*"
    if slow.cause is StragglerCause.EXTRA_WORK or not case.has_device:
        return f"rank{slow.where.rank}:*"
    on_cpu = slow.cause is StragglerCause.STALL or slow.name.startswith("cpu ")
    return f"rank{slow.where.rank}:{'cpu' if on_cpu else 'device'}:*"


def _task(case: Case, slow: StragglerFinding) -> int | None:
    """The task where a finding is worst; None where it is not found again."""
    step = case.times.named(slow.where.step)
    position = case.graph.ranks.index(slow.where.rank)
    at = np.flatnonzero((case.truth.start == step.begin_ns + slow.where.start_ns) & (case.owners.rank == position))
    return int(at[np.argmax(case.graph.duration[at])]) if len(at) else None


def _of_rank(case: Case, slow: StragglerFinding, price: Worth) -> Priced:
    """A finding about one rank."""
    rank, more = slow.where.rank, duration(slow.excess_ns)
    exchange = slow.cause is StragglerCause.SLOW_EXCHANGE
    other = None if exchange else _other_shapes(case, case.graph.ranks.index(rank))
    code = _code(case, slow, other)
    task = _task(case, slow)
    where = FindingPlace((rank,), slow.where.step, slow.where.start_ns, slow.where.task, "" if task is None else case.origin(task))
    match code:
        case FindingCode.EXTRA_WORK:
            title, evidence = f"rank {rank} does work that its peers do not: {slow.name}", f"{more} a step more than its peers"
        case FindingCode.STALL:
            title, evidence = f"rank {rank} stalls {where_words(slow.name)}", f"one pause of {more} a step that its peers do not have"
        case FindingCode.SLOW_EXCHANGE:
            title = f"some {slow.name} operations are slower than others"
            evidence = f"{more} a step beyond the usual time, summed over the ranks"
        case FindingCode.UNEVEN_INPUT:
            title = f"rank {rank} gets larger inputs than its peers"
            evidence = f"{more} a step more for the same operators: {'' if other is None else other.words}"
        case _:
            peers = "its peers" if len(case.graph.ranks) > 2 else "the other rank"
            title = f"rank {rank} does the same work more slowly than {peers} ({slow.name})"
            evidence = f"{more} a step more for the same operators"
    return case.finding(code, title, where, price, evidence=evidence, fix=_FIXES[code])


def _code(case: Case, slow: StragglerFinding, other: _Shapes | None) -> FindingCode:
    """The kind of a finding of `stragglers`."""
    if slow.cause is not StragglerCause.SLOW_WORK:
        return FindingCode(slow.cause)  # of the same names
    if other is not None:
        return FindingCode.UNEVEN_INPUT
    if slow.name == "cpu between operators" or (slow.name.startswith("cpu ") and case.has_device):
        return FindingCode.SLOW_HOST
    return FindingCode.SLOW_RANK if slow.name.startswith("cpu ") or is_operation_level(case.graph) else FindingCode.SLOW_DEVICE


class _Shapes(NamedTuple):
    """An operator whose inputs have other shapes on one rank than on the others."""

    operator: str
    here: str
    there: str

    @property
    def words(self) -> str:
        return f"{self.operator} of {cut(self.here, LONGEST_SHAPES)}, its peers {cut(self.there, LONGEST_SHAPES)}"


def _other_shapes(case: Case, position: int) -> _Shapes | None:
    """The operator that takes the rank most time among those whose shapes differ from the ones that all its peers have; None without."""
    if len(case.graph.ranks) < 3:
        return None
    mine = _shapes(case, position)
    peers = [_shapes(case, i) for i in range(len(case.graph.ranks)) if i != position]
    for name, shapes in list(mine.items())[:MOST_OPERATORS]:
        theirs = [peer.get(name, ()) for peer in peers]
        if all(theirs) and len(set(theirs)) == 1 and not set(shapes) & set(theirs[0]):
            return _Shapes(name, shapes[0], theirs[0][0])
    return None


def _shapes(case: Case, position: int) -> dict[str, tuple[str, ...]]:
    """The operators of a rank in the step of median time, most time first, and their input shapes, in order."""
    trace, graph = case.job.traces[position], case.graph
    column = trace.args.get("Input Dims")
    if column is None:
        return {}
    parts = [part for part in case.owners.job[case.at].parts if case.owners.steps[part].rank == graph.ranks[position]]
    tasks = np.concatenate([case.owners.tasks(part) for part in parts]) if parts else np.empty(0, np.int64)
    tasks = tasks[(graph.kind[tasks] == Kind.OPERATOR) & (graph.event[tasks] >= 0)]
    dims = trace.dense("Input Dims")[graph.event[tasks]]
    tasks, dims = tasks[dims >= 0], dims[dims >= 0]
    total: dict[str, int] = {}
    shapes: dict[str, dict[str, None]] = {}
    for task, dim in zip(tasks.tolist(), dims.tolist(), strict=True):
        text = str(trace.strings[dim])
        if any(map(str.isdigit, text)):
            name = str(graph.names[graph.name[task]])
            total[name] = total.get(name, 0) + int(graph.duration[task])
            shapes.setdefault(name, {})[text] = None
    return {name: tuple(shapes[name]) for name in sorted(total, key=lambda n: -total[n])}


def _stages(case: Case) -> Iterator[Priced]:
    """The stage of a pipeline whose ranks compute longer than those of the others."""
    if not has_transfers(case.graph) or len(case.graph.ranks) < 3:
        return
    computes = working(case.owners)[0] & case.counted & (case.owners.on_device | is_operation_level(case.graph))
    work = np.bincount(case.owners.rank[computes], case.graph.duration[computes], len(case.graph.ranks)) / case.steps
    middle = float(np.median(work))
    slow = np.flatnonzero(2 * work > middle + work.max())  # nearer to the longest than to the median
    ranks = tuple(case.graph.ranks[i] for i in slow.tolist())
    if not ranks or not middle:
        return
    longest = float(work[slow].mean())
    price = case.ask({"rank_slowdown": {rank: round(middle / longest, 3) for rank in ranks}})
    if price is None:
        return
    yield case.finding(
        FindingCode.UNEVEN_STAGES,
        f"the pipeline stage of {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))} works longer than the others",
        case.at_longest(computes & np.isin(case.owners.rank, slow), ranks=ranks),
        price,
        evidence=f"its ranks work {duration(longest)} a step, the median rank {duration(middle)}",
        fix="move layers to other stages, or the head and the loss to one of their own",
    )


def _together(case: Case, result: Stragglers, price: Worth) -> Priced:
    slow = sorted((rank for rank in result.by_rank if rank.work_ns > rank.ideal_work_ns), key=lambda r: r.ideal_work_ns - r.work_ns)
    ranks = tuple(rank.rank for rank in slow[:8]) or case.graph.ranks
    own = np.isin(case.owners.rank, [case.graph.ranks.index(rank) for rank in ranks]) & case.counted & (case.graph.kind != Kind.COLLECTIVE)
    listed = ", ".join(f"{rank.rank} ({duration(rank.work_ns - rank.ideal_work_ns)})" for rank in slow[:4])
    return case.finding(
        FindingCode.UNEVEN_RANKS,
        "ranks take unequal times for equal work, and wait for one another",
        case.at_longest(own, ranks=ranks),
        price,
        evidence=f"longest beyond their peers: rank {listed}",
        fix="balance their inputs (lengths, experts, tables), then look for jitter",
    )
