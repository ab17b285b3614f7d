"""What putting measured blocks together anew leaves out, which no other part of an interval holds.

A copied layer takes what its original took, a repeated pass what the recorded one took, and work keeps its order. Caches, allocations,
the CPU's own state and waits too short to show are different in the changed job all the same. How much that comes to was observed: over
changes of other people's scripts that resize nothing, it is the share of the step that eight in ten errors stay below
(`python -m validation.foreign DIR --calibrate`, where it is also taken from all jobs but one and held against that one).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumos.changes.answer import Answer
    from lumos.changes.layout.measured_layout import MeasuredLayout

#: Half-width of the 80 % interval of a step that was put together anew, as a fraction, beyond what its parts say.
REBUILT = 0.006


def as_far_as_rebuilt(found: Answer, layout: MeasuredLayout, measured: MeasuredLayout) -> Answer:
    """The answer with an interval that holds what putting its blocks together leaves out; that of the recorded job stays as it is.
    layout, measured: after the change and before it."""
    outcome = found.outcome
    if outcome.step_time_s == found.base.step_time_s and layout.runs_as(measured):
        return found
    low, high = outcome.step_time_low_s * (1 - REBUILT), outcome.step_time_high_s * (1 + REBUILT)
    return replace(found, outcome=replace(outcome, step_time_low_s=low, step_time_high_s=high))
