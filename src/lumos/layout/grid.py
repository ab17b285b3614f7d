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
from lumos.analyze.steps import members
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.layout.answer import typical_step
from lumos.layout.durations import Mask, Scale, matching, number
from lumos.layout.whatif import Changes, parse_settings, whatif
from lumos.simulate import Frozen, freeze, simulate, sweep_scaled
from lumos.trace.table import Job

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
            key = next(iter(parse_settings([f"{key}={found[0]}"])))
        out[key] = found
    return out


def evaluate(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]]) -> tuple[Cell, ...]:
    """Every combination of the grid's values, on top of `changes`, in the order of the keys."""
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if all(key.startswith(SCALE) for key in grid) and not changes.structural:
        return _swept(job, graph, changes, grid, cells)
    return tuple(_one(job, graph, changes, cell) for cell in cells)


def _one(job: Job, graph: Graph, changes: Changes, cell: dict[str, str]) -> Cell:
    scales = tuple(Scale(key.removeprefix(SCALE), number(v, key)) for key, v in cell.items() if key.startswith(SCALE))
    settings = {**changes.settings, **{k: v for k, v in cell.items() if not k.startswith(SCALE)}}
    durations = changes.durations._replace(scales=(*changes.durations.scales, *scales))
    try:
        found = whatif(job, graph, replace(changes, settings=settings, durations=durations))
    except LumosError as error:
        return Cell(cell, None, str(error))
    return Cell(cell, found.outcome.step_time_s)


def _swept(job: Job, graph: Graph, changes: Changes, grid: Mapping[str, tuple[str, ...]], cells: list[dict[str, str]]) -> tuple[Cell, ...]:
    """Durations alone: one frozen graph, all combinations through batched sweeps."""
    masks = {key: matching(graph, job, key.removeprefix(SCALE)) for key in grid}
    if any(mask.all() for mask in masks.values()):  # then the times at which ranks begin scale too (`durations.scale`)
        return tuple(_one(job, graph, changes, cell) for cell in cells)
    base = changes.durations.apply(graph, job)
    seconds = scaled_steps(step_sweep(base), masks, [{key: number(v, key) for key, v in cell.items()} for cell in cells])
    return tuple(map(Cell, cells, seconds))


class StepSweep(NamedTuple):
    """A graph made ready for changes of its durations. counted: the tasks between whose first start and last end the step
    lasts, bool[n]."""

    frozen: Frozen
    counted: Mask


def step_sweep(graph: Graph) -> StepSweep:
    """The typical step of a job, ready to be swept."""
    owners = members(graph)
    paths = critical_paths(simulate(graph), owners)
    name = paths[typical_step(paths)].name
    counted = np.zeros(len(graph), bool)
    for i, step in enumerate(owners.steps):
        if step.name == name:
            counted[owners.tasks(i)] = True
    counted &= graph.kind != Kind.HOST  # a pause until the next step is no part of this one
    return StepSweep(freeze(graph), counted)


def scaled_steps(ready: StepSweep, masks: Mapping[str, Mask], factors: Sequence[Mapping[str, float]]) -> list[float]:
    """Seconds of the step for each of `factors`: by what the tasks of each of `masks` (bool[n]) are multiplied."""
    group = np.zeros(len(ready.frozen), np.uint16)
    product_of = np.ones((len(factors), 1))  # by configuration and group: tasks in the same masks form a group
    for key, mask in masks.items():
        if 2 * product_of.shape[1] > MOST_GROUPS:
            raise UsageError(f"--grid: at most {int(log2(MOST_GROUPS))} patterns at once")
        group += mask.astype(np.uint16) * np.uint16(product_of.shape[1])
        by = np.array([[wanted[key]] for wanted in factors])
        product_of = np.concatenate((product_of, product_of * by), axis=1)
    makespans = sweep_scaled(ready.frozen, group, product_of, ready.counted)
    return [int(span) * 1e-9 for span in makespans]
