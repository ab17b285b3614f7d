"""The changed job as if it had been recorded: its graph with simulated times in the place of measured ones, and with marked steps.

Where an answer compares what the loop takes, the job is the repeated steps (`analyze.loop.steady`). Its first passes fill the queue of
launches and are left without a mark, as the first steps of a run that a profiler skips. So the marked steps take what the answer says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.repeat import COPY
from lumos.simulation.timeline import Timeline
from lumos.vocabulary import Basis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.analyze.loop.steady import Steady
    from lumos.analyze.loop.steps import Members
    from lumos.graph.table import Step


#: What torch.profiler calls a step.
_MARK = "ProfilerStep#"


def as_recorded(loop: Steady) -> Timeline:
    """The run of a job's loop, whose graph has that run's times as measured ones and the steps that count as marks."""
    owners, run = loop.loop.owners, loop.timeline
    names = [step.name for step in owners.job]
    if loop.basis is Basis.PERIOD:  # one mark more than periods, as the first marked step has none
        names = names[: loop.loop.whole * loop.loop.steps][-len(loop.cycle) - 1 :]
    marks = tuple(_marks(owners, run, names))
    graph = replace(run.graph, measured_start=run.start, measured_end=run.end, steps=marks)
    return Timeline(graph, run.start, run.end, run.source)


def _marks(owners: Members, run: Timeline, names: list[str]) -> Iterator[Step]:
    """A mark for each step of each rank, from the first start of the CPU's work in it to the next mark or, of the last, to its end."""
    number = {part: names.index(step.name) for step in owners.job if step.name in names for part in step.parts}
    ranks = owners.step_rank()
    for rank in range(len(owners.graph.ranks)):
        own = sorted((part for part in number if ranks[part] == rank), key=lambda part: number[part])
        spans = [_span(run, owners, part) for part in own]
        ends = [*(start for start, _ in spans[1:]), *(end for _, end in spans[-1:])]
        for part, (start, _), end in zip(own, spans, ends, strict=True):
            yield replace(owners.steps[part], name=owners.steps[part].name.replace(COPY, _MARK), start=start, end=end)


def _span(run: Timeline, owners: Members, part: int) -> tuple[int, int]:
    """The first start and the last end of a step's work on its marked thread; on any thread, or device, where it has none."""
    tasks = owners.tasks(part)
    lanes = np.array([p.lane for p in owners.graph.processors])[owners.graph.processor[tasks]]
    on_cpu = ~owners.on_device[tasks]
    masks = (on_cpu & (lanes == owners.steps[part].lane), on_cpu)
    chosen = next((tasks[mask] for mask in masks if mask.any()), tasks)
    return int(run.start[chosen].min()), int(run.end[chosen].max())
