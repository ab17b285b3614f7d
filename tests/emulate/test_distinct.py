"""Which ranks of a job are run, and which are copies of those."""

from __future__ import annotations

import msgspec
import pytest
from tests.emulate.test_record import a_process

from lumos.emulate.distinct import copies, mesh_dimensions, neighbour, same_work, to_run
from lumos.emulate.record import Group

#: Eight ranks as two pipeline stages of two replicas of two tensor-parallel ranks: rank = 4 x stage + 2 x replica + tensor.
STAGES = [[0, 4], [1, 5], [2, 6], [3, 7]]
REPLICAS = [[0, 2], [1, 3], [4, 6], [5, 7]]
TENSORS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def groups():
    found = [Group("0", "default_pg", list(range(8)), 0)]
    for made, (description, several) in enumerate((("pp", STAGES), ("dp", REPLICAS), ("tp", TENSORS)), 1):
        found += [Group(str(len(found) + place), description, ranks, made) for place, ranks in enumerate(several)]
    return found


def test_the_dimensions_are_the_groups_that_were_made_together():
    pp, dp, tp = mesh_dimensions(a_process(rank=0, world=8, groups=groups()))
    assert [[group.ranks for group in each] for each in (pp, dp, tp)] == [STAGES, REPLICAS, TENSORS]
    assert [neighbour(each) for each in (pp, dp, tp)] == [4, 2, 1]


def test_without_groups_the_job_has_one_dimension_of_all_ranks():
    (everyone,) = mesh_dimensions(a_process(rank=0, world=4, groups=[Group("0", "default_pg", [0, 1, 2, 3], 0)]))
    assert [group.ranks for group in everyone] == [[0, 1, 2, 3]]
    assert neighbour(everyone) == 1


@pytest.mark.parametrize(
    ("changing", "run", "of_each"),
    [
        ((), [0], {0: [1, 2, 3, 4, 5, 6, 7]}),
        ((0,), [0, 4], {0: [1, 2, 3], 4: [5, 6, 7]}),
        ((0, 2), [0, 1, 4, 5], {0: [2], 1: [3], 4: [6], 5: [7]}),
    ],
    ids=["all alike", "stages differ", "stages and tensor ranks differ"],
)
def test_ranks_along_dimensions_that_change_the_work_run(changing, run, of_each):
    along = mesh_dimensions(a_process(rank=0, world=8, groups=groups()))
    needed = to_run([along[place] for place in changing])
    assert needed == run
    assert copies(8, needed, [each for place, each in enumerate(along) if place not in changing]) == of_each


def test_work_is_the_same_where_shapes_calls_and_exchanges_are():
    one = a_process()
    assert same_work(one, a_process(rank=0))
    operator, exchange = one.operators[0], one.exchanges[0]
    shorter = msgspec.structs.replace(operator.inputs[0], shape=(2, 2))
    others = (
        {"operators": [msgspec.structs.replace(operator, inputs=[shorter])]},
        {"operators": [msgspec.structs.replace(operator, name="aten::bmm")]},
        {"exchanges": [msgspec.structs.replace(exchange, input_elements=7)]},
        {"calls": []},
    )
    assert not any(same_work(one, a_process(**each)) for each in others)
