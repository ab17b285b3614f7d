"""Whom the copies of a rank talk to: the peers that these ranks would have had themselves."""

from __future__ import annotations

from tests.emulation.test_distinct import groups
from tests.emulation.test_record import a_process

from lumos.emulation.distinct import PeersOfCopies
from lumos.emulation.record import Exchange, Group
from lumos.vocabulary import CollectiveKind


def to(peer, kind=CollectiveKind.SEND):
    facts = {"name": "send", "group": "0", "dtype": "int8", "input_elements": 1, "output_elements": 1}
    return Exchange(kind=kind, sequence=0, thread=0, begin=0, end=1, peer=peer, **facts)


def test_a_message_in_the_group_of_all_ranks_goes_to_the_copys_own_next_stage():
    # Eight ranks of two stages, replicas and tensor-parallel ranks: rank 1 of the first stage sends to 5 of the second.
    process = a_process(rank=1, world=8, groups=groups(), copies=[0, 2, 3], exchanges=[to(5)])
    world, peers = process.groups[0], PeersOfCopies(process)
    assert [peers.of(rank, to(5), world, world) for rank in range(4)] == [4, 5, 6, 7]
    tensors = [group for group in process.groups if group.description == "tp"]
    assert peers.of(2, to(0), tensors[0], tensors[1]) == 3, "rank 2 has 3 where rank 1 has 0"


def test_a_ring_goes_round_within_its_group_and_the_root_of_a_collective_stays():
    rings = [Group("0", "", [0, 1, 2, 3], 0), Group("1", "", [4, 5, 6, 7], 0)]
    process = a_process(rank=0, world=8, groups=rings, copies=list(range(1, 8)), exchanges=[to(1)])
    peers = PeersOfCopies(process)
    assert [peers.of(rank, to(1), rings[0], rings[rank // 4]) for rank in range(8)] == [1, 2, 3, 0, 5, 6, 7, 4]
    assert [peers.of(rank, to(3), rings[0], rings[rank // 4]) for rank in range(8)] == [3, 0, 1, 2, 7, 4, 5, 6]
    root = to(0, CollectiveKind.BROADCAST)
    assert [peers.of(rank, root, rings[0], rings[rank // 4]) for rank in range(8)] == [0] * 4 + [4] * 4
    assert peers.of(5, to(6), rings[0], rings[1]) == -1, "6 is not in the group that rank 0 sends in"


def test_where_dimensions_tell_ranks_not_apart_places_in_the_group_count():
    # Two groups that share rank 1 are no dimensions of a mesh: ranks 0 and 2 are first in both.
    odd = [Group("0", "", [0, 1], 0), Group("1", "", [2, 1], 1), Group("2", "", [0, 1, 2], 2)]
    process = a_process(rank=0, world=3, groups=odd, copies=[1, 2], exchanges=[to(1)])
    peers = PeersOfCopies(process)
    assert [peers.of(rank, to(1), odd[2], odd[2]) for rank in range(3)] == [1, 2, 0]
