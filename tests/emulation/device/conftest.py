"""Records that are drawn by hand, and host times that are easy to add."""

from dataclasses import dataclass, field

import pytest

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.host import HostClass
from lumos.emulation.device.issue import issued
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.record import Allocation, CallKind, DeviceCall, Exchange, Group, Mark, Operator, Process, Tensor
from lumos.vocabulary import CollectiveKind

#: ns of each class: sums of them say what they are made of.
HOST = {
    HostClass.LEAF: 10_000, HostClass.VIEW: 1_000, HostClass.OUTER: 4_000, HostClass.QUIET_OUTER: 400, HostClass.NODE: 5_000,
    HostClass.ENGINE: 6_000, HostClass.PYTHON: 12_000, HostClass.QUIET_PYTHON: 1_200, HostClass.LAUNCH: 3_000, HostClass.COPY: 2_000,
    HostClass.EVENT: 500,
}  # fmt: skip
VECTOR = Tensor((1000,), "float32", (1,), 1, "cuda")


@dataclass
class Drawn:
    """A record in the making: everything that is added happens after what was added before."""

    rank: int = 0
    world: int = 1
    threads: tuple[str, ...] = ("main", "backward")
    position: int = 0
    operators: list[Operator] = field(default_factory=list)
    calls: list[DeviceCall] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    def tick(self) -> int:
        self.position += 1
        return self.position

    def operator(self, name="aten::neg", thread=0, inside=(), stream=0, leaf=True, **more):
        """An operator on a vector, around what the functions `inside` add."""
        begin = self.tick()
        for add in inside:
            add()
        vector = {"inputs": [VECTOR], "outputs": [VECTOR]} if leaf else {}
        row = Operator(name=name, thread=thread, begin=begin, end=self.tick(), stream=stream, leaf=leaf, **{**vector, **more})
        self.operators.append(row)

    def call(self, kind: CallKind, thread=0, **more):
        self.calls.append(DeviceCall(kind=kind, thread=thread, position=self.tick(), **more))

    def exchange(self, kind=CollectiveKind.ALL_REDUCE, group="world", elements=1_000_000, thread=0, **more):
        begin = self.tick()
        sequence = sum(exchange.group == group for exchange in self.exchanges)
        values = {"name": "allreduce", "dtype": "bfloat16", "input_elements": elements, "output_elements": elements, **more}
        self.exchanges.append(Exchange(kind=kind, group=group, sequence=sequence, thread=thread, begin=begin, end=self.tick(), **values))

    def mark(self, name, *inside):
        begin = self.tick()
        for add in inside:
            add()
        self.marks.append(Mark(name, 0, begin, self.tick()))

    def allocate(self, size, storage):
        now = size + (self.allocations[-1].allocated if self.allocations else 0)
        self.allocations.append(Allocation(self.tick(), size, storage, now, now))

    def process(self) -> Process:
        return Process(
            rank=self.rank, world=self.world, accelerator="h100", torch="2.13.0", threads=list(self.threads), operators=self.operators,
            marks=self.marks, calls=self.calls, exchanges=self.exchanges, allocations=self.allocations, groups=self.groups,
            copies=self.copies,
        )  # fmt: skip

    def program(self):
        cluster = load_cluster("h100")
        return issued(self.process(), Kernels(cluster.accelerator), HOST, cluster)


@pytest.fixture
def drawn():
    return Drawn
