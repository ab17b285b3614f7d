"""What physics allows of an answer: how much shorter or longer a step can become by a change.

An answer beyond these bounds is wrong, whatever made it so. It is never moved to the bound: the finding says both figures, and the answer
is unsound.

*Changed durations.* No thread or stream has less time for a step than its work in it takes. And the step of a job follows a chain of work
in which each piece begins after the one before it has ended. Such a chain is in one piece of work at a time. So work that takes a share g
less saves at most g of the time in which it ran, and work that takes a share g more adds at most g of that time. Where work of several
ranks, threads or streams runs at once, the time counts once, with the largest share of those that run.

That holds for a fixed order of the work. Where the order follows from the times (several threads launch to one stream, kernels share a
device), a replay may leave it: what the real job does there, the recording does not show.

*Changed sizes.* A job of k times the size can run as k jobs one after the other: k times the step for k times the microbatches, layers or
sequences, unless it works on rows that grow with the sequences beside them. Any other size k times as large makes at most k² times the
work. Kernels work on whole tiles, so that a size which is no multiple of the recorded one may take what the next multiple takes. A smaller
job can do the work of the recorded one, and takes no longer.

*Another device.* While a device runs work and every thread of the job stands still, only that device can set the pace. So if its work
takes a share less or more, the step becomes shorter or longer by about that share of such times. A thread stands still where it has no
work, and in a call of the runtime that lasts longer than its kind usually does: the excess is waiting, whatever a replay makes of it. A
recording that lacks rows may lack those that tell what a call waited for. Its replay then takes the waiting for work of the CPU, and
answers that no device matters. Threads that load data, write checkpoints or poll on a timer set no pace, and do not count, unless a thread
of the loop waits for them. A time in which a rank communicates, or its device runs work that the change leaves alone, does not count.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.spans import hands_on
from lumos.analyze.loop.steps import step_times
from lumos.graph.evidence import NEGLIGIBLE, WAITS_INFERRED
from lumos.graph.lists import equal_rows, list_of, numbered, offsets
from lumos.graph.table import Dependency, Evidence, Kind
from lumos.graph.waits.solve import LONG_CALL
from lumos.intervals import EMPTY, either, union, within
from lumos.simulation import simulate
from lumos.trace.table import unique
from lumos.units import duration
from lumos.vocabulary import Basis, Grade

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.analyze.loop.steady import Steady
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: Share of a step by which an answer may be beyond a bound: where a wait ends is found while simulating, and may move by a constant of its
#: rank, such as the delay of a launch, although no work of it changed. Steps that agree to 0.1 % count as settled, which is in it as well.
TOLERANCE = 0.005
#: An answer that changes nothing is that of the recording, up to the share by which successive steps of a settled loop may differ.
IDENTICAL = 0.001
#: In the place of a duration: the task is left out, with all that it waits for.
LEFT_OUT = -1
#: The least share of what the device alone could save by which an answer must react.
LEAST_REACTION = 0.5
#: What the names of calls have in them, in any vendor's runtime, that do nothing but wait. Beyond LONG_CALL they wait for something, also
#: where all of them do.
_SYNCHRONISES = "synchroniz"
#: Counts of what is repeated, in whatever number; sizes in proportion to which the work of a step grows at most. With any other size it
#: grows at most with the square.
REPEATED, LINEAR = ("microbatches", "layers"), ("batch", "micro_batch", "vocab")


class Bounds(NamedTuple):
    """Between which times the step of a changed job lies, ns, and why it is neither shorter nor longer, in words."""

    low_ns: float
    high_ns: float
    low_why: str
    high_why: str


def beyond_bounds(base: Steady, changed: Steady) -> tuple[Evidence, ...]:
    """The finding that a step is shorter or longer than changed durations allow; () where it is neither. base, changed: the loops of one
    job with different durations."""
    source, other, graph = base.loop.source, changed.loop.source, changed.loop.graph
    durations = np.full(1 + max(source.max(initial=0), other.max(initial=0)), LEFT_OUT, np.int64)
    durations[other] = graph.duration if graph.left_out is None else np.where(graph.left_out, LEFT_OUT, graph.duration)
    count = min(len(base.loop.graph.release_time), len(graph.release_time))
    released = np.append(graph.release_time[:count], base.loop.graph.release_time[count:])
    bounds = duration_bounds(base, durations[source], released)
    return (*outside_bounds(bounds, base.step_time_ns, changed.step_time_ns), *waits_never_seen(base, changed))


def waits_never_seen(base: Steady, changed: Steady) -> tuple[Evidence, ...]:
    """The finding that waits between streams which were inferred come to set the pace of a changed step, although no wait between such work
    did in the base; () where none do. What they are for was not refuted, but nothing shows it: the step may also be the one without them.
    """
    graph = changed.loop.graph
    if not any(known.code == WAITS_INFERRED for known in graph.diagnostics):
        return ()
    edges, pairs, binds = zip(*map(_waits_between_streams, (base, changed)), strict=True)
    pair = numbered(*np.concatenate(pairs, axis=1))
    unseen = ~np.isin(pair[len(edges[0]) :], pair[: len(edges[0])][binds[0]])
    if not (unseen & binds[1]).any():
        return ()
    stays = np.ones(len(graph.pred), bool)
    stays[edges[1][unseen]] = False
    fewer = np.bincount(list_of(graph.pred_offset)[stays], minlength=len(graph))
    without = replace(graph, pred_offset=offsets(fewer), pred=graph.pred[stays], pred_kind=graph.pred_kind[stays])
    step, shorter = changed.step_time_ns, replace(changed, timeline=simulate(without)).step_time_ns
    share = abs(step - shorter) / max(base.step_time_ns, 1)
    if share <= NEGLIGIBLE:
        return ()
    message = (
        f"waits between streams that were inferred, and that nothing had to wait at before, hold up work of the changed step: it takes"
        f" {duration(step)} with them and {duration(shorter)} without; record with CUDA sync events to know them"
    )
    return (Evidence("waits-never-seen", message, Grade.SOUND, min(share, 1.0)),)


def _waits_between_streams(loop: Steady) -> tuple[Int64, NDArray[np.int64], NDArray[np.bool_]]:
    """The waits of streams for each other in a loop: their edges, int64[k]; the work that waits and that is awaited, by names and streams,
    int64[4, k]; and which of them set the time at which the work began, bool[k]."""
    graph, run = loop.loop.graph, loop.timeline
    edges = np.flatnonzero(graph.pred_kind == Dependency.STREAM_WAIT)
    after, before = list_of(graph.pred_offset)[edges], graph.pred[edges]
    pairs = np.stack([column[tasks] for column in (graph.name, graph.processor) for tasks in (after, before)]).astype(np.int64)
    lag = graph.lag[graph.position_of_task[after], Dependency.STREAM_WAIT]
    return edges, pairs, run.start[after] - run.end[before] <= lag


def duration_bounds(base: Steady, durations: Int64, released: Int64 | None = None) -> Bounds:
    """Between which times the step of a job with changed durations lies. base: its loop. durations: int64, what the tasks of that loop take
    instead, ns, LEFT_OUT for those that go with all that they wait for. released: int64, the release times of that loop, where they differ,
    ns."""
    less, more = _shares(base, durations, base.loop.graph.release_time if released is None else released)
    old, cycles = base.step_time_ns, later_cycles(base)
    since = _since(base, durations == LEFT_OUT)
    saved = _time_of(base, less, cycles, since).max() / len(base.cycle)
    if base.basis is Basis.PERIOD:
        # What comes to set the pace may have run ahead of the later steps of the loop, but not of all. The first steps lack what comes
        # before them, so that all together may be shorter than as many later ones.
        whole = np.zeros(1, np.int64), base.timeline.end.max(initial=0, keepdims=True)
        added = _time_of(base, more, whole, since)[0] / max(len(base.loop.owners.job), 1)
        added = min(max(added, _time_of(base, more, cycles, since).max() / len(base.cycle)), float(more.max(initial=0)) * old)
    else:
        until_begin = np.zeros(1, np.int64), cycles[0]  # the begin of the step moves with what ran before it
        before = float((_time_of(base, less, until_begin, since) + _time_of(base, more, until_begin, since))[0])
        saved, added = saved + before, _time_of(base, more, cycles, since)[0] + before
    longer = f"what becomes slower can add {duration(added)} at most" if 0 < added < inf else "no work takes more time"
    work, where = busiest(base, np.maximum(durations, 0))
    if work > old - saved:
        return Bounds(work, old + added, f"{where} has {duration(work)} of work in each step", longer)
    shorter = f"what becomes faster can save {duration(saved)} at most" if saved else "no work takes less time"
    return Bounds(old - saved, old + added, shorter, longer)


def outside_bounds(bounds: Bounds, base_ns: float, changed_ns: float) -> tuple[Evidence, ...]:
    """The finding that a step is shorter or longer than its bounds; () where it is neither. Both steps in ns."""
    slack = TOLERANCE * max(base_ns, bounds.low_ns)
    if bounds.low_ns - slack <= changed_ns <= bounds.high_ns + slack:
        return ()
    why = bounds.low_why if changed_ns < bounds.low_ns else bounds.high_why
    return (_beyond(f"{why}, and yet the step takes {duration(changed_ns)} instead of {duration(base_ns)}"),)


def busiest(loop: Steady, durations: Int64) -> tuple[float, str]:
    """What the busiest thread or stream has to do in a step, ns, and which it is, in words. Of a collective, only its transfer is work.
    durations: int64, of the loop's tasks, ns."""
    owners, graph, wanted = loop.loop.owners, loop.loop.graph, set(loop.cycle)
    tasks = np.concatenate([owners.tasks(part) for step in owners.job if step.name in wanted for part in step.parts])
    # The pauses of a thread are its work in every step of a loop; a single step may begin after one.
    tasks = tasks[owners.completes[tasks] | (loop.in_loop[graph.processor[tasks]] & (loop.basis is Basis.PERIOD))]
    return _most(graph, np.bincount(graph.processor[tasks], durations[tasks], len(graph.processors)) / len(loop.cycle))


def busiest_beside(loop: Steady) -> tuple[float, str]:
    """The same of the threads and streams with whose work no step is complete, such as a loader's; 0 where there are none, and for a step
    that is not repeated. They work ahead of the loop or lag behind it, but not without end: in the long run a step takes what they have to
    do for it. Their pauses are waits, and timers go by the clock.

    What such a thread was doing when the recording began or ended has no row. So its steps count from the first with work to the last.
    """
    graph, owners, number = loop.loop.graph, loop.loop.owners, loop.loop.steps
    timers = np.array([processor.timer for processor in graph.processors], bool)
    aside = ~(loop.in_loop | timers | hands_on(graph))  # what waits for a thread that hands work on is simulated
    if loop.basis is Basis.LATENCY or not aside.any():
        return 0.0, ""
    work = np.zeros((number, len(graph.processors)))
    for of_step, step in zip(work, owners.job[:number], strict=True):
        tasks = np.concatenate([owners.tasks(part) for part in step.parts])
        tasks = tasks[aside[graph.processor[tasks]] & (graph.kind[tasks] != Kind.HOST)]
        of_step += np.bincount(graph.processor[tasks], graph.duration[tasks], len(graph.processors))
    first, last = (work > 0).argmax(axis=0), number - 1 - (work[::-1] > 0).argmax(axis=0)
    at = np.arange(number)[:, None]
    whole = np.where(first < last, work * ((at >= first) & (at < last)), work)
    return _most(graph, whole.sum(axis=0) / np.where(first < last, last - first, number))


def _most(graph: Graph, work: NDArray[np.float64]) -> tuple[float, str]:
    """The largest work, ns, and whose it is. work: float64[processors]."""
    busiest = graph.processors[int(work.argmax())]
    return float(work.max()), f"rank {busiest.rank}, {busiest.name},"


def later_cycles(loop: Steady) -> tuple[Int64, Int64]:
    """When the cycles in the later half of a loop begin and are complete, int64[k] ns each; the step itself, where it is not repeated.

    The last cycles of a loop differ from those of the job: while the devices do their work, no thread works on the steps after them.
    """
    if loop.basis is Basis.LATENCY:
        return np.array([loop.since_ns]), np.array([loop.completion_ns])
    names = [step.name for step in loop.loop.owners.job]
    complete = np.array([step.completion_ns for step in step_times(loop.timeline, loop.loop.owners).job], np.int64)
    last, length = names.index(loop.cycle[-1]), len(loop.cycle)
    at = np.arange(last, max(last // 2, length) - 1, -length)
    return complete[at - length], complete[at]


def size_bounds(
    base_s: float, new_s: float, recorded: Mapping[str, int], wanted: Mapping[str, int], linear: Sequence[str] = LINEAR
) -> tuple[Evidence, ...]:
    """The finding that a job of other sizes takes longer than it can, or another time although it is the recorded one; () for neither.

    base_s, new_s: the two steps, seconds; the second without what the recorded one does not have, such as adding up gradients. recorded,
    wanted: sizes and counts by key; a key that was not recorded is left out. linear: sizes in proportion to which this job's work grows.
    """
    ratio = {key: value / recorded[key] for key, value in wanted.items() if recorded.get(key)}
    if not base_s or not ratio:
        return ()
    times = 1.0
    for key, k in ratio.items():
        times *= max(k, 1.0) if key in REPEATED else ceil(k) if key in linear else ceil(k) ** 2
    words = ", ".join(f"{key}={wanted[key]} instead of {recorded[key]}" for key in ratio)
    took = f"the step takes {duration(1e9 * new_s)} instead of {duration(1e9 * base_s)}"
    if all(k == 1 for k in ratio.values()):
        return (_beyond(f"{words} changes nothing, and yet {took}"),) if abs(new_s / base_s - 1) > IDENTICAL else ()
    if new_s <= (1 + TOLERANCE) * times * base_s:
        return ()
    return (_beyond(f"{words} takes {times:.4g} times as long at most, and yet {took}, {new_s / base_s:.4g} times as long"),)


def factor_bounds(factors: Iterable[float], base_ns: float, changed_ns: float) -> tuple[Evidence, ...]:
    """The finding that a step changes by more than the factors on some of its work; () where it does not. Less exact than
    `duration_bounds`, and at once."""
    every = [1.0, *factors]
    bounds = Bounds(min(every) * base_ns, max(every) * base_ns, f"no work takes less than {min(every):g} of its time", "")
    return outside_bounds(bounds._replace(high_why=f"no work takes more than {max(every):g} of its time"), base_ns, changed_ns)


def worth_bound(worth_ns: float, step_ns: float) -> tuple[Evidence, ...]:
    """The finding that a change would save more than the whole step; () where it does not. Both in ns."""
    if worth_ns <= (1 + TOLERANCE) * step_ns:
        return ()
    return (_beyond(f"a change can save no more than the step of {duration(step_ns)}, and yet it would save {duration(worth_ns)}"),)


def _beyond(message: str) -> Evidence:
    return Evidence("beyond-bounds", message, Grade.UNSOUND)


def _shares(base: Steady, durations: Int64, released: Int64) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By which share of its time each task of the loop becomes shorter, and longer, float64[n], 0 for neither; behind them, the same of the
    times that no task sets, such as the pace of a loader. A nanosecond is rounding."""
    graph = base.loop.graph
    of_both = []
    for was, becomes in ((graph.duration, durations), (graph.release_time, released)):
        by = np.where(np.abs(becomes - was) > 1, becomes - was, 0)
        of_both.append(np.divide(by, was, out=np.where(by > 0, inf, 0.0), where=was > 0))
    of_tasks, of_times = of_both
    of_tasks[durations == LEFT_OUT] = -1.0
    less, more = (np.append(np.maximum(sign * of_tasks, 0), np.maximum(sign * of_times, 0).max(initial=0)) for sign in (-1, 1))
    return less, more


def _since(base: Steady, left_out: NDArray[np.bool_]) -> Int64:
    """Since when each task of the base's loop holds its thread or stream, int64[n] ns: from its begin on; a collective, which waits before,
    from its transfer on. A task that is left out takes its waiting with it: it holds them since the work before it has ended, the first
    since the loop began."""
    end = base.timeline.end
    since: Int64 = end - base.loop.graph.duration
    if not left_out.any():
        return since
    order = np.lexsort((base.timeline.start, base.loop.graph.processor))
    follows = np.diff(base.loop.graph.processor[order], prepend=-1) == 0
    before = np.where(follows, np.roll(end[order], 1), base.timeline.start.min(initial=0))
    since[order] = np.where(left_out[order], np.minimum(before, since[order]), since[order])
    return since


def _time_of(base: Steady, shares: NDArray[np.float64], windows: tuple[Int64, Int64], since: Int64) -> NDArray[np.float64]:
    """The time in each window, from int64[k] to int64[k] ns, in which changed work of the base runs, float64[k] ns: each moment times the
    largest share of what then runs. shares: as `_shares` gives them, taken up to whole percents. since: as `_since` gives it."""
    first, last = windows
    time = np.zeros(len(first))
    if (most := float(shares.max(initial=0))) in (0, inf):
        return np.full(len(first), most)
    end = np.append(base.timeline.end, last.max())
    start = np.append(since, first.min())
    chosen = np.flatnonzero((shares > 0) & (end > first.min()) & (start < last.max()))
    start, end, percent = start[chosen], end[chosen], np.ceil(100 * shares[chosen] - 1e-6)
    seen = EMPTY
    for step_size in unique(percent)[::-1].tolist():
        more = either(seen, union(start[percent == step_size], end[percent == step_size]))
        time += step_size / 100 * (within(more, first, last) - within(seen, first, last))
        seen = more
    return time


def device_reaction(base: Steady, changed: Steady) -> tuple[Evidence, ...]:
    """The finding that a step hardly reacts to faster or slower device work, although devices alone set its pace at times; () where it
    reacts, or work becomes both faster and slower. base, changed: the loops of one job with different durations."""
    graph, source = base.loop.graph, base.loop.source
    becomes = np.zeros(1 + max(source.max(initial=0), changed.loop.source.max(initial=0)), np.int64)
    becomes[changed.loop.source] = changed.loop.graph.duration
    becomes = becomes[source]
    scaled = graph.on_device & (graph.kind != Kind.COLLECTIVE) & (becomes != graph.duration)
    more = bool((becomes > graph.duration).any())
    if not scaled.any() or (more and (becomes < graph.duration).any()):
        return ()
    alone = _time_alone(base, scaled)
    share = abs(1 - float(becomes[scaled].sum() / graph.duration[scaled].sum()))
    step, then = base.step_time_ns, changed.step_time_ns
    by = then - step if more else step - then
    if not alone or by >= LEAST_REACTION * share * alone or share * alone - by <= TOLERANCE * step:
        return ()
    message = (
        f"for {duration(alone)} of a step of {duration(step)} devices work while every thread stands still or waits in a call; with device"
        f" work that takes {share:.0%} {'more' if more else 'less'} the step must become {'longer' if more else 'shorter'} by about"
        f" {duration(share * alone)}, and yet it does by {duration(max(by, 0))}: waits are taken for work of the CPU, as the recording does"
        " not show what they waited for"
    )
    return (Evidence("device-unreactive", message, Grade.UNSOUND),)


def _time_alone(base: Steady, scaled: NDArray[np.bool_]) -> float:
    """The time of a step in which nothing works in the whole job but device work that is `scaled`, bool[n], ns; the least over the cycles
    in the later half of the loop. What a release holds back begins when it did, so that only what comes after the last one counts."""
    graph, run = base.loop.graph, base.timeline
    first, last = later_cycles(base)
    first = np.clip(first, graph.release_time.max(initial=0), None)
    in_loop = base.in_loop | hands_on(graph, base.in_loop)
    works = (graph.on_device & ~scaled) | (~graph.on_device & in_loop[graph.processor])
    start = run.end - graph.duration
    end = start + np.minimum(graph.duration, _usual_times(graph))
    others = union(start[works], end[works])
    every = either(others, union(start[scaled], end[scaled]))
    alone = within(every, first, np.maximum(first, last)) - within(others, first, np.maximum(first, last))
    return float(alone.min()) / len(base.cycle)


def _usual_times(graph: Graph) -> Int64:
    """What each task usually takes, int64[n] ns: a call of the runtime, the median of the calls of its name on its rank; a task of another
    kind, the longest time that there is."""
    out = np.full(len(graph), np.iinfo(np.int64).max)
    calls = np.flatnonzero(np.isin(graph.kind, (Kind.LAUNCH, Kind.RUNTIME, Kind.SYNC)))
    waits = np.array([_SYNCHRONISES in name.lower() for name in graph.names] or [False])
    key = graph.rank_of_task[calls].astype(np.int64) * len(graph.names) + graph.name[calls]
    for group in (calls[alike] for alike in equal_rows(key)):
        usual = int(np.median(graph.duration[group]))
        out[group] = min(usual, LONG_CALL) if waits[graph.name[group[0]]] else usual
    return out
