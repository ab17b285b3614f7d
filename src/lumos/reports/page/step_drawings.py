"""The timelines that a report holds: one of every step, whole for the step that is shown first, and for the others as far as there is room.

A report has to stay small enough to be sent around. So the tasks of the other steps are in it, from the first step on, as long as they are
few together; what has no tasks has levels of few bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.reports.page.timeline_levels import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.simulation.timeline import Timeline

#: The timeline of the step that is shown first.
_WHOLE = Limits()
#: The most pieces of all other steps together, and the most cells of a level of one of them.
OTHER_TASKS, OTHER_CELLS = 60_000, 50_000
#: Of so many other steps at most a report has a timeline.
MOST_OTHERS = 24


def drawings(
    draw: Callable[[str, Limits, Timeline | None], dict[str, Any]], steps: Sequence[str], step: str, changed: Timeline | None
) -> dict[str, Any]:
    """`timeline`, that of `step`, with the changed run where one is given; `other_timelines`, those of the other steps, by step.

    draw: the timeline of a step of the job within limits. steps: the names of all steps.
    """
    left, others = OTHER_TASKS, {}
    for name in [name for name in steps if name != step][:MOST_OTHERS]:
        others[name] = draw(name, Limits(cells=OTHER_CELLS, tasks=left), None)
        left -= max((run["tasks"]["start"]["length"] for run in others[name]["runs"] if run["tasks"] is not None), default=0)
    return {"timeline": draw(step, _WHOLE, changed), "other_timelines": others}
