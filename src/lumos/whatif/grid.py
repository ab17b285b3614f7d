"""Many what-ifs at once: every combination of the values given.

Keys of --set are evaluated one by one; where all keys are durations (`scale:GLOB`), all combinations run through one batched
sweep of the frozen graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import log2
from typing import NamedTuple

import numpy as np

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.steps import Members, job_steps, members
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.simulate import Frozen, freeze, simulate, sweep_scaled
from lumos.simulate.durations import Mask
from lumos.trace.table import Int8, Int64, Job
from lumos.whatif.answer import typical_step, windows
from lumos.whatif.durations import Scale, matching, number
from lumos.whatif.identify import Identification
from lumos.whatif.settings import parse_settings
from lumos.whatif.whatif import Changes, whatif

#: Prefix of grid keys that scale durations.
SCALE = "scale:"
#: Combinations of patterns that the sweep tells apart.
MOST_GROUPS = 1 << 12


class Cell(NamedTuple):
    """One combination. step_time_s: None where it cannot be, and why."""

    settings: dict[str, str]
    step_time_s: float | None
    refused: str = ""


def parse_grid(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """KEY=V,V,… words. UsageError for an unknown key or no values."""
    out: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, equals, values = word.rpartition("=")
        found = tuple(v.strip() for v in values.split(",") if v.strip())
        if not equals or not found:
            raise UsageError(f"--grid {word!r}: write KEY=VALUE,VALUE, for instance tp=1,2,4 or 'scale:*nccl*=0.5,1'")
        if key.startswith(SCALE):
            for value in found:
                number(value, f"--grid {word!r}")
        else:
            parsed = [parse_settings([f"{key}={value}"]) for value in found]
            key = next(iter(parsed[0]))
        out[key] = found
    return out


def evaluate(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]]) -> tuple[Cell, ...]:
    """Every combination of the grid's values, on top of `changes`, in the order of the keys."""
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if all(key.startswith(SCALE) for key in grid) and not changes.structural:
        return _swept(job, graph, changes, grid, cells)
    return _each(job, graph, changes, cells)


def _each(job: Job, graph: Graph, changes: Changes, cells: Iterable[dict[str, str]]) -> tuple[Cell, ...]:
    """The combinations one by one."""
    plan = Identification(job, graph)
    return tuple(_one(job, graph, changes, cell, plan) for cell in cells)


def _one(job: Job, graph: Graph, changes: Changes, cell: dict[str, str], plan: Identification) -> Cell:
    scales = tuple(Scale(key.removeprefix(SCALE), number(v, key)) for key, v in cell.items() if key.startswith(SCALE))
    settings = {**changes.settings, **{k: v for k, v in cell.items() if not k.startswith(SCALE)}}
    durations = changes.durations._replace(scales=(*changes.durations.scales, *scales))
    try:
        found = whatif(job, graph, replace(changes, settings=settings, durations=durations), plan)
    except LumosError as error:
        return Cell(cell, None, str(error))
    return Cell(cell, found.outcome.step_time_s)


def _swept(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]], cells: list[dict[str, str]]) -> tuple[Cell, ...]:
    """Durations alone: one frozen graph, all combinations through batched sweeps."""
    masks = {key: matching(graph, job, key.removeprefix(SCALE)) for key in grid}
    if any(mask.all() for mask in masks.values()):  # then the times at which ranks begin scale too (`durations.scale`)
        return _each(job, graph, changes, cells)
    base = changes.durations.apply(graph, job)
    ready = step_sweep(graph, base)
    seconds = scaled_steps(ready, masks, [{key: number(v, key) for key, v in cell.items()} for cell in cells])
    return tuple(map(Cell, cells, seconds))


class StepSweep(NamedTuple):
    """A graph made ready for changes of its durations. marks: uint8[n], 1 for the tasks of the step, 2 for those of the steps
    before it. ahead: ns for which the step runs beside these as measured."""

    frozen: Frozen
    marks: Int8
    ahead: int


def step_sweep(graph: Graph, base: Graph) -> StepSweep:
    """The typical step of `graph`, ready to be swept in `base`: the same graph with other durations."""
    owners, timeline = members(graph), simulate(graph)
    paths = critical_paths(timeline, owners)
    name = paths[typical_step(paths)].name
    known = windows(timeline, owners)
    marks = np.zeros(len(graph), np.uint8)
    earlier = sorted((n for n, window in known.items() if window[:2] < known[name][:2]), key=lambda n: known[n])
    marks[_tasks(owners, earlier[-1:])] = 2
    marks[_tasks(owners, [name])] = 1
    return StepSweep(freeze(base), marks, known[name].overlap)


def scaled_steps(ready: StepSweep, masks: Mapping[str, Mask], factors: Sequence[Mapping[str, float]]) -> list[float]:
    """Seconds of the step for each of `factors`: by what the tasks of each of `masks` (bool[n]) are multiplied."""
    group = np.zeros(len(ready.frozen), np.uint16)
    by_group = np.ones((len(factors), 1))  # tasks in the same masks form a group
    for key, mask in masks.items():
        if 2 * by_group.shape[1] > MOST_GROUPS:
            raise UsageError(f"--grid: at most {int(log2(MOST_GROUPS))} patterns at once")
        group += mask.astype(np.uint16) * np.uint16(by_group.shape[1])
        by_group = np.concatenate((by_group, by_group * np.array([[wanted[key]] for wanted in factors])), axis=1)
    begin, end, before = sweep_scaled(ready.frozen, group, by_group, ready.marks)
    if (ready.marks == 2).any():
        begin = np.minimum(np.maximum(begin, before - ready.ahead), end)
    return [int(length) * 1e-9 for length in end - begin]


def _tasks(owners: Members, names: Sequence[str]) -> Int64:
    """The tasks of steps of the job, without pauses between operators (the one until the next step is no part of a step)."""
    steps = job_steps(owners)
    tasks = [owners.tasks(i) for name in names for i in steps[name]]
    found = np.concatenate(tasks) if tasks else np.empty(0, np.int64)
    chosen: Int64 = found[owners.graph.kind[found] != Kind.HOST]
    return chosen
