"""Why the interval of an answer is as wide as it is, in the parts that a reader can do something about."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.analyze.loop.noise import noise_unknown, step_spread
from lumos.analyze.loop.steady import Steady
from lumos.changes.answer import base_of
from lumos.changes.certainty.unmeasured import unmeasured

if TYPE_CHECKING:
    from lumos.changes.answer import Answer
    from lumos.graph.table import Graph


class IntervalCauses(NamedTuple):
    """Why an interval is as wide as it is. base_error, step_spread: how far the simulated base is off, and how much steps differ, as
    fractions of the step; together they make its half-width.
    few_steps: whether there are too few steps to see their spread, so that a fixed one stands for it. unknown_s: how much it is wider at
    each end by what the recording does not show. gaps_s: how much by pauses of a device that were not measured. prices_s: how much by
    what work costs that was scaled or modelled instead of measured."""

    base_error: float
    step_spread: float
    few_steps: bool
    unknown_s: float
    gaps_s: float
    prices_s: float


def interval_causes(graph: Graph, answered: Answer) -> IntervalCauses:
    """What the interval of an answer of `lumos whatif` about the job of that graph consists of."""
    known, base, changed = base_of(graph, False), answered.base, answered.outcome
    by = answered.trust.unknown * base.step_time_s if answered.altered else 0.0
    half = base.step_time_high_s / base.step_time_s - 1 if base.step_time_s else 0.0
    most = (changed.step_time_high_s - by) / (1 + half)
    least = (changed.step_time_low_s + by) / (1 - half) if half < 1 else 0.0
    bounds = unmeasured(known.figures.loop, answered.job) if isinstance(answered.job, Steady) else None
    gaps = 1e-9 * (bounds.high_ns - bounds.low_ns) if bounds else 0.0
    prices = max(round(most - least - gaps, 9), 0.0)  # times are whole ns
    return IntervalCauses(abs(known.off), step_spread(known.times), bool(noise_unknown(known.times)), by, gaps, prices)
