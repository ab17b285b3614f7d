"""The program: what runs for every recorded operator, in which order, with which memory."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lumos.proxy.benchmark.kernels import Kernels
from lumos.proxy.benchmark.memory import Memory, tensors
from lumos.proxy.benchmark.recording import Node, Ref, slots
from lumos.proxy.benchmark.schemas import NotRunnable, bind, is_composite
from lumos.proxy.benchmark.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What operators and process groups raise when a call fails.
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError)


class Item:
    """One thing to run: an operator, a transfer, a synchronisation, or a spin in place of any of them."""

    def __init__(self, node: Node, role: str) -> None:
        self.node, self.role = node, role  # role: "real", "transfer", "synchronize" or "stand-in"
        self.function: Callable[..., Any] | None = None
        self.positional: list[Any] = []
        self.named: dict[str, Any] = {}
        self.stream = node.stream
        self.gap = 0  # ns to spin before it
        self.waits: list[int] = []  # indices of transfers to wait for
        self.events: list[int] = []  # indices of items whose device work, on other streams, to wait for
        self.release: list[int] = []  # slots that are not needed after it
        self.drop: list[int] = []  # indices of items whose outputs are not held after it
        self.hold = False  # whether its outputs are held until its backward operator has run
        self.own = False  # whether it is only the device work of the node itself, not of the operators that it called
        self.zero = False  # whether it returns new memory, in which integers must be set to zero
        self.bytes = 0  # of a stand-in for an operator of unknown duration: bytes of its tensors, which it moves instead
        self.elapsed = 0  # CPU time over all measured repetitions, ns

    def refs(self) -> Iterator[int]:
        for value in (*self.positional, *self.named.values()):
            for item in value if isinstance(value, list) else (value,):
                if isinstance(item, Ref):
                    yield item.slot


class Program:
    """The chosen items of one rank, ready to run."""

    def __init__(self, trace: dict[str, Any], rank: dict[str, Any], device: torch.device, mode: str) -> None:
        self.rank, self.device, self.mode = rank, device, mode
        self.world_size: int = trace["world_size"]
        self.roots: list[Node] = []
        count = 0
        for raw in rank["operators"]:
            self.roots.append(Node(raw, count, rank["names"]))
            count = self.roots[-1].next
        self.memory = Memory(rank, device)
        self.transfers = Transfers(trace, device) if dist.is_initialized() else None
        self.kernels = Kernels(trace["kernels"], Path(trace["folder"]), device)
        self.items: list[Item] = []
        self.choose()

    # choosing

    def choose(self) -> None:
        chosen = [item for root in self.roots for item in self.select(root)]
        self.items = self.wanted(chosen)
        self.arrange()

    def wanted(self, items: list[Item]) -> list[Item]:
        """The items that the mode runs: all, only transfers, or all but transfers."""
        if self.mode == "full":
            return items
        return [item for item in items if (item.node.collective is not None) == (self.mode == "communication")]

    def select(self, node: Node) -> list[Item]:
        """The items that run for a node: itself, those for the operators that it called, or a stand-in."""
        if node.collective is not None:
            return [self.transfer(node)]
        if node.synchronize:
            return [Item(node, "synchronize")]
        whole = self.real(node)
        if node.children and (whole is None or is_composite(node)):
            parts = [item for child in node.children for item in self.select(child)]
            if whole is None or all(part.role != "stand-in" for part in parts):
                return self.with_own(node, parts) if parts or whole is None else [whole]
        if whole is not None:
            return [whole]
        return [self.in_place_of(node)] if node.is_operator or node.device_ns or node.kernel else []

    def in_place_of(self, node: Node) -> Item:
        """What runs for a node that cannot: a spin of its time or, where that is unknown, a copy of as many bytes as its tensors have."""
        item = Item(node, "stand-in")
        if node.start < 0 and not node.duration and not node.device_total:
            item.bytes = sum(self.memory.nbytes(slot) for slot in {*slots(node.inputs or []), *(node.outputs or ())})
            node.reason += "; a copy of as many bytes as its tensors have runs instead" if item.bytes else ""
        return item

    def with_own(self, node: Node, parts: list[Item]) -> list[Item]:
        """The items for what a node called, and a spin for device work that the node launched itself."""
        if not node.device_ns or node.is_operator:
            return parts
        own = Item(node, "stand-in")
        own.own = True
        return [*parts, own]

    def real(self, node: Node) -> Item | None:
        item = Item(node, "real")
        try:
            if node.compiled is not None:
                item.function, item.positional = self.kernels.bind(node, self.memory.scale)
            else:
                item.function, item.positional, item.named = bind(node, self.device, self.memory.working_on(node), self.memory.scale)
        except NotRunnable as problem:
            node.reason = str(problem)
            return None
        item.zero = node.name.startswith("aten::empty")
        return item

    def transfer(self, node: Node) -> Item:
        assert node.collective is not None
        if self.transfers is None:
            node.reason = "a transfer between ranks, run in one process"
            return Item(node, "stand-in")
        try:
            item = Item(node, "transfer")
            item.function = self.transfers.bind(node.collective)
            return item
        except NotRunnable as problem:
            node.reason = str(problem)
            return Item(node, "stand-in")

    # order, waits and lifetimes

    def arrange(self) -> None:
        """Set gaps, waits and lifetimes of tensors for all items."""
        place = {inner.number: at for at, item in enumerate(self.items) for inner in item.node.walk()}
        latest = None
        last_use: dict[int, int] = {}
        for at, item in enumerate(self.items):
            item.waits, item.events, item.release, item.drop, item.hold = [], [], [], [], False
            self.order_after(item, at, place)
            node = item.node
            awaited = [collective["end_ns"] for w in item.waits if (collective := self.items[w].node.collective)]
            since = max([end for end in (latest, *awaited) if end is not None], default=node.start)
            item.gap = max(0, node.start - since) if node.start >= 0 and not item.own else 0
            if not item.own:
                latest = node.end if latest is None else max(latest, node.end)
            for slot in (*item.refs(), *(node.outputs or ())):
                last_use[slot] = at
            until = place.get(node.backward, -1)
            if node.outputs is None and until > at and not self.memory.share:
                item.hold = True
                self.items[until].drop.append(at)
        produced = {slot for item in self.items if item.role == "real" for slot in item.node.outputs or ()}
        self.leaves = self.read_first()
        for slot, at in last_use.items():
            if slot in produced and slot not in self.leaves and not self.memory.share:
                self.items[at].release.append(slot)

    def order_after(self, item: Item, at: int, place: dict[int, int]) -> None:
        for inner in item.node.walk():
            for number in inner.after:
                source = place.get(number, -1)
                if 0 <= source < at:
                    (item.waits if self.items[source].node.collective else item.events).append(source)

    def read_first(self) -> set[int]:
        """Slots that the step reads before any of its operators has written them."""
        written: set[int] = set()
        leaves: set[int] = set()
        for item in self.items:
            leaves.update(slot for slot in item.refs() if slot not in written)
            if item.role == "real" and not self.memory.share:
                written.update(item.node.outputs or ())
        return leaves

    # memory

    def plan(self) -> dict[str, Any]:
        """Bytes that the step needs: for tensors of random values, and at most at any time for what operators return."""
        fixed = self.memory.planned(self.leaves)
        alive: dict[int, int] = {}  # bytes by slot or, for outputs of unknown size, by -1 - index of the item
        total = peak = 0
        for at, item in enumerate(self.items):
            if item.role == "real":
                for key, nbytes in self.returned(item, at).items():
                    total += nbytes - alive.get(key, 0)
                    alive[key] = nbytes
            peak = max(peak, total)
            gone = [*item.release, *(-1 - held for held in item.drop), *(() if item.hold else (-1 - at,))]
            total -= sum(alive.pop(key, 0) for key in gone)
        return {"tensors_bytes": fixed, "returned_bytes": peak, "total_bytes": fixed + peak}

    def returned(self, item: Item, at: int) -> dict[int, int]:
        """Bytes that an operator returns, by slot where the outputs are known; else those of its largest input or size argument."""
        if item.node.outputs is not None and not self.memory.share:
            return {slot: self.memory.nbytes(slot) for slot in item.node.outputs if slot not in self.leaves}
        sizes = [math.prod(value) for value in item.positional[:1] if isinstance(value, list) and all(type(n) is int for n in value)]
        largest = max((self.memory.nbytes(slot) for slot in item.refs()), default=0)
        return {-1 - at: max([largest, *(8 * n for n in sizes)])}

    def fit(self, limit: int) -> dict[str, Any]:
        """Plan within the limit: as recorded, else with shared memory, else with scaled sizes. Nothing is allocated yet."""
        scale = 1.0
        plan = recorded = self.plan()
        if plan["total_bytes"] > limit:
            self.memory.reset(True, scale)
            self.choose()
            plan = self.plan()
        while plan["total_bytes"] > limit:
            scale /= 2
            if scale < 1 / 1024:
                needed = recorded["total_bytes"]
                sys.exit(f"benchmark: the step needs {needed:,} bytes and cannot be scaled under {limit:,}: raise --max-memory")
            self.memory.reset(True, scale)
            self.choose()
            plan = self.plan()
        return {**plan, "limit_bytes": limit, "recorded_bytes": recorded["total_bytes"], "shared": self.memory.share, "scale": scale}

    # running

    def rehearse(self) -> None:
        """Run everything once. An operator that fails is replaced by those that it called, or else by a spin."""
        works = []
        at = 0
        while at < len(self.items):
            item = self.items[at]
            try:
                if item.role == "real":
                    out = self.call(item)
                    self.check(item, out)
                    self.keep(item, out)
                elif item.role == "transfer" and item.function is not None:
                    works.append(item.function())
            except FAILURES as error:
                self.items[at : at + 1] = self.instead(item, error)
                continue
            for slot in item.release:
                self.memory.slots[slot] = None
            at += 1
        for work in works:
            if work is not None:
                work.wait()
        self.memory.slots = [None] * len(self.memory.slots)
        self.arrange()

    def instead(self, item: Item, error: Exception) -> list[Item]:
        node = item.node
        parts = [part for child in node.children for part in self.select(child)] if node.collective is None else []
        if parts and any(part.role == "real" for part in parts):
            return parts
        text = str(error).strip().splitlines()
        node.reason = f"it failed here: {type(error).__name__}: {text[0][:120] if text else ''}"
        return [self.in_place_of(node)]

    def call(self, item: Item) -> Any:
        assert item.function is not None
        positional, named = self.passed(item)
        out = item.function(*positional, **named)
        if item.zero and isinstance(out, torch.Tensor) and not out.dtype.is_floating_point:
            out.zero_()  # new memory can contain any integer, and this one may be used as an index
        return out

    def passed(self, item: Item) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the named arguments of an operator, with its tensors."""
        get = self.memory.get

        def real(value: Any) -> Any:
            if isinstance(value, list):
                return [real(v) for v in value]
            return get(value.slot) if isinstance(value, Ref) else value

        return [real(v) for v in item.positional], {k: real(v) for k, v in item.named.items()}

    def check(self, item: Item, out: Any) -> None:
        """Ignore the recorded outputs where the result differs from them: its shape may depend on values, which are random here."""
        if item.node.outputs is None or self.memory.share:
            return
        flat = list(tensors(out))
        expected = [(self.memory.raw[slot][0], self.memory.raw[slot][1]) for slot in item.node.outputs]
        if [(str(t.dtype).removeprefix("torch."), list(t.shape)) for t in flat] != expected:
            item.node.outputs = []

    def keep(self, item: Item, out: Any) -> None:
        """Put what an operator returned into the slots from which later operators read it."""
        if item.node.outputs is None or self.memory.share:
            return
        flat = list(tensors(out))
        for slot, tensor in zip(item.node.outputs, flat, strict=False):
            if slot not in self.leaves:
                self.memory.slots[slot] = tensor
