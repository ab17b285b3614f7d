"""Many what-ifs at once: every combination of the values given.

Keys of --set are evaluated one by one; where all keys are durations (`scale:GLOB`), all combinations run through one batched
sweep of the frozen graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.steps import Members, job_steps, members
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Graph, Kind
from lumos.layout.answer import typical_step, windows
from lumos.layout.durations import Scale, matching, number
from lumos.layout.whatif import Changes, parse_settings, whatif
from lumos.simulate import freeze, simulate, sweep_many
from lumos.trace.table import Int64, Job

#: Prefix of grid keys that scale durations.
SCALE = "scale:"
#: Configurations swept together: eight run side by side, and their durations are held in memory.
BATCH = 64


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
    base = changes.durations.apply(graph, job)
    owners, timeline = members(graph), simulate(graph)
    paths = critical_paths(timeline, owners)
    name = paths[typical_step(paths)].name
    known = windows(timeline, owners)
    ahead = known[name].overlap
    own, before = (
        _tasks(owners, names) for names in ([name], [other for other, window in known.items() if window.start < known[name].start])
    )
    frozen = freeze(base)
    ends: list[float] = []
    for low in range(0, len(cells), BATCH):
        rows = []
        for cell in cells[low : low + BATCH]:
            factor = np.ones(len(base))
            for key, value in cell.items():
                factor[masks[key]] *= number(value, key)
            rows.append(np.rint(base.duration * factor).astype(np.int64))
        durations = np.stack(rows)
        finish = sweep_many(frozen, durations, ends=True)
        begin = (finish[:, own] - durations[:, own]).min(axis=1)
        end = finish[:, own].max(axis=1)
        if len(before):
            begin = np.minimum(np.maximum(begin, finish[:, before].max(axis=1) - ahead), end)
        ends += ((end - begin) * 1e-9).tolist()
    return tuple(Cell(cell, seconds) for cell, seconds in zip(cells, ends, strict=True))


def _tasks(owners: Members, names: Sequence[str]) -> Int64:
    """The tasks of steps of the job, without pauses between operators (the one until the next step is no part of a step)."""
    steps = job_steps(owners)
    tasks = [owners.tasks(i) for name in names for i in steps[name]]
    found = np.concatenate(tasks) if tasks else np.empty(0, np.int64)
    chosen: Int64 = found[owners.graph.kind[found] != Kind.HOST]
    return chosen
