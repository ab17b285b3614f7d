"""Run the operators of a recorded training step: the same operators, shapes, order and overlap.

    python benchmark.py                          one process, the first rank of trace.json
    torchrun --nproc-per-node 2 benchmark.py     one process per rank, with their collectives

This file is the same in every benchmark; everything that was recorded is in trace.json beside it. It needs torch and nothing else.

1. Choose. Recorded operators are nested as they called each other. The outermost that this torch can run on this device is called. One
   that only calls others (CompositeImplicit) gives way to these, because without autograd it might call different ones. What cannot run
   is replaced by a stand-in, a busy loop (spin) of its measured duration.
2. Rehearse. Everything runs once; what fails gives way to what it called, or to a stand-in. Tensors that the step reads before it writes
   them hold random values: normally distributed floats, and indices within range. All others are what operators return, and are held
   until their last use. Where this exceeds the limit of memory, tensors of one type share theirs, and what operators return is
   discarded; an operator that does not fit even then is replaced by a stand-in.
3. Run. Time between operators in the recording (Python, the autograd engine) is spun; waits are real waits.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

cuda: Any = torch.cuda

#: Namespaces of operators that compute. No other one's run, whatever a trace contains.
NAMESPACES = ("aten", "fbgemm", "inductor", "mkl", "mkldnn", "onednn", "quantized", "sparse", "torchvision")

#: What operators, process groups and the sources of kernels raise when they fail.
FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, ImportError, SyntaxError, NameError, AttributeError, OSError)

#: The bound in trace.json of floating point values that must not be negative.
NON_NEGATIVE = 2


class NotRunnable(Exception):  # noqa: N818 - it is an expected result, not an error
    """An operator cannot run here; the message says why."""


# ------------------------------------------------------------------------------------------------------ the recording


class Ref(int):
    """A tensor among an operator's arguments, by its slot: its number in the rank's tensors."""


def decoded(value: dict[str, Any]) -> Any:
    """An object of trace.json: a `Ref`, a number that JSON cannot represent, or the object itself."""
    return Ref(value["tensor"]) if value.keys() == {"tensor"} else float(value["float"]) if value.keys() == {"float"} else value


class Call(NamedTuple):
    """An overload of an operator with its arguments."""

    function: Callable[..., Any]
    positional: list[Any]
    named: dict[str, Any]


@dataclass
class Operator:
    """One recorded operator, or a range that Python or autograd put around operators, numbered in the order of calls.

    size: of how many operators, from itself on, it consists with all that it called. after: numbers of operators whose transfer or device
    work it waits for. backward: the operator of the backward pass that uses what this one saved. last: tensors that nobody uses after it;
    what operator n returned counts as -1 - n, where its tensors are not known. Times are of the recording, -1: unknown.
    """

    name: str
    size: int
    start_ns: int
    duration_ns: int
    range: bool = False
    schema: str = ""
    inputs: list[Any] | None = None
    outputs: list[int] | None = None
    device_ns: int = 0
    stream: int = -1
    after: list[int] = field(default_factory=list)
    backward: int = -1
    last: list[int] = field(default_factory=list)
    collective: dict[str, Any] | None = None
    synchronize: bool = False
    compiled: str = ""
    number: int = 0
    inner: list[Operator] = field(default_factory=list)  # itself and all that it called
    # What this program makes of it. role: "real", "transfer", "synchronize", "stand-in", or "left out" by the mode; reason: why it does not
    # run. gap: ns to spin before it. waits, events: places of the items whose transfers, and whose device work on other streams, to wait
    # for. release: slots that nobody needs after it. elapsed: ns over all measured steps.
    role: str = ""
    reason: str = ""
    call: Call | None = None
    gap: int = 0
    waits: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    release: list[int] = field(default_factory=list)
    elapsed: int = 0

    @property
    def on_device_ns(self) -> int:
        return sum(one.device_ns for one in self.inner)


def numbered(raw: list[dict[str, Any]]) -> list[Operator]:
    operators = [Operator(**one, number=number) for number, one in enumerate(raw)]
    for number, one in enumerate(operators):
        one.inner = operators[number : number + one.size]
    return operators


def outermost(operators: list[Operator]) -> Iterator[Operator]:
    """Those that none of the others called."""
    at = 0
    while at < len(operators):
        yield operators[at]
        at += operators[at].size


def leaves(value: Any, kind: type) -> Iterator[Any]:
    """Everything of one type in a value, a list, or lists of lists."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item, kind)


# ------------------------------------------------------------------------------------------- operators from schemas


def overloads(one: Operator, device: torch.device) -> list[Call]:
    """The overloads that may take the recorded arguments, the likeliest first. device: of new tensors. Raises NotRunnable."""
    if one.name.partition("::")[0] not in NAMESPACES:
        is_kernel = "::" not in one.name
        raise NotRunnable("a kernel that no operator launched" if is_kernel else "refused: its namespace is not one of those that run")
    if one.inputs is None:
        raise NotRunnable("its arguments were not recorded")
    wanted = one.schema.partition("(")[0].partition(".")[2]
    calls, problems = [], ["this torch has no such operator"]
    for schema in sorted(schemas(one), key=lambda s: s.overload_name != wanted if one.schema else 0):
        try:
            calls.append(matched(schema, one, device))
        except NotRunnable as problem:
            problems.append(str(problem))
    if not calls:
        raise NotRunnable(problems[:2][-1])
    return calls


def schemas(one: Operator) -> list[Any]:
    try:
        return list(torch._C._jit_get_schemas_for_operator(one.name))
    except RuntimeError:  # no name of an operator
        return []


def is_composite(one: Operator) -> bool:
    """Whether any overload of the operator only calls other operators."""
    names = [f"{schema.name}.{schema.overload_name}".removesuffix(".") for schema in schemas(one)]
    try:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") for name in names)
    except RuntimeError:  # known to TorchScript only
        return False


def matched(schema: Any, one: Operator, device: torch.device) -> Call:
    """The call of an overload with the recorded arguments, whose types torch checks itself. Raises NotRunnable where they do not fit."""
    arguments, inputs = schema.arguments, one.inputs or []
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    if not (schema.returns or writes) or any(a.name == "filename" for a in arguments):
        raise NotRunnable("refused: it names a file, or neither returns nor writes")
    if len(inputs) > len(arguments):
        raise NotRunnable("no overload takes so many arguments")
    has_tensor = any("Tensor" in str(a.type) for a in arguments)
    call = Call(torch._C._get_operation_overload(one.name, schema.overload_name)[0], [], {})
    for argument, recorded in zip(arguments, inputs + [None] * (len(arguments) - len(inputs)), strict=True):
        kind, value = str(argument.type), recorded
        if kind in ("Device", "Optional[Device]"):
            needed = isinstance(recorded, str) or kind == "Device" or not has_tensor
            value = torch.device("cpu") if recorded == "cpu" else device if needed else None
        elif argument.name == "pin_memory" and device.type == "cpu":
            value = None
        elif value is None and argument.has_default_value():
            value = argument.default_value
        elif value is None and kind == "List[bool]":
            value = [True] * 3  # output_mask: which gradients are wanted
        elif value is None and not kind.startswith("Optional["):
            raise NotRunnable(f"its argument {argument.name} was not recorded")
        if argument.kwarg_only:
            call.named[argument.name] = value
        else:
            call.positional.append(value)
    return call


# ----------------------------------------------------------------------------------------------------------- memory


class Memory:
    """The tensors of one rank: filled with random values where the step reads them first, otherwise what operators return.

    limit: bytes that they may take on the device. share: whether tensors of one type share memory and what operators return is discarded.
    This needs less memory, and caches then hold more of the step than in the recording. slots: what is held now, by number.
    """

    def __init__(self, rank: dict[str, Any], device: torch.device, limit: float) -> None:
        self.tensors, self.storages, self.on_accelerator = rank["tensors"], rank["storages"], rank["on_accelerator"]
        self.device, self.limit, self.before = device, limit, held(device)
        self.clear(share=False)

    def clear(self, share: bool) -> None:
        self.share = share
        self.slots: dict[int, Any] = {}
        self.leaves: set[int] = set()  # slots that the step reads before any of its operators has written them
        self.buffers: dict[Any, torch.Tensor] = {}

    def claim(self, nbytes: int) -> None:
        """Make sure that so many bytes more are within the limit; what is not given back to the system counts as taken."""
        if (nbytes or not self.share) and held(self.device) - self.before + nbytes > self.limit:
            raise MemoryError

    def device_of(self, slot: int) -> torch.device:
        recorded = self.storages[self.tensors[slot][-1]][1]
        return torch.device("cpu") if recorded == "cpu" and self.on_accelerator else self.device

    def nbytes(self, slot: int) -> int:
        dtype, shape, strides, *_ = self.tensors[slot]
        return 0 if 0 in shape else (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * getattr(torch, dtype).itemsize

    def get(self, slot: int) -> Any:
        """The tensor of a slot: what is held there, else one of random values."""
        if slot not in self.slots:
            name, shape, strides, offset, storage = self.tensors[slot]
            nbytes, place, bound = self.storages[storage]
            dtype, device = getattr(torch, name), self.device_of(slot)
            key = (name, place, bound) if self.share else storage
            count = max((self.nbytes(slot) if self.share else nbytes) // dtype.itemsize, 1)
            if key not in self.buffers or len(self.buffers[key]) < count:
                if device == self.device:
                    self.claim(count * dtype.itemsize)
                self.buffers[key] = values(count, dtype, bound, shape[-1] if shape else 1, device)
            tensor = torch.empty(0, dtype=dtype, device=device)
            tensor.set_(self.buffers[key].untyped_storage(), 0 if self.share else offset, shape, strides)  # some operators refuse views
            self.slots[slot] = tensor
            self.leaves.add(slot)
        return self.slots[slot]


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
    drawn = min(count, 1 << 20)  # large tensors repeat these values, because drawing all of them would take minutes
    sample = torch.randn(drawn, device=device) / math.sqrt(max(last, 1))
    sample = (sample.abs() if bound == NON_NEGATIVE else sample).to(dtype)
    out = torch.empty(count, dtype=dtype, device=device)
    for begin in range(0, count, drawn):
        out[begin : begin + drawn] = sample[: count - begin]
    return out


# -------------------------------------------------------------------------------------------------------- transfers


class Transfers:
    """The process groups of the recording. Process p runs rank p, or where there are more processes than ranks, rank p modulo their
    number: a group of all ranks then spans all processes, each other group is repeated."""

    def __init__(self, trace: dict[str, Any], device: torch.device) -> None:
        self.device, self.ranks, self.processes = device, trace["world_size"], dist.get_world_size()
        self.first = dist.get_rank() // self.ranks * self.ranks  # the process of rank 0 of the same copy of the job
        running = set(range(min(self.ranks, self.processes)))
        self.own_ranks = trace["own_ranks"] and running <= {rank["rank"] for rank in trace["ranks"]}
        self.groups = [self.group(ranks) for ranks in trace["groups"]]
        self.sizes = [len(ranks) or self.ranks for ranks in trace["groups"]]
        self.buffers: dict[Any, torch.Tensor] = {}

    def group(self, ranks: list[int]) -> Any:
        """A group's ranks that have a process; None where these are fewer than two."""
        if len(ranks) in (0, self.ranks):
            return dist.group.WORLD
        mine = None
        for first in range(0, self.processes, self.ranks):  # every process makes every group, as torch.distributed asks for
            present = [first + rank for rank in ranks if first + rank < self.processes]
            made = dist.new_group(present) if len(present) > 1 else None
            mine = made if dist.get_rank() in present or mine is None else mine
        return mine

    def bind(self, call: dict[str, Any]) -> Callable[[], Any]:
        """What issues a transfer and returns what to wait on. Raises NotRunnable."""
        known = call["group"] >= 0
        group, recorded = (self.groups[call["group"]], self.sizes[call["group"]]) if known else (dist.group.WORLD, self.ranks)
        if group is None or dist.get_world_size(group) < 0:
            raise NotRunnable("fewer than two ranks of its group have a process, or it does not hold this one's rank")
        kind, size, peer = call["kind"], dist.get_world_size(group), max(call["peer"], 0)
        if group is dist.group.WORLD and kind in ("send", "receive"):  # messages stay within a copy of the job
            peer += self.first
        if peer >= size:
            raise NotRunnable("its peer has no process")
        if call["splits_in"] and (not self.own_ranks or (size > recorded and size % recorded)):
            raise NotRunnable("its parts are of unequal size, and the ranks that they are for do not run")
        ins, outs = max(call["elements_in"], 1), max(call["elements_out"], 1)
        times = max(size // recorded, 1)  # of a group that spans several copies of the job, each part goes to the rank of every copy
        parts_in, parts_out = (call["splits_in"] * times)[:size], (call["splits_out"] * times)[:size]
        if kind == "all-to-all":
            ins, outs = (sum(parts_in), sum(parts_out)) if parts_in else (max(ins // recorded, 1) * size, max(outs // recorded, 1) * size)
        ins, outs = (outs * size if kind == "reduce-scatter" else ins), (ins * size if kind == "all-gather" else outs)
        source, target = self.buffer("in", ins, call["dtype"]), self.buffer("out", outs, call["dtype"])
        there = dist.get_global_rank(group, peer)
        calls: dict[str, Callable[[], Any]] = {
            "all-reduce": lambda: dist.all_reduce(source, group=group, async_op=True),
            "all-gather": lambda: dist.all_gather(list(target.chunk(size)), source, group=group, async_op=True),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(target, source, group=group, async_op=True),
            "all-to-all": lambda: dist.all_to_all_single(target, source, parts_out or None, parts_in or None, group=group, async_op=True),
            "broadcast": lambda: dist.broadcast(source, src=there, group=group, async_op=True),
            "reduce": lambda: dist.reduce(source, dst=there, group=group, async_op=True),
            "send": lambda: dist.isend(source, dst=there, group=group),
            "receive": lambda: dist.irecv(target, src=there, group=group),
            "barrier": lambda: dist.barrier(group=group, async_op=True),
        }
        if kind not in calls:
            raise NotRunnable(f"a transfer of kind {kind}")
        return calls[kind]

    def buffer(self, side: str, count: int, dtype: str) -> torch.Tensor:
        key = (side, count, dtype)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros(count, dtype=getattr(torch, dtype), device=self.device)
        return self.buffers[key]


# --------------------------------------------------------------------------------------------------------- the step


class Step:
    """One rank's step: what runs for every recorded operator, in which order, with which memory."""

    def __init__(self, trace: dict[str, Any], rank: dict[str, Any], device: torch.device, mode: str, limit: float) -> None:
        self.rank, self.device, self.mode, self.on_gpu = rank, device, mode, device.type == "cuda"
        self.operators = numbered(rank["operators"])
        self.memory = Memory(rank, device, limit)
        self.transfers = Transfers(trace, device) if dist.is_initialized() else None
        self.kernels: Any = importlib.import_module("kernels").Kernels(trace["kernels"], device) if trace["kernels"] else None
        self.written: set[int] = set()  # slots that operators of the step write
        self.streams: dict[int, Any] = {}
        self.cycles_per_ns = calibrate() if self.on_gpu else 0.0

    # choosing, by a rehearsal

    def rehearse(self) -> None:
        """Run everything once, and keep what could run. Transfers follow at the end, in the same order on all ranks."""
        try:
            items = self.rehearsed(self.operators)
        except MemoryError:
            self.memory.clear(share=True)
            self.written.clear()
            items = self.rehearsed(self.operators)
        self.items = [item for item in items if self.mode != "communication" or item.collective is not None]
        for item in self.items if self.mode == "compute" else ():
            if item.collective is not None:
                item.role, item.reason = "left out", "not part of --mode compute"
        works = []
        for item in self.items:
            if item.role == "transfer" and item.call is not None:
                try:
                    works.append(item.call.function())
                except FAILURES as error:
                    item.role, item.reason = "stand-in", failure(error)
        for work in works:
            wait(work)
        self.memory.slots.clear()
        self.arrange()
        self.prepared = [self.prepare(item) for item in self.items]
        self.synchronize()  # so that random values are complete before other streams read them

    def rehearsed(self, operators: list[Operator], final: bool = True) -> list[Operator]:
        """The items: what runs for operators. final: whether what these leave is not needed for another try."""
        items = []
        for one in outermost(operators):
            items += self.rehearsed(one.inner[1:], final) if one.range else self.chosen(one)
            for slot in (slot for inner in one.inner for slot in inner.last) if final else ():
                self.memory.slots.pop(slot, None)
        return items

    def chosen(self, one: Operator) -> list[Operator]:
        """What runs for an operator: itself, what it called, or a stand-in."""
        gives_way = one.size > 1 and is_composite(one)
        if not gives_way and self.runs(one):
            return [one]
        parts = self.rehearsed(one.inner[1:], final=False) if one.collective is None else []
        if gives_way and (not parts or any(part.role == "stand-in" for part in parts)) and self.runs(one):
            return [one]
        if any(part.role in ("real", "transfer") for part in parts):
            return parts
        one.role = "stand-in"
        return [one]

    def runs(self, one: Operator) -> bool:
        """Whether an operator itself runs here; else `one.reason` says why not."""
        one.role, one.call = "synchronize" if one.synchronize else "real" if one.collective is None else "transfer", None
        try:
            if one.collective is not None:
                if self.transfers is None:
                    raise NotRunnable("a transfer between ranks, run in one process")
                one.call = Call(self.transfers.bind(one.collective), [], {})
            elif not one.synchronize:
                self.memory.claim(sum(self.memory.nbytes(slot) for slot in one.outputs or ()))
                one.call = next((call for call in self.calls(one) if self.works(one, call)), None)
            return one.synchronize or one.call is not None
        except NotRunnable as problem:
            one.reason = str(problem)
        except (MemoryError, torch.OutOfMemoryError) as error:
            if not self.memory.share:
                raise MemoryError from error
            one.reason = "its tensors do not fit into memory"
        except FAILURES as error:  # of the source of a kernel
            one.reason = failure(error)
        return False

    def calls(self, one: Operator) -> list[Call]:
        """What may run an operator, the likeliest first. Raises NotRunnable."""
        if not one.compiled:
            return overloads(one, self.device)
        if self.kernels is None:
            raise NotRunnable("a compiled kernel whose source was not taken along")
        if not one.inputs or None in one.inputs:
            raise NotRunnable("its arguments were not recorded")
        return [Call(self.kernels.bind(one.compiled, one.name), one.inputs, {})]

    def works(self, one: Operator, call: Call) -> bool:
        """Run a call once; whether it did not fail."""
        try:
            out = self.run_call(one, call)
        except torch.OutOfMemoryError:
            raise
        except FAILURES as error:
            one.reason = failure(error)
            return False
        self.check(one, out)
        self.keep(one, out)
        return True

    def check(self, one: Operator, out: Any) -> None:
        """Ignore the recorded outputs where the result differs from them: its shape may depend on values, which are random here."""
        expected = [self.memory.tensors[slot][:2] for slot in one.outputs or ()]
        found = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in leaves(out, torch.Tensor)]
        if one.outputs is not None and found != expected:
            one.outputs = []

    def arrange(self) -> None:
        """Set gaps, waits and releases for all items."""
        self.changing = self.written - self.memory.leaves
        place = {inner.number: at for at, item in enumerate(self.items) for inner in item.inner}
        latest = self.items[0].start_ns if self.items else 0
        done = 0
        for at, one in enumerate(self.items):
            sources = [place[n] for inner in one.inner for n in inner.after if place.get(n, at) < at]
            one.waits = [source for source in sources if self.items[source].collective]
            one.events = [source for source in sources if not self.items[source].collective]
            ended = [call["end_ns"] for source in one.waits if (call := self.items[source].collective)]
            one.gap = max(0, one.start_ns - max(latest, *ended, -1)) if one.start_ns >= 0 else 0
            latest = max(latest, one.start_ns + one.duration_ns)
            gone = (slot for passed in self.operators[done : one.number + one.size] for slot in passed.last)
            one.release = [slot for slot in gone if slot < 0 or slot in self.changing]
            done = one.number + one.size
        self.awaited = {source for item in self.items for source in item.events}

    # running

    def prepare(self, one: Operator) -> Callable[[], Any]:
        """A function without parameters for one item. Arguments that no operator of the step writes are looked up only once."""
        call = one.call
        if one.role == "synchronize":
            return self.synchronize
        if one.role == "left out":
            return lambda: None
        if one.role == "stand-in" or call is None:
            return self.stand_in(one)
        if one.name.startswith("aten::empty") or not self.changing.isdisjoint(leaves(one.inputs, Ref)):
            return lambda: self.run_call(one, call)
        function, positional, named = self.with_tensors(call)
        return lambda: function(*positional, **named)

    def stand_in(self, one: Operator) -> Callable[[], Any]:
        """A spin of the measured duration, on the device for the work that was launched, and on the CPU."""
        on_cpu = one.duration_ns if one.collective is None else 0
        if not self.on_gpu:
            on_cpu = max(on_cpu, one.on_device_ns)
        cycles = int(one.on_device_ns * self.cycles_per_ns)

        def spin() -> None:
            deadline = time.perf_counter_ns() + on_cpu
            if cycles:
                cuda._sleep(cycles)
            spin_until(deadline)

        return spin

    def with_tensors(self, value: Any) -> Any:
        """A call, or an argument, with tensors in place of their slots."""
        if isinstance(value, Call):
            named = {name: self.with_tensors(one) for name, one in value.named.items()}
            return Call(value.function, self.with_tensors(value.positional), named)
        if isinstance(value, list):
            return [self.with_tensors(item) for item in value]
        return self.memory.get(value) if isinstance(value, Ref) else value

    def run_call(self, one: Operator, call: Call) -> Any:
        function, positional, named = self.with_tensors(call)
        out = function(*positional, **named)
        if one.name.startswith("aten::empty") and isinstance(out, torch.Tensor) and not out.dtype.is_floating_point:
            out.zero_()  # new memory can contain any integer, and this one may be used as an index
        return out

    def keep(self, one: Operator, out: Any) -> None:
        """Put what an operator returned into the slots from which later operators read it."""
        if one.outputs is None and one.backward > one.number and not self.memory.share:
            self.memory.slots[-1 - one.number] = out
        elif one.outputs and not self.memory.share:
            for slot, tensor in zip(one.outputs, leaves(out, torch.Tensor), strict=False):
                if slot not in self.memory.leaves:
                    self.memory.slots[slot] = tensor
                    self.written.add(slot)

    def run(self) -> int:
        """Run the step once, and return its wall time in ns."""
        kept, clock, gaps = self.memory.slots, time.perf_counter_ns, self.mode != "communication"
        works: dict[int, Any] = {}
        events: dict[int, Any] = {}
        began = clock()
        if gaps:
            spin_until(began + self.rank["before_ns"])
        end = clock()
        for at, (one, call) in enumerate(zip(self.items, self.prepared, strict=True)):
            for source in one.waits:
                wait(works.pop(source, None))
                end = clock()
            if gaps and one.gap:
                spin_until(end + one.gap)
            start = clock()
            out = self.on_stream(at, one, call, events) if self.on_gpu else call()
            end = clock()
            one.elapsed += end - start
            if one.role == "transfer":
                works[at] = out
            elif one.role == "stand-in" and one.collective is not None and one.collective["end_ns"] >= 0:
                works[at] = start + one.collective["end_ns"] - one.start_ns
            elif one.role == "real":
                self.keep(one, out)
            out = None
            for slot in one.release:
                kept.pop(slot, None)
        for work in works.values():
            wait(work)
        self.synchronize()
        return clock() - began

    def on_stream(self, at: int, one: Operator, call: Callable[[], Any], events: dict[int, Any]) -> Any:
        """Call an item on the stream of the first device work in it."""
        number = next((inner.stream for inner in one.inner if inner.stream >= 0), -1)
        if number < 0:
            return call()
        if number not in self.streams:
            self.streams[number] = cuda.Stream() if self.streams else cuda.current_stream()
        with cuda.stream(self.streams[number]):
            for source in one.events:
                if source in events:
                    cuda.current_stream().wait_event(events[source])
            out = call()
            if at in self.awaited:
                events[at] = cuda.Event()
                events[at].record()
        return out

    def synchronize(self) -> None:
        if self.on_gpu:
            cuda.synchronize()


def failure(error: Exception) -> str:
    return f"it failed here: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"


def wait(work: Any) -> None:
    """Wait for a transfer or, where a stand-in replaces it, until the time at which it would have ended (an int)."""
    if isinstance(work, int):
        spin_until(work)
    elif work is not None:
        work.wait()


def spin_until(deadline: int) -> None:
    while time.perf_counter_ns() < deadline:
        pass


def held(device: torch.device, field: str = "VmRSS") -> int:
    """Bytes of tensors on a GPU, or of the whole process in main memory, VmHWM for the most so far; 0 where that is unknown."""
    if device.type == "cuda":
        return int(cuda.max_memory_allocated() if field == "VmHWM" else cuda.memory_allocated())
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def calibrate() -> float:
    """Cycles of torch.cuda._sleep per nanosecond, measured."""
    cuda._sleep(1000)
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begin.record()
    cuda._sleep(20_000_000)
    end.record()
    cuda.synchronize()
    return 20_000_000 / float(begin.elapsed_time(end) * 1e6)


# ------------------------------------------------------------------------------------------------------ the command


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the recorded step in trace.json.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda.is_available() else "cpu")
    parser.add_argument("--mode", choices=("full", "compute", "communication"), default="full")
    parser.add_argument("--rank", type=int, help="the recorded rank to run (default: this process's)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--max-memory", type=float, help="bytes for tensors (default: that of trace.json, or 80 %% of what is free)")
    parser.add_argument("--threads", type=int, help="intra-op threads on the CPU (default: as recorded)")
    parser.add_argument("--profile", type=Path, help="folder for a profile of three steps of this run")
    parser.add_argument("--json", type=Path, help="folder for the result of every rank")
    options = parser.parse_args()
    path = Path(__file__).with_name("trace.json")
    trace = json.loads(path.read_text(), object_hook=decoded)
    if (trace.get("format"), trace.get("version")) != ("lumos-proxy", 2):
        sys.exit(f"benchmark: {path} is not a trace.json of this benchmark's version: generate it again")
    trace |= {"folder": str(path.parent), "own_ranks": options.rank is None}  # whether each process runs its own rank
    device = torch.device(options.device, int(os.environ.get("LOCAL_RANK", 0))) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        cuda.set_device(device)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if processes > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    place = dist.get_rank() if processes > 1 else 0
    by_rank = {rank["rank"]: rank for rank in trace["ranks"]}
    if options.rank is not None and options.rank not in by_rank:
        sys.exit(f"benchmark: rank {options.rank} is not in trace.json, which has {sorted(by_rank)}")
    rank = trace["ranks"][place % len(by_rank)] if options.rank is None else by_rank[options.rank]
    if options.threads or rank["threads"]:
        torch.set_num_threads(options.threads or rank["threads"])
    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # random values, unlike trained ones, may shrink to denormals, which are very slow on CPUs
    on_host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / processes
    limit = options.max_memory or trace["max_memory_bytes"] or 0.8 * (on_host if device.type == "cpu" else cuda.mem_get_info()[0])
    with torch.no_grad():
        before = held(device, "VmHWM")
        step = Step(trace, rank, device, options.mode, limit)
        step.rehearse()
        result = measured(step, options.warmup, options.repeat) | {"peak_memory_bytes": held(device, "VmHWM") - before}
        if options.profile:
            profile(step, options.profile, place)
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        (options.json / f"result{place}.json").write_text(json.dumps(result))
    if place == 0:
        recorded = f"{rank['recorded_ns'] / 1e6:.3f}" if rank["recorded_ns"] > 0 else "unknown"
        print(f"step {statistics.median(result['repetitions_ns']) / 1e6:.3f} ms here, {recorded} ms recorded")
        for (role, name, reason), count in Counter((row["outcome"], row["name"], row["reason"]) for row in result["items"]).items():
            if reason:
                print("  " + "".join(c if c.isprintable() else "?" for c in f"{role:9s} {count:5d} x {name[:80]}: {reason[:80]}"))
    if processes > 1:
        del step  # operators refer to themselves and to process groups, whose threads must end before the process does
        gc.collect()
        dist.destroy_process_group()


def measured(step: Step, warmup: int, repeat: int) -> dict[str, Any]:
    """Wall times of the measured steps, ns; the CPU time of this process as a share of their sum; and what ran."""
    times: list[int] = []
    cpu = 0
    for repetition in range(warmup + repeat):
        if repetition == warmup:
            cpu = time.process_time_ns()
            for item in step.items:
                item.elapsed = 0
        if dist.is_initialized():
            dist.barrier()
        times.append(step.run())
    times = times[warmup:]
    cpu_share = (time.process_time_ns() - cpu) / sum(times)
    rows = []
    for one in step.items:
        recorded = max(one.duration_ns, one.on_device_ns)
        known = one.role == "stand-in" and (recorded or one.start_ns >= 0)  # of what is not known, there is nothing to do in its place
        outcome = "real" if one.role in ("real", "transfer") else "stand_in" if known else "skipped"
        row = {"name": one.name, "outcome": outcome, "reason": "" if outcome == "real" else one.reason, "role": one.role}
        if one.role != "synchronize":
            rows.append({**row, "recorded_ns": recorded, "replayed_ns": one.elapsed // len(times)})
    return {
        "rank": step.rank["rank"],
        "device": cuda.get_device_name() if step.on_gpu else "cpu",
        "on_gpu": step.on_gpu,
        "torch": torch.__version__,
        "mode": step.mode,
        "recorded_ns": step.rank["recorded_ns"],
        "repetitions_ns": times,
        "cpu_share": cpu_share,
        "memory": {"limit_bytes": step.memory.limit, "shared": step.memory.share},
        "items": rows,
    }


def profile(step: Step, folder: Path, place: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    written = str(folder / f"rank{place}.json")
    with torch.profiler.profile(schedule=schedule, record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(written)) as profiler:
        for _ in range(4):
            if dist.is_initialized():
                dist.barrier()
            step.run()
            profiler.step()


if __name__ == "__main__":
    main()
