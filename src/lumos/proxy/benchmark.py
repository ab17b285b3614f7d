"""Run the operators of a recorded training step: same operators, same shapes, same order and overlap.

    python benchmark.py                          one process, the first rank of trace.json
    torchrun --nproc-per-node 2 benchmark.py     one process per rank, with their collectives

This file is the same in every benchmark; everything that was recorded is in trace.json in the same folder. It needs torch and
nothing else. It works in three stages:

1. Choose operators. Recorded operators are nested as they called each other. The outermost that this torch can run on this device
   is called. One that only calls others (CompositeImplicit) is replaced by these, because without autograd it might call
   different ones. What cannot run is replaced by a stand-in, a busy loop (spin) of its measured duration, and is listed.
2. Plan memory. Tensors that the step reads before it writes them are filled with random values beforehand. All others are what
   operators return, and are held until their last use. Where this exceeds the limit, tensors share memory; where it still does,
   sizes are scaled down.
3. Run. Time between operators in the recording (Python, the autograd engine) is replaced by spins; waits are real waits.

Values are random: normally distributed floats, and indices within range.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

cuda: Any = torch.cuda

#: Sizes up to this are never scaled, because they are sizes of filters, numbers of heads or coordinates.
SMALL_SIZE = 16

#: The bound in trace.json of floating point values that must not be negative.
NON_NEGATIVE = 2

#: Prefixes of names that look like those of operators, but are ranges around operators.
RANGES = ("torch::autograd", "torch::distributed", "torch.distributed", "autograd::engine")

#: What operators and process groups raise when a call fails.
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError)

#: Operators that use files or stop the process: they never run, whatever a trace contains.
REFUSED = ("from_file", "save", "load", "_assert", "_debug", "raise", "warn", "print")


class Transfer(NamedTuple):
    """The arguments of a transfer. peer: rank within the group. splits_in, splits_out: elements to and from each rank; empty for
    equal parts."""

    source: torch.Tensor
    target: torch.Tensor
    group: Any
    peer: int
    splits_in: list[int] | None
    splits_out: list[int] | None

    @property
    def parts(self) -> list[torch.Tensor]:
        """The target, one part for each rank."""
        return list(self.target.chunk(dist.get_world_size(self.group)))

    @property
    def global_peer(self) -> int:
        rank: int = dist.get_global_rank(self.group, self.peer)
        return rank


#: torch's function for each kind of transfer.
CALLS: dict[str, Callable[[Transfer], Any]] = {
    "all-reduce": lambda t: dist.all_reduce(t.source, group=t.group, async_op=True),
    "all-gather": lambda t: dist.all_gather(t.parts, t.source, group=t.group, async_op=True),
    "reduce-scatter": lambda t: dist.reduce_scatter_tensor(t.target, t.source, group=t.group, async_op=True),
    "all-to-all": lambda t: dist.all_to_all_single(
        t.target, t.source, t.splits_out or None, t.splits_in or None, group=t.group, async_op=True
    ),
    "broadcast": lambda t: dist.broadcast(t.source, src=t.global_peer, group=t.group, async_op=True),
    "reduce": lambda t: dist.reduce(t.source, dst=t.global_peer, group=t.group, async_op=True),
    "send": lambda t: dist.isend(t.source, dst=t.global_peer, group=t.group),
    "receive": lambda t: dist.irecv(t.target, src=t.global_peer, group=t.group),
    "barrier": lambda t: dist.barrier(group=t.group, async_op=True),
}


# ---------------------------------------------------------------------------------------------------------- the recording


class Node:
    """One recorded operator, and the operators that it called. number: its position in pre-order."""

    def __init__(self, raw: dict[str, Any], number: int, names: list[str]) -> None:
        self.number = number
        self.name = names[raw["name"]]
        self.schema: str = raw.get("schema", "")
        self.inputs: list[Any] | None = raw.get("inputs")
        self.outputs: list[int] | None = raw.get("outputs")
        self.start: int = raw["start_ns"]
        self.duration: int = raw["duration_ns"]
        self.device_ns: int = raw.get("device_ns", 0)
        self.own_stream: int = raw.get("stream", -1)
        self.kernel: bool = raw.get("kernel", False)
        self.after: list[int] = raw.get("after", [])
        self.backward: int = raw.get("backward", -1)
        self.collective: dict[str, Any] | None = raw.get("collective")
        self.synchronize: bool = raw.get("synchronize", False)
        self.children: list[Node] = []
        self.next: int = number + 1  # the number of the operator after this one and those that it called
        for child in raw.get("children", ()):
            self.children.append(Node(child, self.next, names))
            self.next = self.children[-1].next
        self.reason = ""  # why it does not run, if it does not

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator of the dispatcher, and not a range that Python, autograd or DDP put around operators."""
        return "::" in self.name and " " not in self.name and not self.name.startswith(RANGES)

    @property
    def device_total(self) -> int:
        return self.device_ns + sum(child.device_total for child in self.children)

    @property
    def stream(self) -> int:
        """The stream of the first device work under this operator; -1 without any."""
        return next((node.own_stream for node in self.walk() if node.own_stream >= 0), -1)

    @property
    def end(self) -> int:
        return self.start + self.duration


class Ref:
    """A tensor among an operator's arguments. slot: its index in `Memory.slots`."""

    def __init__(self, slot: int) -> None:
        self.slot = slot


# --------------------------------------------------------------------------------------------------- operators from schemas


class NotRunnable(Exception):  # noqa: N818 - it is an expected result, not an error
    """An operator cannot run here; the message says why."""


def bind(node: Node, device: torch.device, kernel: torch.device, scale: float) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """The overload that fits a recorded operator, its positional and its named arguments, with `Ref` for tensors.

    device: of new tensors. kernel: the device of the tensors that it works on. Raises NotRunnable.
    """
    namespace, _, base = node.name.partition("::")
    if not node.is_operator or namespace in ("c10d", "_c10d_functional", "prim", "profiler"):
        raise NotRunnable("a kernel that no operator of the dispatcher launched" if node.kernel else "no operator of the dispatcher")
    if base in REFUSED:
        raise NotRunnable("refused: it could touch files or stop the benchmark")
    if node.inputs is None:
        raise NotRunnable("its arguments were not recorded")
    schemas = torch._C._jit_get_schemas_for_operator(node.name)
    if not schemas:
        raise NotRunnable("this torch has no such operator")
    wanted = node.schema.partition("(")[0].partition(".")[2]
    problems = []
    for schema in sorted(schemas, key=lambda s: s.overload_name != wanted if node.schema else 0):
        qualified = f"{node.name}.{schema.overload_name}" if schema.overload_name else node.name
        try:
            positional, named = match(schema, node.inputs, device, scale)
            if not has_kernel(qualified, kernel):
                raise NotRunnable(f"no {kernel.type} kernel")
        except NotRunnable as problem:
            problems.append(str(problem))
            continue
        return torch._C._get_operation_overload(node.name, schema.overload_name)[0], positional, named
    raise NotRunnable(problems[0] if len(set(problems)) == 1 or node.schema else "no overload takes the recorded arguments")


def has_kernel(qualified: str, device: torch.device) -> bool:
    try:
        return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(qualified, device.type.upper()))
    except RuntimeError:  # known to TorchScript only
        return False


def is_composite(node: Node) -> bool:
    """Whether any overload of the operator only calls other operators."""
    try:
        schemas = torch._C._jit_get_schemas_for_operator(node.name)
        names = [f"{node.name}.{s.overload_name}" if s.overload_name else node.name for s in schemas]
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") for name in names)
    except RuntimeError:
        return False


def match(schema: Any, inputs: list[Any], device: torch.device, scale: float) -> tuple[list[Any], dict[str, Any]]:
    """The recorded arguments in the form that a schema needs. Raises NotRunnable where they do not fit."""
    arguments = schema.arguments
    if len(inputs) > len(arguments):
        raise NotRunnable("no overload takes so many arguments")
    has_tensor = any("Tensor" in str(a.type) for a in arguments)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for index, argument in enumerate(arguments):
        kind = str(argument.type)
        recorded = inputs[index] if index < len(inputs) else None
        if kind in ("Device", "Optional[Device]"):
            needed = kind == "Device" or not has_tensor
            value = device if isinstance(recorded, str) or (recorded is None and needed) else None
            value = torch.device("cpu") if recorded == "cpu" else value
        elif argument.name == "pin_memory":
            value = None if device.type == "cpu" else recorded
        elif recorded is None and argument.has_default_value():
            value = argument.default_value
        else:
            value = convert(kind, recorded, argument.name, scale)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def convert(kind: str, value: Any, name: str, scale: float) -> Any:
    """A recorded argument converted to the type `kind` of a schema. Raises NotRunnable where that is not possible."""
    if kind.startswith("Optional["):
        return None if value is None else convert(kind[9:-1], value, name, scale)
    if kind.startswith("List["):
        inner = kind[5:-1]
        if value is None and inner == "bool":
            return [True] * 3  # output_mask: which gradients are wanted
        if value is None:
            raise NotRunnable(f"its argument {name} was not recorded")
        values = value if isinstance(value, list) else [value]
        return [convert(inner, item, name, scale) for item in values]
    number = float(value["float"]) if isinstance(value, dict) and "float" in value else value
    if kind == "Tensor" and isinstance(value, dict) and "tensor" in value:
        return Ref(value["tensor"])
    if kind == "bool" and isinstance(value, (bool, int)):
        return bool(value)
    if kind in ("int", "SymInt") and isinstance(value, int):
        return scaled(value, scale) if name in ("size", "shape", "normalized_shape", "new_shape") else int(value)
    if (kind == "float" and isinstance(number, (int, float))) or (kind in ("number", "Scalar") and isinstance(number, (int, float))):
        return number
    if kind == "str" and isinstance(value, str):
        return value
    if value is None:
        raise NotRunnable(f"its argument {name} was not recorded")
    raise NotRunnable("no overload takes the recorded arguments")


def scaled(size: int, scale: float) -> int:
    return size if size <= SMALL_SIZE or scale == 1 else max(SMALL_SIZE, round(size * scale))


# ------------------------------------------------------------------------------------------------------------------ memory


class Memory:
    """The tensors of one rank: filled with random values where the step reads them first, otherwise what operators return.

    share: whether tensors of one type share memory and what operators return is discarded. This needs less memory, and caches
    then hold more of the step than in the recording. scale: factor on every size above SMALL_SIZE.
    """

    def __init__(self, rank: dict[str, Any], device: torch.device) -> None:
        self.raw, self.storages = rank["tensors"], rank["storages"]
        self.on_accelerator = rank["on_accelerator"]
        self.device = device
        self.share, self.scale = False, 1.0
        self.slots: list[torch.Tensor | None] = [None] * len(self.raw)
        self._buffers: dict[Any, torch.Tensor] = {}
        self._needed: dict[Any, int] = {}
        self.reset(False, 1.0)

    def reset(self, share: bool, scale: float) -> None:
        self.share, self.scale = share, scale
        self._buffers, self._needed = {}, {}
        for slot in range(len(self.raw)):
            key = self._key(slot)
            self._needed[key] = max(self._needed.get(key, 1), self._extent(slot))

    def _layout(self, slot: int) -> tuple[list[int], list[int], int]:
        _, shape, strides, offset, _ = self.raw[slot]
        if self.scale == 1 and not self.share:
            return shape, strides, offset
        if self.scale == 1:
            return shape, strides, 0
        sizes = [scaled(size, self.scale) for size in shape]
        steps, step = [0] * len(sizes), 1
        for axis in sorted(range(len(sizes)), key=lambda a: (strides[a], -a)):  # the recorded order of the axes, packed
            if strides[axis]:
                steps[axis], step = step, step * sizes[axis]
        return sizes, steps, 0

    def _extent(self, slot: int) -> int:
        shape, strides, offset = self._layout(slot)
        return 0 if 0 in shape else offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))

    def _key(self, slot: int) -> Any:
        dtype, *_, storage = self.raw[slot]
        _, device, bound = self.storages[storage]
        return (dtype, device, bound) if self.share else (dtype, storage)

    def device_of(self, slot: int) -> torch.device:
        recorded = self.storages[self.raw[slot][-1]][1]
        return torch.device("cpu") if recorded == "cpu" and self.on_accelerator else self.device

    def working_on(self, node: Node) -> torch.device:
        """The device of an operator's tensors: the host only if all of them are in host memory."""
        devices = {self.device_of(slot) for slot in slots(node.inputs)}
        return devices.pop() if len(devices) == 1 else self.device

    def nbytes(self, slot: int) -> int:
        return int(self._extent(slot) * getattr(torch, self.raw[slot][0]).itemsize)

    def planned(self, slots: set[int]) -> int:
        """Bytes on the device of tensors with random values for these slots."""
        keys = {self._key(slot): slot for slot in slots if self.device_of(slot) == self.device}
        return sum(self._needed[key] * getattr(torch, self.raw[slot][0]).itemsize for key, slot in keys.items())

    def leaf(self, slot: int) -> torch.Tensor:
        """A tensor of random values for a slot."""
        key = self._key(slot)
        shape, strides, offset = self._layout(slot)
        if key not in self._buffers:
            bound = self.storages[self.raw[slot][-1]][2]
            if self.scale != 1 and bound > SMALL_SIZE:
                bound = scaled(bound, self.scale)
            last = shape[-1] if shape else 1
            self._buffers[key] = values(self._needed[key], getattr(torch, self.raw[slot][0]), bound, last, self.device_of(slot))
        buffer = self._buffers[key]
        tensor = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
        tensor.set_(buffer.untyped_storage(), offset, shape, strides)  # not a view, because some operators refuse views
        self.slots[slot] = tensor
        return tensor

    def get(self, slot: int) -> torch.Tensor:
        tensor = self.slots[slot]
        return self.leaf(slot) if tensor is None else tensor


def slots(recorded: Any) -> Iterator[int]:
    """The slots of all tensors among recorded arguments."""
    if isinstance(recorded, list):
        for item in recorded:
            yield from slots(item)
    elif isinstance(recorded, dict) and "tensor" in recorded:
        yield recorded["tensor"]


def values(count: int, dtype: torch.dtype, bound: int, last: int, device: torch.device) -> torch.Tensor:
    """Random values. Floats are small enough for matrix products to keep their magnitude; integers are in [0, bound), or ascend
    from 0 to -bound where the bound is negative."""
    if dtype == torch.bool:
        return torch.ones(count, dtype=dtype, device=device)
    if not dtype.is_floating_point and not dtype.is_complex:
        if bound < 0:
            return torch.linspace(0, -bound, count + 1, device=device)[:-1].to(dtype)
        zeros = torch.zeros(count, dtype=dtype, device=device)
        return zeros.random_(0, bound) if bound > 1 else zeros
    out = torch.empty(count, dtype=dtype, device=device)
    drawn = min(count, 1 << 20)  # large tensors repeat these values, because drawing all of them would take minutes
    sample = torch.randn(drawn, device=device) / math.sqrt(max(last, 1))
    sample = (sample.abs() if bound == NON_NEGATIVE else sample).to(dtype)
    for begin in range(0, count, drawn):
        out[begin : begin + drawn] = sample[: count - begin]
    return out


# ------------------------------------------------------------------------------------------------------------- the program


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
        self.roots: list[Node] = []
        count = 0
        for raw in rank["operators"]:
            self.roots.append(Node(raw, count, rank["names"]))
            count = self.roots[-1].next
        self.memory = Memory(rank, device)
        self.transfers = Transfers(trace, device) if dist.is_initialized() else None
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
        return [Item(node, "stand-in")] if node.is_operator or node.device_ns or node.kernel else []

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
        return [Item(node, "stand-in")]

    def call(self, item: Item) -> Any:
        assert item.function is not None
        get = self.memory.get

        def real(value: Any) -> Any:
            if isinstance(value, Ref):
                return get(value.slot)
            if isinstance(value, list):
                return [get(v.slot) if isinstance(v, Ref) else v for v in value]
            return value

        out = item.function(*[real(v) for v in item.positional], **{k: real(v) for k, v in item.named.items()})
        if item.zero and isinstance(out, torch.Tensor) and not out.dtype.is_floating_point:
            out.zero_()  # new memory can contain any integer, and this one may be used as an index
        return out

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


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


class Transfers:
    """The process groups of the recording, created again, and the calls of their transfers."""

    def __init__(self, trace: dict[str, Any], device: torch.device) -> None:
        self.device = device
        self.recorded_world = trace["world_size"]
        world = dist.get_world_size()
        self.own_ranks = trace["own_ranks"] and [rank["rank"] for rank in trace["ranks"][:world]] == list(range(world))
        self.groups = [self.group(ranks, world) for ranks in trace["groups"]]
        self.sizes = [len(ranks) or trace["world_size"] for ranks in trace["groups"]]
        self.buffers: dict[Any, torch.Tensor] = {}

    def group(self, ranks: list[int], world: int) -> Any:
        """A group's ranks that have a process (process p runs rank p); None where these are fewer than two."""
        if len(ranks) in (0, self.recorded_world):
            return dist.group.WORLD
        present = [rank for rank in ranks if rank < world]
        return dist.new_group(present) if len(present) > 1 else None

    def bind(self, c: dict[str, Any]) -> Callable[[], Any]:
        if c["kind"] not in CALLS:
            raise NotRunnable(f"a transfer of kind {c['kind']}")
        group = self.groups[c["group"]] if c["group"] >= 0 else dist.group.WORLD
        if group is None:
            raise NotRunnable("fewer than two ranks of its group have a process")
        size, peer = dist.get_world_size(group), max(c["peer"], 0)
        if size < 0:
            raise NotRunnable("its group does not hold this process's rank")
        if peer >= size:
            raise NotRunnable("its peer has no process")
        recorded = self.sizes[c["group"]] if c["group"] >= 0 else self.recorded_world
        if c["splits_in"] and (size > recorded or not self.own_ranks):
            raise NotRunnable("its parts are of unequal size, and the ranks that they are for do not run")
        dtype = getattr(torch, c["dtype"])
        ins, outs = c["elements_in"], c["elements_out"]
        if c["kind"] == "all-gather":
            outs = max(ins, 1) * size
        if c["kind"] == "reduce-scatter":
            ins = max(outs, 1) * size
        splits_in, splits_out = c["splits_in"][:size], c["splits_out"][:size]
        if c["kind"] == "all-to-all":  # the parts for and from ranks that have a process
            ins = sum(splits_in) if splits_in else max(ins // recorded, 1) * size
            outs = sum(splits_out) if splits_in else max(outs // recorded, 1) * size
        else:
            ins, outs = max(ins, 1), max(outs, 1)
        source, target = self.buffer("in", ins, dtype), self.buffer("out", outs, dtype)
        call = CALLS[c["kind"]]
        transfer = Transfer(source, target, group, peer, splits_in, splits_out)
        return lambda: call(transfer)

    def buffer(self, side: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        key = (side, count, dtype)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros(count, dtype=dtype, device=self.device)
        return self.buffers[key]


# ----------------------------------------------------------------------------------------------------------------- the run


def spin_until(deadline: int) -> None:
    while time.perf_counter_ns() < deadline:
        pass


class Runner:
    """Runs the step of a program repeatedly."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.on_gpu = program.device.type == "cuda"
        self.streams: dict[int, Any] = {}
        self.cycles_per_ns = calibrate() if self.on_gpu else 0.0
        self.steps = [self.compile(item) for item in program.items]
        if self.on_gpu:
            cuda.synchronize()  # so that random values are complete before other streams read them

    def compile(self, item: Item) -> Callable[[], Any]:
        """A function without parameters for one item. Arguments that no operator of the step writes are looked up only once."""
        if item.role == "synchronize":
            return cuda.synchronize if self.on_gpu else lambda: None
        if item.role == "stand-in":
            return self.stand_in(item)
        if item.role == "transfer":
            assert item.function is not None
            return item.function
        program = self.program
        written = {slot for other in program.items if other.role == "real" for slot in other.node.outputs or ()}
        fixed = not item.zero and (program.memory.share or not any(slot in written and slot not in program.leaves for slot in item.refs()))
        if not fixed:
            return lambda: program.call(item)
        get, function = program.memory.get, item.function
        assert function is not None

        def real(value: Any) -> Any:
            if isinstance(value, list):
                return [real(v) for v in value]
            return get(value.slot) if isinstance(value, Ref) else value

        positional, named = [real(v) for v in item.positional], {k: real(v) for k, v in item.named.items()}
        return lambda: function(*positional, **named)

    def stand_in(self, item: Item) -> Callable[[], Any]:
        """A spin of the measured duration, on the device for the work that was launched, and on the CPU."""
        node = item.node
        device_ns = node.device_ns if item.own else node.device_total
        on_cpu = node.duration if node.collective is None and not item.own else 0
        if not self.on_gpu:
            on_cpu = max(on_cpu, device_ns)
            return lambda: spin_until(time.perf_counter_ns() + on_cpu)
        cycles = int(device_ns * self.cycles_per_ns)

        def spin() -> None:
            deadline = time.perf_counter_ns() + on_cpu
            if cycles:
                cuda._sleep(cycles)
            spin_until(deadline)

        return spin

    def stream(self, number: int) -> Any:
        if number not in self.streams:
            self.streams[number] = cuda.Stream() if self.streams else cuda.current_stream()
        return self.streams[number]

    def step(self, gaps: bool) -> int:
        """Run the step once, and return its wall time in ns. gaps: whether to spin for the time before and between operators."""
        items, slots, program = self.program.items, self.program.memory.slots, self.program
        works: dict[int, Any] = {}
        events: dict[int, Any] = {}
        held: dict[int, Any] = {}
        recorded = {source for item in items for source in item.events} if self.on_gpu else set()
        clock = time.perf_counter_ns
        began = clock()
        if gaps:
            spin_until(began + self.program.rank["before_ns"])
        end = clock()
        for at, (item, call) in enumerate(zip(items, self.steps, strict=True)):
            for source in item.waits:
                self.wait(works.pop(source, None))
                end = clock()
            if gaps and item.gap:
                spin_until(end + item.gap)
            start = clock()
            if self.on_gpu and item.stream >= 0:
                with cuda.stream(self.stream(item.stream)):
                    for source in item.events:
                        if source in events:
                            cuda.current_stream().wait_event(events[source])
                    out = call()
                    if at in recorded:
                        events[at] = cuda.Event()
                        events[at].record()
            else:
                out = call()
            end = clock()
            item.elapsed += end - start
            if item.role == "transfer":
                works[at] = out
            elif item.node.collective is not None and item.node.collective["end_ns"] >= 0:
                works[at] = start + item.node.collective["end_ns"] - item.node.start
            elif item.role == "real":
                program.keep(item, out)
                if item.hold:
                    held[at] = out
            out = None
            for slot in item.release:
                slots[slot] = None
            for source in item.drop:
                held.pop(source, None)
        for work in works.values():
            self.wait(work)
        if self.on_gpu:
            cuda.synchronize()
        return clock() - began

    @staticmethod
    def wait(work: Any) -> None:
        """Wait for a transfer or, where a stand-in replaces it, until the time at which it would have ended (an int)."""
        if isinstance(work, int):
            spin_until(work)
        elif work is not None:
            work.wait()


def calibrate() -> float:
    """Cycles of torch.cuda._sleep per nanosecond, measured."""
    cuda._sleep(1000)
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begin.record()
    cuda._sleep(20_000_000)
    end.record()
    cuda.synchronize()
    return 20_000_000 / float(begin.elapsed_time(end) * 1e6)


# -------------------------------------------------------------------------------------------------------------- the report


def covered(program: Program) -> dict[str, Any]:
    """Shares of operators, and of their recorded time, that ran for real, were replaced by stand-ins, or were skipped."""
    count: dict[str, int] = defaultdict(int)
    spent: dict[str, int] = defaultdict(int)
    missing: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    ran: set[int] = set()
    for item in program.items:
        ran.update(node.number for node in item.node.walk())
        if item.role == "synchronize":
            continue
        weight = item.node.device_ns if item.own else max(item.node.duration, item.node.device_total)
        outcome = "real" if item.role != "stand-in" else "stand_in"
        if outcome == "stand_in" and not weight and item.node.start < 0:
            outcome = "skipped"  # no duration is known, so there is nothing to spin for
        count[outcome] += 1
        spent[outcome] += weight
        if outcome != "real":
            entry = missing[outcome, item.node.name, item.node.reason]
            entry[0], entry[1] = entry[0] + 1, entry[1] + weight
    for root in program.roots:
        for node in root.walk():
            if node.collective is not None and node.number not in ran:
                count["skipped"] += 1
                spent["skipped"] += node.duration
                missing["skipped", node.name, f"not part of --mode {program.mode}"][0] += 1
    kinds = ("real", "stand_in", "skipped")
    time_known = sum(spent.values()) > 0
    return {
        "coverage": {k: share(spent if time_known else count, k) for k in kinds},
        "coverage_of_operators": {k: share(count, k) for k in kinds},
        "operators": {k: count[k] for k in kinds},
        "not_real": [
            {"outcome": outcome, "name": name, "reason": reason, "count": n, "recorded_ns": t}
            for (outcome, name, reason), (n, t) in sorted(missing.items(), key=lambda entry: -entry[1][1])
        ],
    }


def share(parts: dict[str, int], key: str) -> float | None:
    total = sum(parts.values())
    return parts[key] / total if total else None


def by_class(program: Program, repetitions: int) -> list[dict[str, Any]]:
    """Recorded and replayed CPU time of every operator that ran for real, the most time first."""
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for item in program.items:
        if item.role == "real":
            row = table[item.node.name]
            row[0], row[1], row[2] = row[0] + 1, row[1] + item.node.duration, row[2] + item.elapsed // max(repetitions, 1)
    rows = sorted(table.items(), key=lambda entry: -entry[1][1])
    return [{"name": name, "count": n, "recorded_ns": recorded, "replayed_ns": replayed} for name, (n, recorded, replayed) in rows]


def report(program: Program, times: list[int], cpu_share: float, plan: dict[str, Any]) -> dict[str, Any]:
    recorded = program.rank["recorded_ns"] if program.rank["recorded_ns"] > 0 else None
    replayed = int(statistics.median(times))
    same_device = program.rank["on_accelerator"] == (program.device.type == "cuda")
    comparable = recorded is not None and same_device and program.mode == "full" and plan["scale"] == 1
    return {
        "rank": program.rank["rank"],
        "device": cuda.get_device_name() if program.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "mode": program.mode,
        "recorded_step_ns": recorded,
        "replayed_step_ns": replayed,
        "error": (replayed - recorded) / recorded if comparable and recorded else None,
        "repetitions_ns": times,
        "cpu_share": cpu_share,
        **covered(program),
        "memory": plan,
        "by_class": by_class(program, len(times)),
    }


def printable(text: str) -> str:
    """A recorded name as a terminal may show it, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)[:80]


def show(result: dict[str, Any]) -> None:
    recorded, replayed = result["recorded_step_ns"], result["replayed_step_ns"]
    line = f"step {replayed / 1e6:.3f} ms here ({result['device']}, torch {result['torch']})"
    if recorded:
        line += f", {recorded / 1e6:.3f} ms recorded"
    print(line + (f": {result['error']:+.1%}" if result["error"] is not None else ""))
    shares = {k: v for k, v in result["coverage"].items() if v is not None}
    print("operator time: " + ", ".join(f"{share:.1%} {kind.replace('_', '-')}" for kind, share in shares.items()))
    memory = result["memory"]
    less = (", tensors share storage" if memory["shared"] else "") + (f", sizes x {memory['scale']:g}" if memory["scale"] != 1 else "")
    print(f"memory planned: {memory['total_bytes'] / 1e6:,.1f} MB of {memory['limit_bytes'] / 1e6:,.0f}{less}")
    for row in result["not_real"][:12]:
        print(f"  {row['outcome'].replace('_', '-'):9s} {row['count']:5d} x {printable(row['name'])}: {printable(row['reason'])}")


# ------------------------------------------------------------------------------------------------------------- the command


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the recorded step in trace.json.")
    parser.add_argument("--trace", type=Path, default=Path(__file__).with_name("trace.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda.is_available() else "cpu")
    parser.add_argument("--mode", choices=("full", "compute", "communication"), default="full")
    parser.add_argument("--rank", type=int, help="the recorded rank to run (default: this process's)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--max-memory", type=float, help="bytes for tensors (default: that of trace.json, or 80 %% of what is free)")
    parser.add_argument("--threads", type=int, help="intra-op threads on the CPU (default: as recorded)")
    parser.add_argument("--no-gaps", action="store_true", help="leave out the time between operators")
    parser.add_argument("--profile", type=Path, help="folder for a profile of three steps of this run")
    parser.add_argument("--json", type=Path, help="folder for the result of every rank")
    return parser.parse_args()


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(cuda.mem_get_info()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def main() -> None:
    options = arguments()
    trace = json.loads(options.trace.read_text())
    if trace.get("format") != "lumos-proxy" or trace.get("version") != 1:
        sys.exit(f"benchmark: {options.trace} is not a trace.json of this benchmark's version: generate it again")
    trace["own_ranks"] = options.rank is None  # whether each process runs its own rank
    allocate_as_recorded(trace["ranks"][0]["malloc"])
    local, processes = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(options.device, local) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        cuda.set_device(device)
    if processes > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    place = dist.get_rank() if processes > 1 else 0
    ranks = trace["ranks"]
    chosen = {rank["rank"]: rank for rank in ranks}.get(options.rank) if options.rank is not None else ranks[place % len(ranks)]
    if chosen is None:
        sys.exit(f"benchmark: rank {options.rank} is not in trace.json, which has {sorted(rank['rank'] for rank in ranks)}")
    threads = options.threads or chosen["threads"]
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # random values, unlike trained ones, may shrink to denormals, which are very slow on CPUs

    limit = int(options.max_memory or trace["max_memory_bytes"] or 0.8 * free_bytes(device) / (processes if device.type == "cpu" else 1))
    with torch.no_grad():
        program = Program(trace, chosen, device, options.mode)
        plan = program.fit(limit)
        program.rehearse()
        runner = Runner(program)
        result = report(program, *run(runner, options), plan)
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        (options.json / f"result{place}.json").write_text(json.dumps(result))
    if place == 0:
        show(result)
    if processes > 1:
        dist.destroy_process_group()


def allocate_as_recorded(settings: dict[str, str]) -> None:
    """Start this process again with the recording's settings of glibc, which reads them only at the start. Only numbers are taken."""
    missing = {name: value for name, value in settings.items() if name.startswith("MALLOC_") and name not in os.environ and value.isdigit()}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


def run(runner: Runner, options: argparse.Namespace) -> tuple[list[int], float]:
    """Wall times of the measured steps, ns, and the CPU time of this process as a share of their sum."""
    gaps = not options.no_gaps and options.mode != "communication"
    times: list[int] = []
    cpu = 0
    for repetition in range(options.warmup + options.repeat):
        if repetition == options.warmup:
            for item in runner.program.items:
                item.elapsed = 0
            cpu = time.process_time_ns()
        if dist.is_initialized():
            dist.barrier()
        times.append(runner.step(gaps))
    measured = times[options.warmup :]
    share = (time.process_time_ns() - cpu) / sum(measured)
    if options.profile:
        profile(runner, gaps, options.profile)
    return measured, share


def profile(runner: Runner, gaps: bool, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank() if dist.is_initialized() else 0
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    elapsed = [item.elapsed for item in runner.program.items]
    with torch.profiler.profile(
        schedule=schedule, record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank{rank}.json"))
    ) as profiler:
        for _ in range(4):
            if dist.is_initialized():
                dist.barrier()
            runner.step(gaps)
            profiler.step()
    for item, before in zip(runner.program.items, elapsed, strict=True):
        item.elapsed = before


if __name__ == "__main__":
    main()
