"""A faster device that does not make the step shorter, although at times nothing but the device is at work.

While a device runs work and every thread of the job stands still, only that device can set the pace. So if its work takes a share less,
the step becomes shorter by about that share of such times. A thread stands still where it has no work, and in a call of the runtime that
lasts longer than its kind usually does: the excess is waiting, whatever a replay makes of it. A recording that lacks rows may lack those
that tell what a call waited for. Its replay then takes the waiting for work of the CPU, and answers that no device matters.

Threads that load data, write checkpoints or poll on a timer set no pace, and do not count, unless a thread of the loop waits for them. A
time in which a rank communicates, or its device runs work that the change leaves alone, does not count either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.bounds import TOLERANCE, later_cycles
from lumos.analyze.loop.spans import hands_on
from lumos.graph.lists import equal_rows
from lumos.graph.table import Evidence, Kind
from lumos.graph.waits.solve import LONG_CALL
from lumos.intervals import either, union, within
from lumos.units import duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steady import Steady
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: The least share of what the device alone could save by which an answer must react.
LEAST_REACTION = 0.5
#: What the names of calls have in them, in any vendor's runtime, that do nothing but wait. Beyond LONG_CALL they wait for something, also
#: where all of them do.
_SYNCHRONISES = "synchroniz"


def device_reaction(base: Steady, changed: Steady) -> tuple[Evidence, ...]:
    """The finding that a step hardly reacts to faster device work, although devices alone set its pace at times; () where it reacts, or
    no device work becomes faster. base, changed: the loops of one job with different durations."""
    graph, source = base.loop.graph, base.loop.source
    becomes = np.zeros(1 + max(source.max(initial=0), changed.loop.source.max(initial=0)), np.int64)
    becomes[changed.loop.source] = changed.loop.graph.duration
    becomes = becomes[source]
    scaled = graph.on_device & (graph.kind != Kind.COLLECTIVE) & (becomes < graph.duration)
    if not scaled.any() or (becomes > graph.duration).any():
        return ()
    alone = _time_alone(base, scaled)
    saved = 1 - float(becomes[scaled].sum() / graph.duration[scaled].sum())
    step, shorter = base.step_time_ns, base.step_time_ns - changed.step_time_ns
    missing = saved * alone - shorter
    if not alone or shorter >= LEAST_REACTION * saved * alone or missing <= TOLERANCE * step:
        return ()
    message = (
        f"for {duration(alone)} of a step of {duration(step)} devices work while every thread stands still or waits in a call; with device"
        f" work that takes {saved:.0%} less the step must become shorter by about {duration(saved * alone)}, and yet it does by"
        f" {duration(max(shorter, 0))}: waits are taken for work of the CPU, as the recording does not show what they waited for"
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
    end = start + np.minimum(graph.duration, _usual(graph))
    others = union(start[works], end[works])
    every = either(others, union(start[scaled], end[scaled]))
    alone = within(every, first, np.maximum(first, last)) - within(others, first, np.maximum(first, last))
    return float(alone.min()) / len(base.cycle)


def _usual(graph: Graph) -> Int64:
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
