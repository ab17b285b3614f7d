"""Where plans are timed and simulated: on this machine, or as tasks of a Ray cluster.

An engine works on rows of a table of plans whose blocks are priced already. The same rows give the same times on any machine, so
the task of a lost worker is repeated elsewhere, and the answer equals that of one machine.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.blocks.price import Pricer
from lumos.distribute import Workers, connected
from lumos.errors import UsageError
from lumos.prediction.predict import predict_job
from lumos.searching.coarse import coarse_step_times
from lumos.searching.explain import StepParts, parts_of
from lumos.searching.space import structures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.blocks.memory import Memory
    from lumos.plan.job import PlannedJob
    from lumos.prediction.step_time import PredictedStep
    from lumos.searching.prices import Columns, Floats
    from lumos.searching.space import Ints, Plans, Problem

SEARCH_ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan simulated in full, without its timeline. parts: of its step. keys: those of `lumos predict --json`."""

    job: PlannedJob
    time: PredictedStep
    memory: Memory
    parts: StepParts
    tokens_per_s_per_gpu: float
    model_flops_utilization: float
    keys: dict[str, Any]


def simulated(job: PlannedJob, pricer: Pricer) -> Simulated:
    """The step of `job` simulated in full."""
    p = predict_job(job, pricer, coarse=True)
    return Simulated(p.job, p.time, p.memory, parts_of(p, pricer), p.tokens_per_s_per_gpu, p.model_flops_utilization, p.to_dict())


def layer_blocks(plans: Plans, rows: Ints, count: int) -> list[Ints]:
    """The rows in at most `count` blocks of about equal work. As far as that allows, plans with the same order of passes stay together."""
    if not len(rows):
        return []
    groups = [(2 * s.stages * s.chunks * s.microbatches, rows[members]) for s, members in structures(plans.take(rows))]
    done = np.cumsum(np.repeat([passes for passes, _ in groups], [len(members) for _, members in groups]))
    block = (done - 1) * count // done[-1]
    return np.split(np.concatenate([members for _, members in groups]), np.flatnonzero(np.diff(block)) + 1)


class Local:
    """Times plans in threads of this process, without the interpreter's lock. Full simulations run one by one.

    times: blocks of rows, each with the steps of its plans in coarse form, seconds. simulate: the plans of rows in full, in their order.
    """

    def __init__(self, problem: Problem, threads: int | None = None) -> None:
        self.pricer = Pricer(problem.cluster)
        self._threads = threads or min(4, os.cpu_count() or 1)

    def times(self, plans: Plans, columns: Columns, rows: Ints) -> Iterator[tuple[Ints, Floats]]:
        def run(block: Ints) -> Floats:
            return coarse_step_times(plans.take(block), columns.take(block), self.pricer.coefficients)

        parts = layer_blocks(plans, rows, 4 * self._threads)
        with ThreadPoolExecutor(self._threads) as pool:
            yield from zip(parts, pool.map(run, parts), strict=True)

    def simulate(self, plans: Plans, rows: Ints) -> Iterator[Simulated]:
        for row in rows.tolist():
            yield simulated(plans.problem.job(plans.plan(row)), self.pricer)


class Ray:
    """The same by tasks of a Ray cluster. The plans, their columns and the prices are put into its object store once."""

    def __init__(self, problem: Problem, workers: Workers) -> None:
        self.pricer = Pricer(problem.cluster)
        self._workers = workers
        self._stored: tuple[Plans, Any] | None = None

    def times(self, plans: Plans, columns: Columns, rows: Ints) -> Iterator[tuple[Ints, Floats]]:
        table = self._workers.put((plans, columns, self.pricer.coefficients))
        parts = layer_blocks(plans, rows, 4 * self._workers.count)
        return zip(parts, self._workers.map(_timed, table, parts), strict=True)

    def simulate(self, plans: Plans, rows: Ints) -> Iterator[Simulated]:
        if self._stored is None or self._stored[0] is not plans:
            self._stored = plans, self._workers.put((plans, self.pricer))
        return self._workers.map(_simulated, self._stored[1], rows.tolist())


def _timed(table: tuple[Plans, Columns, Any], block: Ints) -> Floats:
    plans, columns, coefficients = table
    return coarse_step_times(plans.take(block), columns.take(block), coefficients)


def _simulated(table: tuple[Plans, Pricer], row: int) -> Simulated:
    plans, pricer = table
    return simulated(plans.problem.job(plans.plan(row)), pricer)


@contextmanager
def engines(name: str, address: str | None = None) -> Iterator[Callable[[Problem], Local | Ray]]:
    """What makes the engine of that name for a problem; engines on Ray share one connection.

    address: of a running Ray cluster. Raises UsageError for an unknown name, LumosError where no cluster answers.
    """
    match name:
        case "local":
            yield Local
        case "ray":
            with connected(address) as workers:
                yield lambda problem: Ray(problem, workers)
        case _:
            raise UsageError(f"engine {name!r} is not known; valid: {', '.join(SEARCH_ENGINES)}")
