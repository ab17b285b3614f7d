"""Many what-ifs at once: every combination of the given values.

Combinations of settings are evaluated one by one. Where all keys scale durations (`scale:GLOB`), all combinations are simulated
in one batched sweep of the frozen loop (`analyze.loop.steady`). A combination with which that loop does not settle is evaluated by itself.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.bounds import factor_bounds
from lumos.analyze.loop.steady import SweptLoop, altered
from lumos.analyze.trust import Trust, check_sound
from lumos.analyze.trust import trust as trust_in
from lumos.changes.answer import base_of
from lumos.changes.certainty.possible import ABOVE_PEAK_RATE, SIDE_LEFT_OUT, above_peak_rate, least_times, sides_left_out
from lumos.changes.durations import Scale, matching, number
from lumos.changes.machine import Machine
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import unchecked_answer
from lumos.errors import LumosError, UsageError
from lumos.segment.segment import Cut
from lumos.simulation.durations import scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumos.changes.changes import Changes
    from lumos.graph.table import Graph
    from lumos.simulation.durations import Mask
    from lumos.trace.table import Job

#: Prefix of grid keys that scale durations.
SCALE = "scale:"
#: The most groups of tasks with factors of their own that the sweep supports: one for every subset of the patterns.
MOST_GROUPS = 1 << 12


class Cell(NamedTuple):
    """One combination. step_time_s: None where it was refused. refused: why, "" otherwise. impossible: what in it no such device could do
    in so little time, or which side of it is left without work; "" for nothing."""

    settings: dict[str, str]
    step_time_s: float | None
    refused: str = ""
    impossible: str = ""


def parse_grid(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse words KEY=V,V,…. Raises UsageError for an unknown key or no values."""
    out: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, equals, values = word.rpartition("=")
        choices = tuple(v.strip() for v in values.split(",") if v.strip())
        if not equals or not choices:
            raise UsageError(f"--grid {word!r}: write KEY=VALUE,VALUE, for instance tp=1,2,4 or 'scale:*nccl*=0.5,1'")
        if key.startswith(SCALE):
            for value in choices:
                number(value, f"--grid {word!r}")
        else:
            parsed = [parse_settings([f"{key}={value}"]) for value in choices]
            key = next(iter(parsed[0]))
        out[key] = choices
    return out


def evaluate(
    job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]], *, trust: Trust | None = None, force: bool = False
) -> tuple[Cell, ...]:
    """Every combination of the grid's values, on top of `changes`, in the order of the keys.

    trust: how far the job can be trusted, where that is known already. Raises LumosError where its evidence is unsound, unless `force`.
    """
    check_sound(trust_in(graph) if trust is None else trust, "whatif", force=force)
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if all(key.startswith(SCALE) for key in grid) and not changes.structural:
        return _swept(job, graph, changes, grid, cells)
    return _each(job, graph, changes, cells)


def _each(job: Job, graph: Graph, changes: Changes, cells: Iterable[dict[str, str]]) -> tuple[Cell, ...]:
    """Evaluate the combinations one by one."""
    cut = Cut(job, graph)
    return tuple(_one(job, graph, changes, cell, cut) for cell in cells)


def _one(job: Job, graph: Graph, changes: Changes, cell: dict[str, str], cut: Cut) -> Cell:
    scales = tuple(Scale(key.removeprefix(SCALE), number(v, key)) for key, v in cell.items() if key.startswith(SCALE))
    settings = {**changes.settings, **{k: v for k, v in cell.items() if not k.startswith(SCALE)}}
    durations = changes.durations._replace(scales=(*changes.durations.scales, *scales))
    try:
        answered = unchecked_answer(job, graph, replace(changes, settings=settings, durations=durations), cut)
    except LumosError as error:
        return Cell(cell, None, str(error))
    impossible = (reason.message for reason in answered.trust.reasons if reason.code in (ABOVE_PEAK_RATE, SIDE_LEFT_OUT))
    return Cell(cell, answered.outcome.step_time_s, impossible=next(impossible, ""))


def _swept(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]], cells: list[dict[str, str]]) -> tuple[Cell, ...]:
    """Evaluate combinations that change only durations: one frozen graph, batched sweeps."""
    masks = {key: matching(graph, job, key.removeprefix(SCALE)) for key in grid}
    if any(mask.all() for mask in masks.values()):  # release times are scaled then (`simulation.durations`)
        return _each(job, graph, changes, cells)
    owners, figures, *_ = base_of(graph, changes.repeat)
    changed = changes.durations.apply(graph, job)
    ready = figures.swept if changed is graph else SweptLoop(altered(figures.loop, replace(owners, graph=changed)))
    seconds = scaled_steps(ready, masks, [{key: number(v, key) for key, v in cell.items()} for cell in cells])
    cut, possible = Cut(job, graph), _Possible(job, graph, changes, ready.base.step_time_ns)
    return tuple(
        _one(job, graph, changes, cell, cut) if step is None else Cell(cell, step, impossible=possible.why_not(masks, cell, step))
        for cell, step in zip(cells, seconds, strict=True)
    )


class _Possible:
    """What combinations of factors ask of the job's device; its least times are worked out once."""

    def __init__(self, job: Job, graph: Graph, changes: Changes, base_ns: float) -> None:
        self.job, self.graph, self.base, self.base_ns = job, graph, changes.durations.apply(graph, job), base_ns
        known = Machine(job, graph, changes.base_cluster).known
        self.accelerator = known.accelerator if known is not None else None
        self.least = least_times(graph, job, self.accelerator) if self.accelerator is not None else ()
        self.step_s = 1e-9 * base_of(graph, changes.repeat).times.mean_ns

    def why_not(self, masks: Mapping[str, Mask], cell: Mapping[str, str], step_s: float) -> str:
        """What in a combination is impossible; "" for nothing. step_s: its step, seconds."""
        altered, beyond = self.base, factor_bounds([number(value, key) for key, value in cell.items()], self.base_ns, 1e9 * step_s)
        if beyond:
            return beyond[0].message
        for key, mask in masks.items():
            altered = scale(altered, mask, number(cell[key], key))
        reasons = above_peak_rate(self.graph, altered, self.job, self.accelerator, self.step_s, self.least) + sides_left_out(
            self.graph, altered
        )
        return reasons[0].message if reasons else ""


def scaled_steps(ready: SweptLoop, masks: Mapping[str, Mask], factors: Sequence[Mapping[str, float]]) -> list[float | None]:
    """The step in seconds for each of `factors`, which give by key the factor for the tasks of that mask (bool, by task of the job).
    None where the loop does not settle with these factors."""
    group = np.zeros(len(ready.frozen), np.uint16)
    by_group = np.ones((len(factors), 1))  # tasks in the same masks form a group
    for key, mask in masks.items():
        if 2 * by_group.shape[1] > MOST_GROUPS:
            raise UsageError(f"--grid: at most {int(log2(MOST_GROUPS))} patterns at once")
        group += mask[ready.loop.source].astype(np.uint16) * np.uint16(by_group.shape[1])
        by_group = np.concatenate((by_group, by_group * np.array([[by_key[key]] for by_key in factors])), axis=1)
    return [None if step is None else 1e-9 * step for step in ready.scaled(group, by_group)]
