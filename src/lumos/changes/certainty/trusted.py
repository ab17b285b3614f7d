"""What the trust in a recording means for an answer: an interval that is wider by what is unknown, or no answer.

What a replay left unexplained, or kept as it was measured because ranks are absent, may follow a change or not. So the step of the
changed job may differ by up to that share of the base's step, to either side, also where the answer is that the step stays as it is. An
answer in which no work changed is that of the recording, and needs no margin. However an interval came to be as wide as it is, an answer
is no better than limited where it is wider than what the change does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.noise import FEW_STEPS, noise_unknown, step_spread
from lumos.analyze.loop.steady import Steady
from lumos.analyze.loop.steps import is_operation_level
from lumos.analyze.trust import MOST_ERROR, Trust, with_evidence, with_unknown
from lumos.changes.answer import Answer, Changed, answer, base_of
from lumos.changes.certainty.unmeasured import unmeasured
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.evidence import NEGLIGIBLE
from lumos.graph.table import Evidence, Graph
from lumos.vocabulary import Basis, Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.trace.table import Origin

#: Confidence from which a reading of layers or of a plan is taken as certain: layers of one model differ in a few operators.
_SURE = 0.95
#: Share of the step by which a recorded pipeline, cut by the rules of a change into what it was recorded as, may differ at most. More says
#: that the recording ran otherwise than the rules assume.
MOST_OFF = 0.1
#: Half-width of the 80 % interval of a step that was put together anew, as a fraction, beyond what its parts say: caches, allocations, the
#: CPU's own state and waits too short to show. Over changes of other people's scripts that resize nothing, it is the share of the step that
#: eight in ten errors stay below (`python -m validation.foreign DIR --calibrate`, where it is also taken from all jobs but one and held
#: against that one).
REBUILT = 0.006
#: Share of what another order of passes moves the step that is sure. A published job of 64 layers on eight stages gained 67 % of what the
#: order alone says when each stage got two chunks: what the host does between passes, and messages that wait for one another, grow with the
#: chunks.
ARRANGED = 0.5
#: The diagnostics of what a change leaves open, or assumes.
_ASSUMED = (
    *("not-reached", "far-from-measured", "two-readings", "split-assumed"),
    *("stages-assumed", "sharding-assumed", "sequence-assumed", "experts-assumed", "recompute-assumed"),
)
#: Words in the names of operators that only training has.
TRAINING = ("Backward", "autograd::engine", "Optimizer.step")


def widened(answered: Answer, trust: Trust) -> Answer:
    """The answer with its trust, and with its interval wider by what is unknown. It is never known better than the base and its steps."""
    known = answered.base.step_time_high_s / answered.base.step_time_s - 1 if answered.base.step_time_s else 0.0
    answered = replace(answered, trust=with_unknown(trust, max(known, FEW_STEPS)))
    by = trust.unknown * answered.base.step_time_s if answered.altered else 0.0
    if not by:
        return as_far_as_told(answered)
    outcome = answered.outcome
    low, high = max(outcome.step_time_low_s - by, 0.0), outcome.step_time_high_s + by
    codes = ", ".join(reason.code for reason in trust.reasons)
    message = f"each end of the interval is {trust.unknown:.1%} of the base's step further away, the share that is unknown: {codes}"
    wider = replace(outcome, step_time_low_s=low, step_time_high_s=high)
    return as_far_as_told(replace(answered, outcome=wider, diagnostics=(*answered.diagnostics, Diagnostic("interval-widened", message))))


def as_far_as_told(answered: Answer) -> Answer:
    """The answer, limited where its interval reaches as far to a side as the change moves the step, and further than the replay of a
    trusted recording may be off: then it does not tell what the change is worth."""
    step, base = answered.outcome.step_time_s, answered.base.step_time_s
    if answered.trust.grade is not Grade.SOUND or not answered.altered or not base:
        return answered
    reach, moved = max(answered.outcome.step_time_high_s - step, step - answered.outcome.step_time_low_s), abs(step - base)
    if reach < moved or reach <= MOST_ERROR * base:
        return answered
    message = f"the interval reaches {reach / base:.0%} of the recorded step to a side, and the change moves the step by {moved / base:.1%}"
    return replace(answered, trust=with_evidence(answered.trust, (Evidence("interval-wide", message, Grade.LIMITED),)))


def reaching(answered: Answer, *steps_s: float) -> Answer:
    """The answer with an interval that holds these steps too, seconds."""
    ends = answered.outcome.step_time_low_s, answered.outcome.step_time_high_s, *steps_s
    return replace(answered, outcome=replace(answered.outcome, step_time_low_s=min(ends), step_time_high_s=max(ends)))


def no_better_than(answered: Answer, origin: Origin | None) -> Answer:
    """The answer, known no better than the job of `origin` was when its files were written."""
    if origin is None:
        return answered
    step = answered.outcome.step_time_s
    return reaching(replace(answered, base_origin=origin), *(end * step for end in origin.within))


def read_otherwise(answered: Answer, code: str, message: str, *steps_s: float) -> tuple[Answer, tuple[Evidence, ...]]:
    """The answer with an interval that also holds the steps that other readings of the recording give, seconds, and the finding that there
    are any, by which it is limited where they are further off than the replay of a trusted recording may be."""
    moved = max((abs(step - answered.outcome.step_time_s) for step in steps_s), default=0.0) / (answered.base.step_time_s or 1.0)
    if moved <= NEGLIGIBLE:
        return answered, ()
    known = answered.base.step_time_high_s / (answered.base.step_time_s or 1.0)  # no reading is known better than the base
    ends = (step * by for step in steps_s for by in (known, 1 / known))
    return reaching(answered, *ends), (Evidence(code, message, Grade.LIMITED if moved > MOST_ERROR else Grade.SOUND),)


def in_a_loop(graph: Graph, answered: Answer, repeated: Callable[[], float]) -> tuple[Evidence, ...]:
    """The finding that a change has another effect in a loop of the step than on its latency, where the recording has a single training
    step. repeated: gives the changed loop's step as a multiple of the base's."""
    trains = any(word in name for name in graph.names for word in TRAINING)
    if answered.base.basis is not Basis.LATENCY or is_operation_level(graph) or not trains:
        return ()
    try:
        again = repeated() - 1
    except LumosError:  # what a change adds may not fit between copies of a step: then there is no loop to compare with
        return ()
    once = answered.outcome.step_time_s / answered.base.step_time_s - 1 if answered.base.step_time_s else 0.0
    if abs(once - again) <= NEGLIGIBLE:
        return ()
    message = (
        f"the recording has one step, whose latency changes by {once:+.1%}; a loop of that step would change by {again:+.1%}:"
        " --repeat compares the loop"
    )
    return (Evidence("one-step", message, Grade.SOUND, min(abs(once - again), 1.0)),)


def less_sure(answered: Answer, code: str, what: str, confidence: float) -> Answer:
    """The answer with the finding that what it rests on was read from the recording with a confidence (0 to 1) below SURE: the share of
    the change that is not certain may as well not be. what: was read, in words."""
    base, changed = answered.base.step_time_s, answered.outcome.step_time_s
    if confidence >= _SURE or not base or base == changed:
        return answered
    unknown = min((1 - confidence) * abs(changed / base - 1), 1.0)
    message = f"{what} (confidence {confidence:.0%}); {1 - confidence:.0%} of the change may not come true (lumos inspect --blocks)"
    return replace(answered, trust=with_evidence(answered.trust, (Evidence(code, message, Grade.LIMITED, unknown),)))


def as_far_as_reached(answered: Answer, *, held: bool) -> Answer:
    """The answer, limited where a part of the work keeps its time because nothing shows what the change makes of it (`layout.resize`), and
    where the change needs exchanges that the recording does not have. held: whether the interval holds what may become of either; then the
    answer is only worse where that is wide."""
    best = Grade.SOUND if held else Grade.LIMITED
    left = tuple(Evidence(d.code, d.message, best) for d in answered.diagnostics if d.code in _ASSUMED)
    return replace(answered, trust=with_evidence(answered.trust, left)) if left else answered


def as_far_as_rebuilt(answered: Answer, layout: MeasuredLayout, measured: MeasuredLayout) -> Answer:
    """The answer with an interval that holds what putting its blocks together leaves out; that of the recorded job stays as it is.
    layout, measured: after the change and before it."""
    outcome = answered.outcome
    if outcome.step_time_s == answered.base.step_time_s and layout.runs_as(measured):
        return answered
    low, high = outcome.step_time_low_s * (1 - REBUILT), outcome.step_time_high_s * (1 + REBUILT)
    return replace(answered, outcome=replace(outcome, step_time_low_s=low, step_time_high_s=high))


def as_far_as_arranged(answered: Answer, settings: Iterable[str]) -> Answer:
    """The answer, whose interval holds the half of what it moves the step where passes are cut or ordered in another way (`ARRANGED`).
    settings: the keys that change."""
    base, step = answered.base.step_time_s, answered.outcome.step_time_s
    return reaching(answered, base + ARRANGED * (step - base)) if {"pp", "vpp", "schedule"} & {*settings} and base != step else answered


def as_far_as_reproduced(answered: Answer, graph: Graph, same: Placed, *, repeat: bool) -> Answer:
    """The answer, less sure by how far the recording is from what the rules make of it: they leave something out, such as what a message
    holds up besides the pass that needs it, and an answer may be off by as much. same: the recording, cut by them as it is.

    Raises LumosError where that is more than a tenth of the step.
    """
    nothing = np.zeros(len(same.graph), bool)
    again = answer(graph, Changed(same.graph, same.owners, same.graph.duration, same.graph.duration, nothing, nothing, ()), repeat=repeat)
    base = again.base.step_time_s
    off = abs(again.outcome.step_time_s / base - 1) if base else 0.0
    message = (
        f"the recorded pipeline, cut by the same rules as the changed one, takes {1e3 * again.outcome.step_time_s:,.2f} ms a step and not"
        f" {1e3 * base:,.2f} ms"
    )
    if off > MOST_OFF:
        raise LumosError(f"--set: {message}, so they do not describe how this job runs; ask lumos predict")
    if off <= NEGLIGIBLE:
        return answered
    return replace(answered, trust=with_evidence(answered.trust, (Evidence("recut-differs", message, Grade.SOUND, off),)))


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
