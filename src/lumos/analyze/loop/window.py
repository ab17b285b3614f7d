"""Which steps of a recording count, which of them are of one kind, and with whose work a step is complete.

The *window* is the longest run of steps that follow one another on all ranks and contain nothing that happens once, such as loading code
(`graph.one_off`, which tells it by its rows). Its first step only shows when the second begins: the work before it was not recorded. The
others count: the time of the job's step is their mean period. Where their periods come round in a cycle (a loader that is slow for every
second batch), the first are left out that begin no whole one. The last does not count where the end of the recording cut the work of a
thread that prepares later steps, such as a loader's: that work has no row. Where no two such steps follow one another, a step with
something that happens once may stand before those that count; where that does not help either, nothing is left out.

A recording without steps that follow one another, or whose steps have no common clock, has no periods. All of its steps count by their
latency; where their numbers follow one another, all but the first, which may hold what the job did before.

A step is *complete* with the last of its work on a set of processors that is the same for all steps of a rank: those on which every step
that counts has work, and those whose work the next step waits for. So neither a copy that nobody awaits nor the profiler's last
synchronisation moves a completion.

Steps are of one *kind* where they run the same operators and device work but for one in twenty. Steps that differ by design (gradients
accumulated over several steps, a checkpoint every so many, alternating lengths) are of several kinds.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.spans import hands_on, without_mark
from lumos.graph.lists import list_of
from lumos.graph.table import ONCE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lumos.graph.table import Graph
    from lumos.trace.table import Int32, Int64

#: Steps come round in a cycle where less than this share of the variance of their periods is left between one cycle and the next.
LEFT_OF_CYCLE = 0.1
#: Steps that share at least this share of their operators and device work are of one kind.
SAME_KIND = 0.95
#: The kinds of tasks by which steps are compared: what a program asks for, without the calls and pauses that come with it.
_COMPARED = (Kind.OPERATOR, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COLLECTIVE)


def counted_steps(previous: Sequence[int], once: Sequence[bool], numbers: Sequence[int | None]) -> tuple[int, ...]:
    """The positions of the steps that count, ascending. previous: for each step the position of the one just before it, -1 without one.
    once: whether the step contains something that happens once. numbers: of the steps, None without one."""
    window = _longest_run(previous, once, before_once=False)
    window = window if len(window) > 1 else _longest_run(previous, once, before_once=True)
    window = window if len(window) > 1 else _longest_run(previous, [False] * len(once), before_once=False)
    if len(window) > 1:
        return window[1:]
    clean = tuple(i for i, out in enumerate(once) if not out) or tuple(range(len(once)))
    in_a_row = all(b is not None and a is not None and b == a + 1 for a, b in pairwise(numbers))
    return clean[1:] if in_a_row and len(clean) > 1 and clean[0] == 0 else clean


def cycle_of(periods: Int64, kinds: Callable[[], Sequence[int]]) -> int:
    """After how many steps the periods, ns, come round; 0 where they do not.

    kinds: gives the kind of each step, which must come round as well. Of a cycle that the recording does not hold twice, a few periods
    agree by chance: it counts where there are several kinds.
    """
    number, variance = len(periods), periods.var() if len(periods) else 0.0
    for cycle in range(2, number - 1):
        left = np.square((periods[cycle:] - periods[:-cycle]).astype(float)).mean() / 2
        if left < LEFT_OF_CYCLE * variance and _come_round(kinds(), cycle):
            return cycle
    return 0


def _come_round(kinds: Sequence[int], cycle: int) -> bool:
    """Whether kinds of steps repeat after a cycle, which must be there twice where all are of one kind."""
    several = 2 * cycle <= len(kinds) or len(set(kinds)) > 1
    return several and all(kinds[i] == kinds[i - cycle] for i in range(cycle, len(kinds)))


def work_ahead(graph: Graph, steps: Sequence[Int64]) -> Int64:
    """How many operators each unmarked thread that hands work on runs in each step, int64[steps, threads]. steps: the tasks of each."""
    threads = np.flatnonzero(hands_on(graph) & without_mark(graph, graph.steps))
    of_steps = [graph.processor[tasks[graph.kind[tasks] == Kind.OPERATOR]] for tasks in steps]
    return np.array([np.bincount(of_step, minlength=len(graph.processors))[threads] for of_step in of_steps], np.int64)


def lacks_work_ahead(ahead: Int64, cycle: int) -> bool:
    """Whether a thread prepares less in the last step than in the one a cycle before; without a cycle, than in any. ahead: as `work_ahead`
    gives it."""
    like = ahead[-1 - cycle] if cycle else ahead[:-1].min(axis=0, initial=0 if len(ahead) < 2 else np.iinfo(np.int64).max)
    return bool((ahead[-1] < like).any())


def _longest_run(previous: Sequence[int], once: Sequence[bool], *, before_once: bool) -> tuple[int, ...]:
    """The longest run of steps that follow one another without any of `once`, the latest of several; () for none. before_once: whether
    the first step of the run may be one of them."""
    best: tuple[int, ...] = ()
    run: list[int] = []
    for step, before in enumerate(previous):
        if once[step] and not before_once:
            run = []
            continue
        follows = bool(run) and run[-1] == before and not once[step]
        run = [*run, step] if follows else [step]
        best = tuple(run) if len(run) >= len(best) else best
    return best


def completing_processors(
    graph: Graph, works: NDArray[np.bool_], position: Int32 | Int64, counted: Sequence[int], before: Sequence[int]
) -> NDArray[np.bool_]:
    """The processors with whose work a step is complete, bool[processors].

    works: bool[n], the tasks that may complete a step. position: int[n], the job's step of every task, -1 for none. counted: the steps
    that count. before: for each step of the job the one just before it, -1 without one.
    """
    processors = len(graph.processors)
    chosen = np.flatnonzero(works & np.isin(position, list(counted)))
    shows = np.zeros((max(len(before), 1), processors), bool)
    shows[position[chosen], graph.processor[chosen]] = True
    out = np.asarray(shows[list(counted)].all(axis=0), bool)
    sometimes = np.zeros(processors, bool)
    sometimes[graph.processor[works & (position >= 0)]] = True
    sometimes &= ~out
    return out | (_awaited(graph, works, position, before) & sometimes) if sometimes.any() else out


def _awaited(graph: Graph, works: NDArray[np.bool_], position: Int32 | Int64, before: Sequence[int]) -> NDArray[np.bool_]:
    """The processors whose work of a step the next step waits for, bool[processors]."""
    step_before = np.array([*before, -1], np.int64)  # the last is what index -1 finds
    out = np.zeros(len(graph.processors), bool)
    after, first = list_of(graph.pred_offset), graph.pred.astype(np.int64)
    crosses = (position[first] >= 0) & works[first] & (step_before[position[after]] == position[first])
    crosses &= graph.processor[first] != graph.processor[after]
    out[graph.processor[first[crosses]]] = True
    if graph.waits is None:
        return out
    rank_of = np.array([p.rank for p in graph.processors])
    for task, target in zip(graph.waits.task.tolist(), graph.waits.target.tolist(), strict=True):
        earlier = step_before[position[task]]
        if earlier < 0:
            continue
        streams = np.array([target]) if target >= 0 else np.flatnonzero((rank_of == rank_of[graph.processor[task]]) & ~out)
        for stream in streams.tolist():
            out[stream] = out[stream] or bool((works & (graph.processor == stream) & (position == earlier)).any())
    return out


def completing_tasks(works: NDArray[np.bool_], on_completing: NDArray[np.bool_], step: Int32, steps: int) -> NDArray[np.bool_]:
    """The tasks that a step is complete with, bool[n]: those of `works` that are `on_completing` processors, and all of a step without any.
    step: int32[n], -1 for none. steps: how many."""
    out: NDArray[np.bool_] = works & on_completing
    shows = np.zeros(steps + 1, bool)
    shows[step[out]] = True
    shows[-1] = True  # what index -1 finds
    return np.asarray(out | (works & ~shows[step]), bool)


def once_in_steps(graph: Graph, step: Int32) -> dict[int, str]:
    """What happens once in each step of a rank in which anything does, by the step's index. step: int32[n] of every task, -1 for none."""
    if graph.one_off is None:
        return {}
    owners = zip(step[graph.one_off.task].tolist(), graph.one_off.cause.tolist(), strict=True)
    return {owner: ONCE[cause] for owner, cause in sorted(owners, reverse=True) if owner >= 0}


def kinds_of(graph: Graph, tasks: Sequence[Int64]) -> tuple[int, ...]:
    """The kind of each step, as a number. tasks: those of each step of the job, all ranks. Of the first step the recording may lack the
    begin: it is of a kind that does all that it does, where it is of no other."""
    works = [_work(graph, own) for own in tasks]
    kinds: list[Counter[int]] = []
    out = []
    for work in works[1:]:
        kind = next((i for i, other in enumerate(kinds) if _alike(work, other)), len(kinds))
        kinds += [work] * (kind == len(kinds))
        out.append(kind)
    for first in works[:1]:
        same = [i for i, other in enumerate(kinds) if _alike(first, other)]
        part = [i for i, other in enumerate(kinds) if (first & other).total() >= SAME_KIND * first.total()]
        out.insert(0, next(iter((*same, *part, len(kinds)))))
    return tuple(out)


def _work(graph: Graph, tasks: Int64) -> Counter[int]:
    """How often a step runs each operator and each piece of device work, by processor and name."""
    tasks = tasks[np.isin(graph.kind[tasks], _COMPARED)]
    keys, numbers = np.unique(graph.processor[tasks].astype(np.int64) * len(graph.names) + graph.name[tasks], return_counts=True)
    return Counter(dict(zip(keys.tolist(), numbers.tolist(), strict=True)))


def _alike(one: Counter[int], other: Counter[int]) -> bool:
    """Whether two steps do the same but for one piece of work in twenty."""
    return (one & other).total() >= SAME_KIND * (one | other).total()
