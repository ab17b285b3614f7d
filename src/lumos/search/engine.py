"""Where plans are timed: on this machine, or as tasks of a Ray cluster.

An engine times rows of a table of plans in blocks. Blocks are pure: the same rows give the same times anywhere, so a lost
worker's block is done again and the answer is that of one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from lumos.errors import LumosError, UsageError
from lumos.layout.price import Pricer
from lumos.search.coarse import step_times
from lumos.search.prices import Floats, Prices
from lumos.search.space import Ints, Plans, Problem

ENGINES = ("local", "ray")
#: Times that Ray runs a block again whose worker or node was lost.
RETRIES = 8


class Engine(Protocol):
    """Times plans."""

    pricer: Pricer

    def split(self, rows: Ints, size: int) -> Iterator[Ints]:
        """The rows in rounds: after each, the search may stop."""

    def times(self, plans: Plans, rows: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Blocks of rows with their seconds, in the rows' order."""


def time_block(plans: Plans, rows: Ints, pricer: Pricer) -> Floats:
    """Seconds of the plans of `rows`."""
    some = plans.take(rows)
    return step_times(some, Prices(pricer).columns(some), pricer.coefficients)


class Local:
    """Threads of this process: NumPy's kernels run without the interpreter's lock."""

    def __init__(self, problem: Problem, threads: int | None = None, pricer: Pricer | None = None) -> None:
        self.pricer = pricer or Pricer(problem.cluster)
        self._threads = threads or min(4, os.cpu_count() or 1)

    def split(self, rows: Ints, size: int) -> Iterator[Ints]:
        return _rounds(rows, size)

    def times(self, plans: Plans, rows: Ints) -> Iterator[tuple[Ints, Floats]]:
        # Prices are learnt once, here, so that the threads only read them.
        columns = Prices(self.pricer).columns(plans.take(rows))
        parts = np.array_split(np.arange(len(rows)), self._threads)

        def run(part: Ints) -> Floats:
            return step_times(plans.take(rows[part]), columns.take(part), self.pricer.coefficients)

        with ThreadPoolExecutor(self._threads) as pool:
            for part, seconds in zip(parts, pool.map(run, parts), strict=True):
                yield rows[part], seconds


class Ray:
    """Tasks of a Ray cluster: the table of plans lies in the object store once; a lost worker's block is run again."""

    def __init__(self, problem: Problem, address: str | None = None, block: int = 512, pricer: Pricer | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise LumosError("--engine ray needs Ray, which is not installed: pip install 'lumos-trace[distributed]'") from error
        self._ray: Any = ray
        self.pricer = pricer or Pricer(problem.cluster)
        self._block = block
        if not ray.is_initialized():
            ray.init(address=address, include_dashboard=False, log_to_driver=False)
        self._run = ray.remote(max_retries=RETRIES)(_remote_block)
        self._stored: tuple[Plans, Any] | None = None

    def split(self, rows: Ints, size: int) -> Iterator[Ints]:
        """The first round is small, as it sets what later ones leave out; the next is the rest."""
        yield rows[:size]
        if len(rows) > size:
            yield rows[size:]

    def times(self, plans: Plans, rows: Ints) -> Iterator[tuple[Ints, Floats]]:
        if self._stored is None or self._stored[0] is not plans:
            self._stored = plans, self._ray.put((plans.problem, plans.rows, self.pricer))
        blocks = [rows[at : at + self._block] for at in range(0, len(rows), self._block)]
        pending = [self._run.remote(self._stored[1], block) for block in blocks]
        try:
            for block, reference in zip(blocks, pending, strict=True):
                yield block, self._ray.get(reference)
        except KeyboardInterrupt:
            for reference in pending:
                self._ray.cancel(reference)
            raise


def _remote_block(table: tuple[Problem, Ints, Pricer], rows: Ints) -> Floats:
    problem, columns, pricer = table
    return time_block(Plans(problem, columns), rows, pricer)


def engine_of(name: str, problem: Problem, address: str | None = None, pricer: Pricer | None = None) -> Engine:
    """The engine of that name. UsageError for an unknown one."""
    if name == "local":
        return Local(problem, pricer=pricer)
    if name == "ray":
        return Ray(problem, address, pricer=pricer)
    raise UsageError(f"engine {name!r} is not known; valid: {', '.join(ENGINES)}")


def _rounds(rows: Ints, size: int) -> Iterator[Ints]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]
