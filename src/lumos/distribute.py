"""Work on several machines: pure functions run as tasks of a Ray cluster (extra `distributed`)."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TypeVar

from lumos.errors import LumosError
from lumos.extras import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: How many times Ray repeats a task whose worker or node was lost.
RETRIES = 8

T = TypeVar("T")


@contextmanager
def connected(address: str | None = None) -> Iterator[Workers]:
    """The workers of a Ray cluster: the cluster that is connected already, else the one at `address`, else one of this machine.

    Ray tells on standard output what happens to the cluster. Within the context that goes to standard error, since standard output
    is for the answer; a connection that was made here ends with it. Raises LumosError where Ray is not installed or no cluster answers at
    `address`.
    """
    try:
        import ray
    except ImportError as error:
        raise LumosError(f"--engine ray needs Ray, which is not installed: {install('distributed')}") from error
    with redirect_stdout(sys.stderr):
        connects = not ray.is_initialized()
        if connects:
            _connect(ray, address)
        try:
            yield Workers(ray)
        finally:
            if connects:
                ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    dashboard = None if address else False
    try:
        ray.init(address=address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise LumosError(f"no Ray cluster answers at {address or 'this machine'} ({error}); start one: ray start --head") from error


class Workers:
    """The workers of the Ray cluster to which the module `ray` is connected."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @property
    def count(self) -> int:
        """Processors of the cluster, which is how many tasks run at once."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def put(self, value: Any) -> Any:
        """Put `value` into the cluster's object store; the result is `map`'s argument `shared`. Raises LumosError where it has no room."""
        try:
            return self._ray.put(value)
        except self._ray.exceptions.RayError as error:
            raise _cluster_failed(error) from error

    def map(self, function: Callable[[Any, Any], T], shared: Any, items: Sequence[Any]) -> Iterator[T]:
        """`function(shared, item)` for every item, in the order of the items. shared: what `put` returned.

        The task of a lost worker is repeated. An error that `function` raises is raised here, and the tasks left are cancelled. Raises
        LumosError where the cluster cannot end a task: its workers are lost again and again, or its object store is full.
        """
        task = self._ray.remote(max_retries=RETRIES)(function)
        pending = [task.remote(shared, item) for item in items]
        try:
            while pending:
                result = self._get(pending[0])
                pending.pop(0)
                yield result
        finally:
            for reference in pending:
                self._ray.cancel(reference)

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # wraps the error that the function raised
            if isinstance(error.cause, (LumosError, MemoryError)):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise _cluster_failed(error) from error


def _cluster_failed(error: Exception) -> LumosError:
    """The error to raise where Ray itself, and not the work given to it, failed."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return LumosError(
        f"the Ray cluster could not do the work ({type(error).__name__}: {lines[0][:200]}); see what `ray status` says of its nodes and"
        " memory, or leave out --engine ray"
    )
