"""Which ranks of a job are run, which are copies of those, and whom the copies talk to."""

import msgspec
import pytest

from lumos.emulation.distinct import distinct_work, mesh_dimensions, peer_of_copy, same_but_sizes, same_work
from lumos.emulation.record import CallKind, DeviceCall, Exchange, Group, Operator, Process, Tensor
from lumos.vocabulary import CollectiveKind

#: Eight ranks as two pipeline stages of two replicas of two tensor-parallel ranks: rank = 4 x stage + 2 x replica + tensor.
STAGES = [[0, 4], [1, 5], [2, 6], [3, 7]]
REPLICAS = [[0, 2], [1, 3], [4, 6], [5, 7]]
TENSORS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def a_process(**changes):
    mm = Operator(name="aten::mm", thread=0, begin=1, end=2, inputs=[Tensor((2, 3), "bfloat16", (3, 1), 7, "cuda")], leaf=True)
    calls = [DeviceCall(kind=CallKind.STREAM_WAITS_EXCHANGE, thread=0, position=5, exchange=0)]
    fields = {"rank": 1, "world": 2, "accelerator": "h100", "torch": "2.13", "threads": ["main"], "operators": [mm], "calls": calls}
    return Process(**(fields | {"exchanges": [to(1)]} | changes))


def groups():
    found = [Group("0", "default_pg", list(range(8)), 0)]
    for made, (description, several) in enumerate((("pp", STAGES), ("dp", REPLICAS), ("tp", TENSORS)), 1):
        found += [Group(str(len(found) + place), description, ranks, made) for place, ranks in enumerate(several)]
    return found


def ranks_of(dimension):
    """The groups along a dimension."""
    return [list(each) for each in dict.fromkeys(map(tuple, dimension.values()))]


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
    work = [an_operator("aten::sort")], [an_operator("aten::mm")], short, short  # of ranks with six tables, of which the first logs
    ran = lambda ranks: [a_process(rank=rank, world=4, operators=work[rank]) for rank in ranks]  # noqa: E731
    assert distinct_work(4, [{rank: list(range(4)) for rank in range(4)}], ran, True).copies == {0: [], 1: [], 2: [], 3: []}
    assert not any(same_but_sizes(a_process(), a_process(**each)) for each in ({"calls": []}, {"operators": [an_operator("aten::bmm")]}))


def to(peer, kind=CollectiveKind.SEND):
    facts = {"name": "send", "group": "0", "dtype": "int8", "input_elements": 1, "output_elements": 1}
    return Exchange(kind=kind, sequence=0, thread=0, begin=0, end=1, peer=peer, **facts)


def test_a_message_goes_to_the_copys_own_next_stage_and_a_ring_round_within_its_group():
    # Eight ranks of two stages, replicas and tensor-parallel ranks: rank 1 of the first stage sends to 5 of the second.
    world = Group("0", "", list(range(8)), 0)
    assert [peer_of_copy(rank, 1, to(5), world, world) for rank in range(4)] == [4, 5, 6, 7]
    rings = [Group("0", "", [0, 1, 2, 3], 0), Group("1", "", [4, 5, 6, 7], 0)]
    assert [peer_of_copy(rank, 0, to(3), rings[0], rings[rank // 4]) for rank in range(8)] == [3, 0, 1, 2, 7, 4, 5, 6]
    root = to(0, CollectiveKind.BROADCAST)
    assert [peer_of_copy(rank, 0, root, rings[0], rings[rank // 4]) for rank in range(8)] == [0] * 4 + [4] * 4
    assert peer_of_copy(5, 0, to(6), rings[0], rings[1]) == -1, "6 is not in the group that rank 0 sends in"
