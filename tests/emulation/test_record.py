"""The peak of an emulated process's memory: when it is, and whose."""

from lumos.emulation.peak import Held, peak
from lumos.emulation.record import Allocation, Mark, MemoryKind, Operator, Owner, Process

PARAMETER, ACTIVATION, TEMPORARY = MemoryKind.PARAMETER, MemoryKind.ACTIVATION, MemoryKind.TEMPORARY


def process(*changes, owners=(), room=0):
    """Changes: position, bytes, storage; reserved are 1,000 more than allocated."""
    now, taken = 0, []
    for position, size, storage in changes:
        now += size
        taken.append(Allocation(position, size, storage, now, now + 1000))
    operators = [Operator(name="aten::mm", thread=0, begin=11, end=14), Operator(name="aten::add", thread=0, begin=20, end=25)]
    marks = [Mark("nn.Module: Linear_0", 0, 10, 15), Mark("forward", 0, 1, 30)]
    more = {"operators": operators, "marks": marks, "allocations": taken, "owners": list(owners), "room": room}
    return Process(rank=3, world=4, accelerator="h100", torch="", threads=["main"], **more)


def test_the_peak_has_its_moment_its_owners_and_the_room_that_is_left():
    owners = [Owner(1, PARAMETER, "layers.0.mlp"), Owner(2, PARAMETER, "layers.1.mlp"), Owner(3, ACTIVATION, "layers.1.mlp.0")]
    found = peak(process((0, 500, 1), (0, 600, 2), (12, 400, 3), (13, 50, 4), (21, -400, 3), (22, 300, 5), owners=owners, room=5000))
    assert (found.rank, found.allocated_bytes, found.reserved_bytes, found.room_bytes) == (3, 1550, 2550, 5000)
    assert (found.operator, found.module) == ("aten::mm", "Linear_0")
    assert found.held == [Held(PARAMETER, "layers.*.mlp", 1100), Held(ACTIVATION, "layers.*.mlp.*", 400), Held(TEMPORARY, "", 50)]
