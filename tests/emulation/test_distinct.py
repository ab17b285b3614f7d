"""Which ranks of a job are run, which are copies of those, and whom the copies talk to."""

import msgspec
import pytest
from tests.emulation.test_record import a_process

from lumos.emulation import distinct
from lumos.emulation.distinct import copies, diagonal, distinct_work, mesh_dimensions, neighbour, same_but_sizes, same_work, to_run
from lumos.emulation.record import Exchange, Group
from lumos.vocabulary import CollectiveKind

#: Eight ranks as two pipeline stages of two replicas of two tensor-parallel ranks: rank = 4 x stage + 2 x replica + tensor.
STAGES = [[0, 4], [1, 5], [2, 6], [3, 7]]
REPLICAS = [[0, 2], [1, 3], [4, 6], [5, 7]]
TENSORS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def groups():
    found = [Group("0", "default_pg", list(range(8)), 0)]
    for made, (description, several) in enumerate((("pp", STAGES), ("dp", REPLICAS), ("tp", TENSORS)), 1):
        found += [Group(str(len(found) + place), description, ranks, made) for place, ranks in enumerate(several)]
    return found


def ranks_of(dimension):
    """The groups along a dimension."""
    return [list(each) for each in dict.fromkeys(map(tuple, dimension.values()))]


def test_the_dimensions_are_the_groups_that_were_made_together():
    pp, dp, tp = mesh_dimensions(a_process(rank=0, world=8, groups=groups()))
    assert [ranks_of(each) for each in (pp, dp, tp)] == [STAGES, REPLICAS, TENSORS]
    assert [neighbour(each, 0) for each in (pp, dp, tp)] == [4, 2, 1]
    assert [neighbour(each, 6) for each in (pp, dp, tp)] == [2, 4, 7]
    assert diagonal([pp, dp, tp]) == 7


def test_a_dimension_that_no_groups_are_made_for_joins_the_ranks_at_the_same_places_of_the_others():
    groups = [Group("0", "", list(range(8)), 0), Group("1", "", [0, 1, 2, 3], 1), Group("2", "", [4, 5, 6, 7], 1)]
    context, replicas = mesh_dimensions(a_process(rank=0, world=8, groups=groups))
    assert ranks_of(context) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ranks_of(replicas) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    # The places of a ring differ, its replicas do not: one ring runs, and each of its ranks stands for that of the other.
    job = Job(lambda rank: f"place {rank % 4}")
    assert distinct_work(8, [context, replicas], job, True).copies == {0: [4], 5: [1], 6: [2], 7: [3]}
    # A group of some ranks alone leaves ranks that nothing joins with the rest.
    _, everyone = mesh_dimensions(a_process(rank=0, world=4, groups=[Group("0", "", [0, 1], 0)]))
    assert ranks_of(everyone) == [[0, 1, 2, 3]]


def test_without_groups_the_job_has_one_dimension_of_all_ranks():
    (everyone,) = mesh_dimensions(a_process(rank=0, world=4, groups=[Group("0", "default_pg", [0, 1, 2, 3], 0)]))
    assert ranks_of(everyone) == [[0, 1, 2, 3]]
    assert neighbour(everyone, 0) == 1
    assert neighbour(everyone, 3) == 1, "rank 0 is no neighbour to compare with"


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


class Job:
    """Eight ranks whose work is named by `work`; which of them were asked to run, in order."""

    def __init__(self, work):
        self.work, self.asked = work, []

    def __call__(self, ranks):
        self.asked += [rank for rank in ranks if rank not in self.asked]
        return [a_process(rank=rank, world=8, calls=[], exchanges=[], operators=[an_operator(self.work(rank))]) for rank in ranks]


def an_operator(name):
    return msgspec.structs.replace(a_process().operators[0], name=name)


@pytest.mark.parametrize(
    ("work", "last_ran", "asked", "of_each"),
    [
        (lambda rank: "alike", True, [0, 7], {0: [1, 2, 3, 4, 5, 6, 7]}),
        (lambda rank: "logs" if rank == 0 else "alike", True, [7, 3, 5, 6], {0: [], 7: [1, 2, 3, 4, 5, 6]}),
        (lambda rank: f"stage {rank // 4}", False, [7, 3, 5, 6], {0: [1, 2, 3], 7: [4, 5, 6]}),
        (lambda rank: "logs" if rank == 0 else f"stage {rank // 4}", False, [7, 3, 5, 6], {0: [], 3: [1, 2], 7: [4, 5, 6]}),
        (lambda rank: f"tensor {rank % 2}", True, [7, 3, 5, 6], {0: [2, 4, 6], 7: [1, 3, 5]}),
    ],
    ids=["all alike", "rank 0 logs", "stages differ", "stages differ and rank 0 logs", "tensor ranks differ"],
)
def test_few_ranks_run_to_find_what_work_there_is(work, last_ran, asked, of_each):
    job, along = Job(work), mesh_dimensions(a_process(rank=0, world=8, groups=groups()))
    found = distinct_work(8, along, job, last_ran)
    assert found.copies == of_each and found.run == sorted(of_each)
    assert [rank for rank in job.asked if rank] == [rank for rank in asked if rank]


def test_of_many_ranks_that_differ_in_sizes_a_few_run():
    """Rank 0 logs, and the last two have less, or nothing, of a dimension that 512 does not divide."""
    asked = set()

    def ran(ranks):
        asked.update(ranks)
        return [shard(rank) for rank in ranks]

    def shard(rank):
        shorter = msgspec.structs.replace(a_process().operators[0].inputs[0], shape=(246 if rank == 510 else 0 if rank == 511 else 251, 2))
        operators = [msgspec.structs.replace(a_process().operators[0], inputs=[shorter])]
        return a_process(rank=rank, world=512, groups=[], operators=operators, **({} if rank else {"calls": []}))

    found = distinct_work(512, mesh_dimensions(shard(0)), ran, True)
    assert (found.copies, asked) == ({0: [], 1: list(range(2, 511)), 511: []}, {0, 1, 2, 511})


def test_ranks_with_fewer_layers_are_of_another_kind():
    (operator,) = a_process().operators
    assert not same_but_sizes(a_process(), a_process(operators=[operator, operator]))


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


def test_the_last_rank_alone_is_of_another_kind_where_sizes_do_not_divide():
    shorter = msgspec.structs.replace(a_process().operators[0].inputs[0], shape=(2, 2))
    short = [msgspec.structs.replace(a_process().operators[0], inputs=[shorter])]
    ran = lambda ranks: [a_process(rank=rank, world=8, **({"operators": short} if rank == 7 else {})) for rank in ranks]  # noqa: E731
    found = distinct_work(8, mesh_dimensions(a_process(rank=0, world=8, groups=groups())), ran, True)
    assert (found.run, found.copies) == ([0, 7], {0: [1, 2, 3, 4, 5, 6], 7: []})
    assert not any(same_but_sizes(a_process(), a_process(**each)) for each in ({"calls": []}, {"operators": [an_operator("aten::bmm")]}))


def to(peer, kind=CollectiveKind.SEND):
    facts = {"name": "send", "group": "0", "dtype": "int8", "input_elements": 1, "output_elements": 1}
    return Exchange(kind=kind, sequence=0, thread=0, begin=0, end=1, peer=peer, **facts)


def test_a_message_in_the_group_of_all_ranks_goes_to_the_copys_own_next_stage():
    # Eight ranks of two stages, replicas and tensor-parallel ranks: rank 1 of the first stage sends to 5 of the second.
    process = a_process(rank=1, world=8, groups=groups(), copies=[0, 2, 3], exchanges=[to(5)])
    world, peers = process.groups[0], distinct.PeersOfCopies(process)
    assert [peers.of(rank, to(5), world, world) for rank in range(4)] == [4, 5, 6, 7]
    tensors = [group for group in process.groups if group.description == "tp"]
    assert peers.of(2, to(0), tensors[0], tensors[1]) == 3, "rank 2 has 3 where rank 1 has 0"


def test_a_ring_goes_round_within_its_group_and_the_root_of_a_collective_stays():
    rings = [Group("0", "", [0, 1, 2, 3], 0), Group("1", "", [4, 5, 6, 7], 0)]
    process = a_process(rank=0, world=8, groups=rings, copies=list(range(1, 8)), exchanges=[to(1)])
    peers = distinct.PeersOfCopies(process)
    assert [peers.of(rank, to(1), rings[0], rings[rank // 4]) for rank in range(8)] == [1, 2, 3, 0, 5, 6, 7, 4]
    assert [peers.of(rank, to(3), rings[0], rings[rank // 4]) for rank in range(8)] == [3, 0, 1, 2, 7, 4, 5, 6]
    root = to(0, CollectiveKind.BROADCAST)
    assert [peers.of(rank, root, rings[0], rings[rank // 4]) for rank in range(8)] == [0] * 4 + [4] * 4
    assert peers.of(5, to(6), rings[0], rings[1]) == -1, "6 is not in the group that rank 0 sends in"


def test_where_dimensions_tell_ranks_not_apart_places_in_the_group_count():
    # Two groups that share rank 1 are no dimensions of a mesh: ranks 0 and 2 are first in both.
    odd = [Group("0", "", [0, 1], 0), Group("1", "", [2, 1], 1), Group("2", "", [0, 1, 2], 2)]
    process = a_process(rank=0, world=3, groups=odd, copies=[1, 2], exchanges=[to(1)])
    peers = distinct.PeersOfCopies(process)
    assert [peers.of(rank, to(1), odd[2], odd[2]) for rank in range(3)] == [1, 2, 0]
