"""Many what-ifs at once: every combination of the given values.

Combinations of settings are evaluated one by one. Where all keys scale durations (`scale:GLOB`), all combinations are simulated
in one batched sweep of the frozen graph.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.steps import Members, job_steps, members
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.simulate import Frozen, freeze, simulate, sweep_scaled
from lumos.whatif.answer import typical_step, windows
from lumos.whatif.durations import Scale, matching, number
from lumos.whatif.identify import Identification
from lumos.whatif.settings import parse_settings
from lumos.whatif.whatif import Changes, answer_changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lumos.simulate.durations import Mask
    from lumos.trace.table import Int8, Int64, Job

#: Prefix of grid keys that scale durations.
SCALE = "scale:"
#: The most groups of tasks with factors of their own that the sweep supports: one for every subset of the patterns.
MOST_GROUPS = 1 << 12


class Cell(NamedTuple):
    """One combination. step_time_s: None where it was refused. refused: why, "" otherwise."""

    settings: dict[str, str]
    step_time_s: float | None
    refused: str = ""


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


def evaluate(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]]) -> tuple[Cell, ...]:
    """Every combination of the grid's values, on top of `changes`, in the order of the keys."""
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if all(key.startswith(SCALE) for key in grid) and not changes.structural:
        return _swept(job, graph, changes, grid, cells)
    return _each(job, graph, changes, cells)


def _each(job: Job, graph: Graph, changes: Changes, cells: Iterable[dict[str, str]]) -> tuple[Cell, ...]:
    """Evaluate the combinations one by one."""
    plan = Identification(job, graph)
    return tuple(_one(job, graph, changes, cell, plan) for cell in cells)


def _one(job: Job, graph: Graph, changes: Changes, cell: dict[str, str], plan: Identification) -> Cell:
    scales = tuple(Scale(key.removeprefix(SCALE), number(v, key)) for key, v in cell.items() if key.startswith(SCALE))
    settings = {**changes.settings, **{k: v for k, v in cell.items() if not k.startswith(SCALE)}}
    durations = changes.durations._replace(scales=(*changes.durations.scales, *scales))
    try:
        found = answer_changes(job, graph, replace(changes, settings=settings, durations=durations), plan)
    except LumosError as error:
        return Cell(cell, None, str(error))
    return Cell(cell, found.outcome.step_time_s)


def _swept(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]], cells: list[dict[str, str]]) -> tuple[Cell, ...]:
    """Evaluate combinations that change only durations: one frozen graph, batched sweeps."""
    masks = {key: matching(graph, job, key.removeprefix(SCALE)) for key in grid}
    if any(mask.all() for mask in masks.values()):  # then the times at which ranks start are scaled too (`simulate.durations.scale`)
        return _each(job, graph, changes, cells)
    base = changes.durations.apply(graph, job)
    ready = step_sweep(graph, base)
    seconds = scaled_steps(ready, masks, [{key: number(v, key) for key, v in cell.items()} for cell in cells])
    return tuple(map(Cell, cells, seconds))


class StepSweep(NamedTuple):
    """A graph made ready for sweeps over changed durations. marks: uint8[n], 1 for the tasks of the step, 2 for those of the step
    before it, 0 for others. ahead: for how many ns these two steps overlap without a change."""

    frozen: Frozen
    marks: Int8
    ahead: int


def step_sweep(graph: Graph, base: Graph) -> StepSweep:
    """The step of median length of `graph`, ready to be swept in `base`, which is the same graph with other durations."""
    owners, timeline = members(graph), simulate(graph)
    paths = critical_paths(timeline, owners)
    name = paths[typical_step(paths)].name
    by_name = windows(timeline, owners)
    marks = np.zeros(len(graph), np.uint8)
    earlier = sorted((n for n, window in by_name.items() if window[:2] < by_name[name][:2]), key=lambda n: by_name[n])
    marks[_tasks(owners, earlier[-1:])] = 2
    marks[_tasks(owners, [name])] = 1
    return StepSweep(freeze(base), marks, by_name[name].overlap)


def scaled_steps(ready: StepSweep, masks: Mapping[str, Mask], factors: Sequence[Mapping[str, float]]) -> list[float]:
    """The step in seconds for each of `factors`, which give by key the factor for the tasks of that mask (bool[n])."""
    group = np.zeros(len(ready.frozen), np.uint16)
    by_group = np.ones((len(factors), 1))  # tasks in the same masks form a group
    for key, mask in masks.items():
        if 2 * by_group.shape[1] > MOST_GROUPS:
            raise UsageError(f"--grid: at most {int(log2(MOST_GROUPS))} patterns at once")
        group += mask.astype(np.uint16) * np.uint16(by_group.shape[1])
        by_group = np.concatenate((by_group, by_group * np.array([[by_key[key]] for by_key in factors])), axis=1)
    begin, end, before = sweep_scaled(ready.frozen, group, by_group, ready.marks)
    if (ready.marks == 2).any():
        begin = np.minimum(np.maximum(begin, before - ready.ahead), end)
    return [int(length) * 1e-9 for length in end - begin]


def _tasks(owners: Members, names: Sequence[str]) -> Int64:
    """The tasks of the named steps, without time between operators: the pause until the next step is not part of a step."""
    steps = job_steps(owners)
    tasks = [owners.tasks(i) for name in names for i in steps[name]]
    owned = np.concatenate(tasks) if tasks else np.empty(0, np.int64)
    chosen: Int64 = owned[owners.graph.kind[owned] != Kind.HOST]
    return chosen
