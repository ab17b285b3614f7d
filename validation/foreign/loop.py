"""A script's operators as a program for the machine of `validation.machine`: host times, launches, kernels, the autograd thread.

The machine knows flat operators with numbers for names. Rows that hold others are written as two, before and after what they hold;
`validation.foreign.kineto` gives all of them their names and nesting back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from validation.foreign.exchanges import KINDS, MESSAGE, WAIT, is_asynchronous, posted, transfer
from validation.foreign.kernels import SIZES, Launched, fill, launched
from validation.foreign.nodes import ALONE, AUTOGRAD, AWAIT, COMPUTE, MARK, MESSAGES, Node
from validation.foreign.prices import BY_LAUNCH, Priced, Work, factor, price
from validation.program import (
    Action,
    Collective,
    Give,
    Kernel,
    Message,
    Operator,
    Pause,
    Rank,
    Record,
    Synchronise,
    SynchroniseEvent,
    Take,
    Thread,
    Wait,
    WaitEvent,
)

#: What the CPU needs, µs: an operator that launches, a launch, an operator that does not, one that holds others before and after them, a
#: node of autograd, Python between two operators of the script, before an optimizer's step, at a step's end.
LAUNCHING, CALL, PLAIN, BEFORE, AFTER, BACKWARD, PYTHON, OPTIMIZER, END = 4.5, 3.8, 1.1, 0.9, 0.4, 2.6, 6.0, 70.0, 250.0
#: Spread of host times by the operator's name, and of each of its calls.
HOST_BY_NAME, HOST_BY_CALL = 0.15, 0.04
#: The number of the first stream of asynchronous collectives.
LINKS = 64
#: Bytes a second and µs of a copy from pinned memory.
PCIE, COPY = 22e9, 2.0


@dataclass(frozen=True)
class Launch:
    """A kernel and the row that launched it. work: what it does; None for a copy between host and device."""

    row: int
    operator: str
    priced: Priced
    facts: dict[str, Any]
    work: Work | None = None


@dataclass
class Recorded:
    """One rank's step: what its rows and its launches are, by the numbers that stand for them in the program."""

    rank: Rank
    rows: list[Node] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """A process group that a rank is in. name, description: as the profiler says them."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Ways:
    """How a job runs.

    tf32: multiplications of fp32 in tf32. reads_loss: whether it prints the loss of every step. host: slowness of the CPU.
    """

    tf32: bool = False
    reads_loss: bool = False
    host: float = 1.0


@dataclass(frozen=True)
class Place:
    """A rank and its groups, by what the script calls them."""

    number: int = 0
    groups: dict[str, Group] = field(default_factory=dict)


def rank_of(nodes: list[Node], ways: Ways, place: Place) -> Recorded:
    """The step of one rank, whose times vary a little from those of the others."""
    out = Recorded(Rank(()))
    writer = _Writer(out, ways, place)
    main: list[Action] = []
    for i, node in enumerate(nodes):
        main += writer.backward(node, str(i)) if node.name == "backward" else writer.actions([node], PYTHON)
    if ways.reads_loss:
        main += writer.loss()
    main.append(Pause(END * ways.host))
    threads: tuple[Thread, ...] = (tuple(main), tuple(writer.autograd)) if writer.autograd else (tuple(main),)
    out.rank = Rank(threads)
    return out


class _Writer:
    """Turns operators into actions, in order, and notes what their numbers stand for."""

    def __init__(self, out: Recorded, ways: Ways, place: Place) -> None:
        self.out, self.ways, self.place, self.number = out, ways, place, place.number
        self.slow = ways.host * factor(f"host of rank {place.number}", 0.02)
        self.stream = COMPUTE
        self.links: dict[str, int] = {}  # the stream of each group's asynchronous collectives
        self.pending: list[str] = []  # the events of collectives that nothing has waited for yet
        self.functional: list[str] = []  # of functional ones, which scripts wait for one by one, in order
        self.posted: set[str] = set()  # the events of messages
        self.autograd: list[Action] = []  # what the autograd thread does

    def actions(self, nodes: Iterable[Node], python_us: float) -> Iterator[Action]:
        for node in nodes:
            yield Pause(self.host("Python", python_us))
            yield from self.node(node)

    def host(self, name: str, us: float) -> float:
        """A time of the CPU, varied."""
        call = f"{self.number}:{len(self.out.rows)}:{name}"
        return us * self.slow * factor(f"host {name}", HOST_BY_NAME) * factor(call, HOST_BY_CALL)

    def node(self, node: Node) -> Iterator[Action]:
        if node.name == "to device":
            yield from self.copied(node)
            return
        if node.name.startswith(MARK):
            yield from self.marked(node.name.removeprefix(MARK).split())
            return
        if node.name in KINDS and node.group != ALONE:
            yield from self.exchanged(node)
            return
        if node.name == "backward":
            yield from self.backward(node, f"in {len(self.out.rows)}")
            return
        if node.name.startswith((MESSAGES, AWAIT)):
            yield from self.messages(node) if node.children else self.arrived(node.name.removeprefix(AWAIT).strip())
            return
        if node.name == WAIT:
            yield Operator(self.row(node), self.host(node.name, PLAIN))
            if self.functional:
                yield WaitEvent(self.stream, self.functional.pop(0))
            return
        found = launched(node, self.ways.tf32)
        if found is not None:
            yield from self.leaf(node, found)
        elif not node.children or node.reached:
            yield Operator(self.row(node), self.host(node.name, PLAIN))
        else:
            yield from self.holder(node)

    def holder(self, node: Node) -> Iterator[Action]:
        number = self.row(node)
        before = BACKWARD if node.name.startswith(AUTOGRAD) else OPTIMIZER if "Optimizer." in node.name else BEFORE
        yield Operator(number, self.host(node.name, before))
        for child in node.children:
            again = child.facts.get("Sequence number", -1) >= 0 and not child.facts.get("Fwd thread id", 0)
            if node.annotation or (again and "Backward" in node.name):  # a checkpoint runs Python again
                yield Pause(self.host("Python", PYTHON / 2))
            yield from self.node(child)
        yield Operator(number, self.host(node.name, AFTER))

    def leaf(self, node: Node, found: Launched) -> Iterator[Action]:
        """The operators of the device, one inside the other, the innermost of which launches."""
        names, works = found.names, found.works
        if names[0] != node.name and names[0].removesuffix("_backward") == node.name.split("_for_cpu")[0].removesuffix("_backward"):
            node = Node(names[0], node.facts, reached=True)
        wrappers = [self.row(_inside(name, node)) for name in (node.name, *(n for n in names if n != node.name))]
        for number in wrappers[:-1]:
            yield Operator(number, self.host(node.name, BEFORE))
        if found.zeros:
            yield Operator(wrappers[-1], self.host(node.name, BEFORE))
            yield from self.zeros(found.zeros, node.types[0])
        for i, work in enumerate(works):
            us = self.host(node.name, LAUNCHING if i == 0 else 0.6)
            yield Operator(wrappers[-1], us, self.kernel(wrappers[-1], work), self.host("launch", CALL))
        for number in reversed(wrappers):
            yield Operator(number, self.host(node.name, AFTER))

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Iterator[Action]:
        """A tensor of zeros, as PyTorch makes one on a device: one operator inside the other, of which the innermost launches."""
        clears = {"Input Dims": [list(shape)], "Input type": [dtype], "Concrete Inputs": [""]}
        makes = {"Input Dims": [[]], "Input type": ["ScalarList"], "Concrete Inputs": [str(list(shape))]}
        several = (("aten::zeros", makes), ("aten::zero_", clears), ("aten::fill_", clears))
        numbers = [self.row(Node(name, facts)) for name, facts in several]
        for number in numbers[:-1]:
            yield Operator(number, self.host("aten::zeros", BEFORE))
        kernel = self.kernel(numbers[-1], fill(prod(shape), SIZES[dtype]))
        yield Operator(numbers[-1], self.host("aten::fill_", LAUNCHING), kernel, self.host("launch", CALL))
        for number in reversed(numbers):
            yield Operator(number, self.host("aten::zeros", AFTER))

    def marked(self, words: list[str]) -> Iterator[Action]:
        """What the script does with streams and events."""
        match words:
            case ["use", stream]:
                self.stream = int(stream)
            case ["record", stream, event]:
                yield Record(event, int(stream))
            case ["wait", stream, event]:
                yield WaitEvent(int(stream), event)
            case ["arrived"]:
                yield from self.awaited()
            case ["synchronise", event]:
                yield SynchroniseEvent(event)

    def exchanged(self, node: Node) -> Iterator[Action]:
        """A collective: on the stream in use, or on one of its group's own beside it."""
        group = self.place.groups[node.group]
        what = transfer(node, len(group.ranks))
        ranks = {"Process Group Name": group.name, "Process Group Description": group.description}
        facts = {**what.facts, **ranks, "Process Group Ranks": str(list(group.ranks))}
        outer, stated = self.row(node), self.row(Node("record_param_comms", {**node.facts, **facts}))
        stream, alone = self.stream, is_asynchronous(node)
        yield Operator(outer, self.host(node.name, LAUNCHING))
        yield Operator(stated, self.host("record_param_comms", LAUNCHING))
        if alone:
            stream = self.links.setdefault(group.name, LINKS + 4 * len(self.links))
            yield Wait(stream, self.stream)
        kernel = self.launch(
            int(stated), Priced(what.kernel, what.us, 24), facts, stream=stream, meets=(Collective(what.kind.name, group.ranks),)
        )
        yield Operator(stated, self.host(node.name, 1.0), kernel, self.host("launch", CALL), "cudaLaunchKernelExC")
        if alone:
            event = f"{outer} is done"
            yield Record(event, stream)
            (self.functional if node.name.startswith("_c10d_functional::") else self.pending).append(event)
        for number in (stated, outer):
            yield Operator(number, self.host(node.name, AFTER))

    def backward(self, node: Node, name: str) -> list[Action]:
        """A backward pass, which the autograd thread runs, while the other waits."""
        done = [*self.actions(node.children, 0.4), *self.awaited()]
        self.autograd += [Take(f"backward {name}"), Pause(15), *done, Give(f"gradients {name}")]
        return [Pause(25), Give(f"backward {name}"), Take(f"gradients {name}")]

    def messages(self, node: Node) -> Iterator[Action]:
        """Messages: each by a kernel on the stream of its two ranks, or sends and receives together by one on the stream of the group."""
        number, sides = node.name.removeprefix(MESSAGES).strip(), {child.name for child in node.children}
        group = self.place.groups[node.children[0].group]
        ranks = {"Process Group Name": group.name, "Process Group Description": group.description}
        found: list[tuple[Message, float]] = []
        streams: list[int] = []
        for child in node.children:
            other = group.ranks[child.peer]
            what = posted(child, len(group.ranks), other)
            found.append((Message(what.sends, other), what.us))
            facts = {**what.facts, **ranks, "Process Group Ranks": str(list(group.ranks))}
            outer, stated = self.row(child), self.row(Node("record_param_comms", {**child.facts, **facts}))
            yield Operator(outer, self.host(child.name, LAUNCHING))
            yield Operator(stated, self.host("record_param_comms", PLAIN))
            if len(sides) == 1:
                streams.append(self.links.setdefault(f"{sorted((self.number, other))}", LINKS + 4 * len(self.links)))
                yield from self.sent(stated, facts, found[-1:], streams[-1])
            for row in (stated, outer):
                yield Operator(row, self.host(child.name, AFTER))
        if len(sides) > 1:
            streams.append(self.links.setdefault(group.name, LINKS + 4 * len(self.links)))
            together = self.row(Node("nccl:coalesced", {}, annotation=True))
            yield Operator(together, self.host("coalesced", PLAIN))
            yield from self.sent(together, {}, found, streams[-1])
            yield Operator(together, self.host("coalesced", AFTER))
        for i, stream in enumerate(streams):
            self.posted.add(f"messages {number} {i}")
            yield Record(f"messages {number} {i}", stream)

    def sent(self, row: str, facts: dict[str, Any], messages: list[tuple[Message, float]], stream: int) -> Iterator[Action]:
        """The kernel of messages, which follows what computes."""
        yield Wait(stream, self.stream)
        priced = Priced(MESSAGE, max(us for _, us in messages), 24)
        kernel = self.launch(int(row), priced, facts, stream=stream, meets=tuple(message for message, _ in messages))
        yield Operator(row, self.host("messages", 1.0), kernel, self.host("launch", CALL), "cudaLaunchKernelExC")

    def arrived(self, number: str) -> Iterator[Action]:
        """The stream in use waits for messages that were issued together."""
        i = 0
        while f"messages {number} {i}" in self.posted:
            yield WaitEvent(self.stream, f"messages {number} {i}")
            i += 1

    def awaited(self) -> Iterator[Action]:
        """The stream in use waits for the collectives that are under way."""
        for event in (*self.pending, *self.functional):
            yield WaitEvent(self.stream, event)
        self.pending, self.functional = [], []

    def copied(self, node: Node) -> Iterator[Action]:
        """The batch on its way to the device, from pinned memory: the script's copies, which fake tensors make as clones."""
        for clone in node.children:
            outer = [self.row(Node(name, clone.facts)) for name in ("aten::to", "aten::_to_copy", "aten::copy_")]
            for number in outer[:-1]:
                yield Operator(number, self.host("aten::to", BEFORE))
            size = {"long int": 8, "bool": 1}.get(clone.types[0], 4)
            amount = float(size)
            for each in clone.dims[0]:
                amount *= each
            priced = Priced("Memcpy HtoD (Pinned -> Device)", COPY + amount / PCIE * 1e6, 0)
            kernel = self.launch(int(outer[-1]), priced, {"bytes": int(amount)})
            yield Operator(outer[-1], self.host("aten::copy_", LAUNCHING), kernel, self.host("copy", CALL), "cudaMemcpyAsync")
            for number in reversed(outer):
                yield Operator(number, self.host("aten::to", AFTER))

    def loss(self) -> Iterator[Action]:
        """The loss is read: a copy of one number, and a wait for it."""
        facts = {"Input Dims": [[]], "Input type": ["float"], "Input Strides": [[]], "Concrete Inputs": [""]}
        outer = [self.row(Node(name, facts)) for name in ("aten::item", "aten::_local_scalar_dense")]
        yield Operator(outer[0], self.host("aten::item", BEFORE))
        kernel = self.launch(int(outer[1]), Priced("Memcpy DtoH (Device -> Pageable)", 1.6, 0), {"bytes": 4})
        yield Operator(outer[1], self.host("aten::item", LAUNCHING), kernel, self.host("copy", CALL), "cudaMemcpyAsync")
        yield Synchronise(COMPUTE)
        for number in reversed(outer):
            yield Operator(number, self.host("aten::item", AFTER))

    def row(self, node: Node) -> str:
        self.out.rows.append(node)
        return str(len(self.out.rows) - 1)

    def kernel(self, row: str, work: Work) -> Kernel:
        return self.launch(int(row), price(work), {}, work)

    def launch(
        self,
        row: int,
        priced: Priced,
        facts: dict[str, Any],
        work: Work | None = None,
        stream: int | None = None,
        meets: tuple[Collective | Message, ...] = (),
    ) -> Kernel:
        number = len(self.out.launches)
        self.out.launches.append(Launch(row, self.out.rows[row].name, priced, facts, work))
        us = priced.us * (1.0 if meets else factor(f"{self.number}:{number}", BY_LAUNCH))
        return Kernel(str(number), us, self.stream if stream is None else stream, meets)


def _inside(name: str, node: Node) -> Node:
    """The operator of that name that a node calls. The innermost ones of attention take heads after positions, where their callers have
    them before."""
    swaps = name.startswith(("aten::_flash_attention_", "aten::_efficient_attention_"))
    if not swaps:
        return Node(name, node.facts)
    dims = [[d[0], d[2], d[1], d[3]] if isinstance(d, list) and len(d) == 4 else d for d in node.dims]
    return Node(name, {**node.facts, "Input Dims": dims})
