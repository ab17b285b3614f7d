"""Tensors for arguments of which only the layout is known."""

from lumos.proxy.arguments import TensorSpec
from lumos.proxy.pool import RECENT, RETURNS, TensorPool

SPEC = TensorSpec("float32", (4, 8), (8, 1))


def storage(pool: TensorPool, number: int) -> int:
    return pool.tensors[number].storage


def test_a_layout_that_comes_back_later_finds_cold_memory() -> None:
    pool = TensorPool()
    used = {storage(pool, pool.take(SPEC, "cpu", 1, (RECENT + 1) * i)) for i in range(4 * RETURNS)}
    assert len(used) == 4


def test_storages_are_as_large_as_their_tensors_and_never_shared_between_devices_types_or_bounds() -> None:
    pool = TensorPool()
    index = TensorSpec("int64", (4, 8), (8, 1))
    taken = [
        pool.take(SPEC, "cpu", 1, 0),
        pool.take(SPEC, "accelerator", 1, 1),
        pool.take(index, "cpu", 5, 2),
        pool.take(index, "cpu", 9, 3),
    ]
    storages = [pool.storages[storage(pool, number)] for number in taken]
    assert [s.nbytes for s in storages] == [128, 128, 256, 256]
    assert len({id(s) for s in storages}) == 4
    assert [s.bound for s in storages[2:]] == [5, 9]
