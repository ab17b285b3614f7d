"""Work on a Ray cluster: what a failure of the cluster, and one of the work, becomes. A small stand-in takes Ray's place."""

import sys
from types import SimpleNamespace

import pytest

from lumos.distribute import Workers, connected
from lumos.errors import LumosError, TraceError


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: BaseException) -> None:
        super().__init__("the worker's traceback")
        self.cause = cause


class ObjectStoreFullError(RayError):
    pass


@pytest.fixture
def workers():
    """Workers of a cluster whose tasks run when their result is asked for. `cancelled` lists the tasks that were cancelled."""
    cancelled = []

    def get(reference):
        function, shared, item = reference
        try:
            return function(shared, item)
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error

    ray = SimpleNamespace(
        is_initialized=lambda: True,
        put=lambda value: value,
        get=get,
        remote=lambda **_: lambda function: SimpleNamespace(remote=lambda shared, item: (function, shared, item)),
        cancel=lambda reference: cancelled.append(reference[2]),
        exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError),
    )
    made = Workers(ray)
    return SimpleNamespace(map=made.map, put=made.put, ray=ray, cancelled=cancelled)


def test_results_come_in_the_order_of_the_items(workers):
    assert list(workers.map(lambda shared, item: shared * item, workers.put(2), [3, 1, 2])) == [6, 2, 4]
    assert workers.cancelled == []


@pytest.mark.parametrize(("raised", "expected"), [(TraceError("a file"), TraceError), (MemoryError(), MemoryError)])
def test_the_error_of_the_work_is_raised_and_the_rest_cancelled(workers, raised, expected):
    def work(shared, item):
        if item == 2:
            raise raised
        return item

    results = workers.map(work, None, [1, 2, 3])
    assert next(results) == 1
    with pytest.raises(expected):
        next(results)
    assert workers.cancelled == [2, 3]


def test_a_cluster_that_fails_is_one_message(workers):
    def full(*_):
        raise ObjectStoreFullError("no room\nfor 5 GB")

    with pytest.raises(LumosError, match=r"the Ray cluster could not do the work \(ObjectStoreFullError: no room\).*--engine ray"):
        list(workers.map(full, None, [1]))
    workers.ray.put = full
    with pytest.raises(LumosError, match="ObjectStoreFullError"):
        workers.put(1)


@pytest.fixture
def ray(monkeypatch):
    """A Ray that tells what happens to its cluster on standard output, as the real one does. `open`: whether it is connected."""

    def init(**words):
        if words["address"] == "nowhere":
            raise ConnectionError("no answer")
        module.open = True

    def get(reference):
        print("(raylet) a worker died")
        return reference

    module = SimpleNamespace(open=False, init=init, get=get, exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))
    module.is_initialized = lambda: module.open
    module.shutdown = lambda: setattr(module, "open", False)
    module.remote = lambda **_: lambda function: SimpleNamespace(remote=lambda shared, item: item)
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


def test_a_connection_ends_with_its_use_unless_it_was_there_before(ray):
    with connected():
        assert ray.open
    assert not ray.open
    ray.open = True
    with connected():
        pass
    assert ray.open


def test_no_cluster_is_one_message(ray):
    with pytest.raises(LumosError, match="no Ray cluster answers at nowhere"), connected("nowhere"):
        pass
