"""Run the operators of a recorded training step: the same operators, shapes, order and overlap.

    python benchmark.py                          one process, the first rank of trace.json
    torchrun --nproc-per-node 2 benchmark.py     one process per rank, with their collectives

This file is the same in every benchmark; everything that was recorded is in trace.json beside it. It needs torch and nothing else.

1. Choose. Recorded operators are nested as they called each other. The outermost that this torch can run on this device is called; one that
   only calls others (CompositeImplicit) gives way to these. What cannot run is replaced by a busy loop of its measured duration.
2. Rehearse. Everything runs once; what fails gives way to what it called, or to a stand-in. Tensors that the step reads first hold random
   values; all others are what operators return, until their last use. Where memory is short, tensors of one type share theirs.
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
from collections.abc import Callable, Iterator  # noqa: TC003 - this file is read alone
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

cuda: Any = torch.cuda

#: Namespaces of operators that compute. No other one's run, whatever a trace contains.
NAMESPACES = ("aten", "fbgemm", "inductor", "mkl", "mkldnn", "onednn", "quantized", "sparse", "torchvision")

#: What operators, process groups and the sources of kernels raise when they fail.
FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, ImportError, SyntaxError, NameError, AttributeError, OSError)


class NotRunnable(Exception):  # noqa: N818 - it is an expected result, not an error
    """An operator cannot run here; the message says why."""


class Ref(int):
    """A tensor among an operator's arguments, by its slot: its number in the rank's tensors."""


def decoded(value: dict[str, Any]) -> Any:
    """An object of trace.json: a `Ref`, a number that JSON cannot represent, or the object itself."""
    return Ref(value["tensor"]) if value.keys() == {"tensor"} else float(value["float"]) if value.keys() == {"float"} else value


class Operator(SimpleNamespace):
    """One recorded operator, or a range that Python or autograd put around operators, numbered in the order of calls.

    size: of how many operators, from itself on, it consists with all that it called; inner: these. after: numbers of operators whose
    transfer or device work it waits for. backward: the operator of the backward pass that uses what this one saved. last: tensors that
    nobody uses after it; what operator n returned counts as -1 - n, where its tensors are not known. A time of -1 is unknown.

    What this program makes of it. role: "real", "transfer", "synchronize", "stand-in", or "left out" by the mode; reason: why it does not
    run. gap: ns to spin before it. sources: items to wait for. release: slots that nobody needs after it. elapsed: ns over all steps.
    """

    def __init__(self, number: int, recorded: dict[str, Any]) -> None:
        super().__init__(number=number, range=False, schema="", inputs=None, outputs=None, device_ns=0, stream=-1, after=[], backward=-1)
        self.__dict__.update(last=[], collective=None, synchronize=False, compiled="", role="", reason="", call=None, elapsed=0)
        self.__dict__.update(recorded)


def leaves(value: Any, kind: type) -> Iterator[Any]:
    """Everything of one type in a value, a list, or lists of lists."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item, kind)


def calls_of(one: Operator, device: torch.device, kernels: Any) -> list[partial[Any]]:
    """The calls that may take the recorded arguments, with these: the kernel that torch.compile made, or the overloads, the likeliest
    first. device: of new tensors. Raises NotRunnable."""
    if one.compiled and kernels is None:
        raise NotRunnable("a compiled kernel whose source was not taken along")
    if not one.compiled and one.name.partition("::")[0] not in NAMESPACES:
        raise NotRunnable("refused: its namespace is not one of these" if "::" in one.name else "a kernel that no operator launched")
    if one.inputs is None or (one.compiled and None in (one.inputs or [None])):
        raise NotRunnable("its arguments were not recorded")
    if one.compiled:
        return [partial(kernels.bind(one.compiled, one.name), *one.inputs)]
    wanted = one.schema.partition("(")[0].partition(".")[2]
    calls, problem = [], ""
    for schema in sorted(schemas(one), key=lambda s: s.overload_name != wanted if one.schema else 0):
        try:
            calls.append(matched(schema, one, device))
        except NotRunnable as error:
            problem = problem or str(error)
    if not calls:
        raise NotRunnable(problem or "this torch has no such operator")
    return calls


def schemas(one: Operator) -> list[Any]:
    """The overloads of an operator; none where torch knows no operator of that name."""
    with suppress(RuntimeError):
        return list(torch._C._jit_get_schemas_for_operator(one.name))
    return []


def is_composite(one: Operator) -> bool:
    """Whether any overload of the operator only calls other operators."""
    names = [f"{schema.name}.{schema.overload_name}".removesuffix(".") for schema in schemas(one)]
    with suppress(RuntimeError):  # known to TorchScript only
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") for name in names)
    return False


def matched(schema: Any, one: Operator, device: torch.device) -> partial[Any]:
    """The call of an overload with the recorded arguments, whose types torch checks itself. Raises NotRunnable where they do not fit."""
    arguments, inputs = schema.arguments, one.inputs or []
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    if not (schema.returns or writes) or any(a.name == "filename" for a in arguments):
        raise NotRunnable("refused: it names a file, or neither returns nor writes")
    if len(inputs) > len(arguments):
        raise NotRunnable("no overload takes so many arguments")
    has_tensor = any("Tensor" in str(a.type) for a in arguments)
    positional, named = list[Any](), dict[str, Any]()
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
        named.update({argument.name: value} if argument.kwarg_only else {})
        positional.extend([] if argument.kwarg_only else [value])
    return partial(torch._C._get_operation_overload(one.name, schema.overload_name)[0], *positional, **named)


class Memory:
    """The tensors of one rank: filled with random values where the step reads them first, otherwise what operators return.

    limit: bytes that they may take on the device. share: whether tensors of one type share memory and what operators return is discarded,
    so that caches hold more of the step than in the recording. slots: what is held now, by number.
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

    def nbytes(self, slot: int) -> int:
        dtype, shape, strides, *_ = self.tensors[slot]
        return 0 if 0 in shape else (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * getattr(torch, dtype).itemsize

    def get(self, slot: int) -> Any:
        """The tensor of a slot: what is held there, else one of random values."""
        if slot not in self.slots:
            name, shape, strides, offset, storage = self.tensors[slot]
            nbytes, side, bound = self.storages[storage]
            dtype, device = getattr(torch, name), torch.device("cpu") if side == "cpu" and self.on_accelerator else self.device
            key = (name, side, bound) if self.share else storage
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
    """Random values. Floats are small enough for matrix products to keep their magnitude, and not negative where the bound is above 1.
    Integers are in [0, bound), or ascend from 0 to -bound where the bound is negative."""
    if dtype == torch.bool:
        return torch.ones(count, dtype=dtype, device=device)
    if not dtype.is_floating_point and not dtype.is_complex:
        if bound < 0:
            return torch.linspace(0, -bound, count + 1, device=device)[:-1].to(dtype)
        return torch.randint(0, max(bound, 1), (count,), dtype=dtype, device=device)
    drawn = min(count, 1 << 20)  # large tensors repeat these values, because drawing all of them would take minutes
    sample = torch.randn(drawn, device=device) / math.sqrt(max(last, 1))
    sample = (sample.abs() if bound > 1 else sample).to(dtype)
    return sample.repeat(-(-count // drawn))[:count] if count > drawn else sample


class Transfers:
    """The process groups of the recording. Process p runs rank p, or where there are more processes than ranks, rank p modulo their
    number: a group of all ranks then spans all processes, each other group is repeated."""

    def __init__(self, trace: dict[str, Any], device: torch.device) -> None:
        self.ranks, self.processes = trace["world_size"], dist.get_world_size()
        self.first = dist.get_rank() // self.ranks * self.ranks  # the process of rank 0 of the same copy of the job
        running = set(range(min(self.ranks, self.processes)))
        self.own_ranks = trace["own_ranks"] and running <= {rank["rank"] for rank in trace["ranks"]}
        self.groups = [(self.group(ranks), len(ranks) or self.ranks) for ranks in trace["groups"]] + [(dist.group.WORLD, self.ranks)]
        self.buffer = cache(lambda _, count, dtype: torch.zeros(count, dtype=getattr(torch, dtype), device=device))

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

    def bind(self, call: dict[str, Any]) -> partial[Any]:
        """What issues a transfer and returns what to wait on. Raises NotRunnable."""
        group, recorded = self.groups[max(call["group"], -1)]  # the last is all ranks
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
        issued: dict[str, Any] = {"group": group, "async_op": True}
        calls: dict[str, partial[Any]] = {
            "all-reduce": partial(dist.all_reduce, source, **issued),
            "all-gather": partial(dist.all_gather, list(target.chunk(size)), source, **issued),
            "reduce-scatter": partial(dist.reduce_scatter_tensor, target, source, **issued),
            "all-to-all": partial(dist.all_to_all_single, target, source, parts_out or None, parts_in or None, **issued),
            "broadcast": partial(dist.broadcast, source, src=there, **issued),
            "reduce": partial(dist.reduce, source, dst=there, **issued),
            "send": partial(dist.isend, source, dst=there, group=group),
            "receive": partial(dist.irecv, target, src=there, group=group),
            "barrier": partial(dist.barrier, **issued),
        }
        if kind not in calls:
            raise NotRunnable(f"a transfer of kind {kind}")
        return calls[kind]


class Step:
    """One rank's step: what runs for every recorded operator, in which order, with which memory."""

    def __init__(self, trace: dict[str, Any], rank: dict[str, Any], device: torch.device, mode: str, limit: float) -> None:
        self.rank, self.device, self.mode, self.on_gpu = rank, device, mode, device.type == "cuda"
        self.operators = [Operator(number, one) for number, one in enumerate(rank["operators"])]
        for one in self.operators:
            one.inner = self.operators[one.number : one.number + one.size]
            one.on_device_ns = sum(inner.device_ns for inner in one.inner)
        self.memory = Memory(rank, device, limit)
        self.transfers = Transfers(trace, device) if dist.is_initialized() else None
        self.kernels: Any = importlib.import_module("kernels").Kernels(trace["kernels"], device) if trace["kernels"] else None
        self.written: set[int] = set()  # slots that operators of the step write
        self.streams: dict[int, Any] = {}
        self.synchronize: Callable[[], None] = cuda.synchronize if self.on_gpu else lambda: None
        self.cycles_per_ns = calibrate() if self.on_gpu else 0.0

    def rehearse(self) -> None:
        """Run everything once, and keep what could run. Transfers follow at the end, in the same order on all ranks."""
        try:
            items = self.rehearsed(self.operators)
        except MemoryError:
            self.memory.clear(share=True)
            self.written.clear()
            items = self.rehearsed(self.operators)
        self.items = [item for item in items if self.mode != "communication" or item.collective]
        works = []
        for item in self.items:
            if self.mode == "compute" and item.collective is not None:
                item.role, item.reason, item.call = "left out", "not part of --mode compute", lambda: None
            elif item.role == "transfer":
                try:
                    works.append(item.call())
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
        items, at = [], 0
        while at < len(operators):
            one = operators[at]  # those that it called follow it
            at += one.size
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
                one.call = self.transfers.bind(one.collective)
            elif one.synchronize:
                one.call = self.synchronize
            else:
                self.memory.claim(sum(self.memory.nbytes(slot) for slot in one.outputs or ()))
                one.call = next((call for call in calls_of(one, self.device, self.kernels) if self.works(one, call)), None)
            return one.call is not None
        except (MemoryError, torch.OutOfMemoryError) as error:
            if not self.memory.share:
                raise MemoryError from error
            one.reason = "its tensors do not fit into memory"
        except (NotRunnable, *FAILURES) as error:  # the source of a kernel may raise any
            one.reason = str(error) if isinstance(error, NotRunnable) else failure(error)
        return False

    def works(self, one: Operator, call: partial[Any]) -> bool:
        """Run a call once; whether it did not fail."""
        try:
            out = self.with_tensors(call)()
        except FAILURES as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            one.reason = failure(error)
            return False
        made = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in leaves(out, torch.Tensor)]
        if one.outputs is not None and made != [self.memory.tensors[slot][:2] for slot in one.outputs]:
            one.outputs = []  # the shape of the result may depend on values, which are random here
        self.keep(one, out)
        return True

    def arrange(self) -> None:
        """Set gaps, waits and releases for all items."""
        self.changing = self.written - self.memory.leaves
        place_of = {inner.number: at for at, item in enumerate(self.items) for inner in item.inner}
        latest = self.items[0].start_ns - self.rank["before_ns"] if self.items else 0
        done = 0
        for at, one in enumerate(self.items):
            one.sources = [place_of[n] for inner in one.inner for n in inner.after if place_of.get(n, at) < at]
            ended = [call["end_ns"] for source in one.sources if (call := self.items[source].collective)]
            one.gap = 0 if self.mode == "communication" or one.start_ns < 0 else max(0, one.start_ns - max([latest, *ended]))
            latest = max(latest, one.start_ns + one.duration_ns)
            gone = (slot for passed in self.operators[done : one.number + one.size] for slot in passed.last)
            one.release = [slot for slot in gone if slot < 0 or slot in self.changing]
            done = one.number + one.size
        self.awaited = {source for item in self.items for source in item.sources}

    def prepare(self, one: Operator) -> Callable[[], Callable[[], Any]]:
        """What finds the call of one item, ahead of each call. Arguments that no operator of the step writes are looked up only once."""
        call = self.stand_in(one) if one.role == "stand-in" else one.call
        if one.role == "real" and not self.changing.isdisjoint(leaves(one.inputs, Ref)):
            return partial(self.with_tensors, call)
        call = self.with_tensors(call)
        return lambda: call

    def stand_in(self, one: Operator) -> Callable[[], Any]:
        """A spin of the measured duration, on the CPU and for launched work on the device. It returns when a replaced transfer ends."""
        on_cpu = max(one.duration_ns if one.collective is None else 0, 0 if self.on_gpu else one.on_device_ns)
        cycles = int(one.on_device_ns * self.cycles_per_ns)
        takes = max(one.collective["end_ns"] - one.start_ns if one.collective else 0, 0)

        def spin() -> int:
            began = time.perf_counter_ns()
            if cycles:
                cuda._sleep(cycles)
            wait(began + on_cpu)
            return began + takes

        return spin

    def with_tensors(self, value: Any) -> Any:
        """A call, or an argument, with tensors in place of their slots."""
        if isinstance(value, partial):
            return partial(value.func, *map(self.with_tensors, value.args), **{k: self.with_tensors(v) for k, v in value.keywords.items()})
        if isinstance(value, list):
            return [self.with_tensors(item) for item in value]
        return self.memory.get(value) if isinstance(value, Ref) else value

    def keep(self, one: Operator, out: Any) -> None:
        """Put what an operator returned into the slots from which later operators read it."""
        if one.name.startswith("aten::empty") and isinstance(out, torch.Tensor) and not out.dtype.is_floating_point:
            out.zero_()  # new memory can contain any integer, and this one may be used as an index
        if self.memory.share:
            return
        if one.outputs is None and one.backward > one.number:
            self.memory.slots[-1 - one.number] = out
        for slot, tensor in zip(one.outputs or (), leaves(out, torch.Tensor), strict=False):
            if slot not in self.memory.leaves:
                self.memory.slots[slot] = tensor
                self.written.add(slot)

    def run(self) -> int:
        """Run the step once, together with all processes, and return its wall time in ns."""
        if dist.is_initialized():
            dist.barrier()
        kept, clock = self.memory.slots, time.perf_counter_ns
        works, events = dict[int, Any](), dict[int, Any]()
        began = end = clock()
        for at, (one, found) in enumerate(zip(self.items, self.prepared, strict=True)):
            for source in (source for source in one.sources if source in works):
                wait(works.pop(source))
                end = clock()
            call = found()  # within the pause, in which the recorded program found its tensors too
            wait(end + one.gap)
            start = clock()
            out = self.on_stream(at, one, call, events) if self.on_gpu else call()
            end = clock()
            one.elapsed += end - start
            if one.role == "real":
                self.keep(one, out)
            elif one.collective:
                works[at] = out
            del out, call
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
            for source in (source for source in one.sources if source in events):
                cuda.current_stream().wait_event(events[source])
            out = call()
            if at in self.awaited:
                events[at] = cuda.current_stream().record_event()
        return out


def failure(error: Exception) -> str:
    return f"it failed here: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"


def wait(work: Any) -> None:
    """Wait for a transfer, or until a time (an int)."""
    if isinstance(work, int):
        while time.perf_counter_ns() < work:
            pass
    elif work is not None:
        work.wait()


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
    trace["own_ranks"] = options.rank is None  # whether each process runs its own rank
    processes, process, local = (int(os.environ.get(name, value)) for name, value in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    device = torch.device(options.device, local) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        cuda.set_device(device)
    if processes > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    by_rank = {rank["rank"]: rank for rank in trace["ranks"]}
    wanted = trace["ranks"][process % len(by_rank)]["rank"] if options.rank is None else options.rank
    if wanted not in by_rank:
        sys.exit(f"benchmark: rank {wanted} is not in trace.json, which has {sorted(by_rank)}")
    rank = by_rank[wanted]
    torch.set_num_threads(options.threads or rank["threads"] or torch.get_num_threads())
    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # random values, unlike trained ones, may shrink to denormals, which are very slow on CPUs
    on_host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / processes
    limit = options.max_memory or trace["max_memory_bytes"] or 0.8 * (on_host if device.type == "cpu" else cuda.mem_get_info()[0])
    with torch.no_grad():
        before = held(device, "VmHWM")
        step = Step(trace, rank, device, options.mode, limit)
        step.rehearse()
        result = measured(step, options.warmup, options.repeat) | {"peak_memory_bytes": held(device, "VmHWM") - before}
        for folder in filter(None, (options.profile, options.json)):
            folder.mkdir(parents=True, exist_ok=True)
        if options.profile:
            schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
            with torch.profiler.profile(schedule=schedule, record_shapes=True) as profiler:
                for _ in range(4):
                    step.run()
                    profiler.step()
            profiler.export_chrome_trace(str(options.profile / f"rank{process}.json"))
    if options.json:
        (options.json / f"result{process}.json").write_text(json.dumps(result))
    if process == 0:
        recorded = f"{rank['recorded_ns'] / 1e6:.3f}" if rank["recorded_ns"] > 0 else "unknown"
        print(f"step {statistics.median(result['repetitions_ns']) / 1e6:.3f} ms here, {recorded} ms recorded")
        not_real = Counter(f"{row['outcome']:9s} {row['name'][:80]}: {row['reason'][:80]}" for row in result["items"] if row["reason"])
        for text, count in not_real.items():
            print("".join(c if c.isprintable() else "?" for c in f"{count:7d} x {text}"))
    if processes > 1:
        del step  # operators refer to themselves and to process groups, whose threads must end before the process does
        gc.collect()
        dist.destroy_process_group()


def measured(step: Step, warmup: int, repeat: int) -> dict[str, Any]:
    """Wall times of the measured steps and the processor time of this process in each, ns; and what ran."""
    for _ in range(warmup):
        step.run()
    for item in step.items:
        item.elapsed = 0
    began = time.process_time_ns()
    times, clocks = zip(*((step.run(), time.process_time_ns()) for _ in range(repeat)), strict=True)
    busy = [now - before for before, now in zip((began, *clocks), clocks, strict=False)]
    rows = []
    for one in (item for item in step.items if item.role != "synchronize"):
        recorded = max(one.duration_ns, one.on_device_ns)
        row = {"name": one.name, "role": one.role, "recorded_ns": recorded, "replayed_ns": one.elapsed // repeat}
        known = one.role == "stand-in" and (recorded or one.start_ns >= 0)  # else there is nothing to do in its place
        outcome = "real" if one.role in ("real", "transfer") else "stand_in" if known else "skipped"
        rows.append({**row, "outcome": outcome, "reason": "" if outcome == "real" else one.reason})
    where = {"rank": step.rank["rank"], "device": cuda.get_device_name() if step.on_gpu else "cpu", "on_gpu": step.on_gpu}
    times_of = {"recorded_ns": step.rank["recorded_ns"], "repetitions_ns": times, "processor_ns": busy, "items": rows}
    memory = {"limit_bytes": step.memory.limit, "shared": step.memory.share}
    return {**where, **times_of, "torch": torch.__version__, "mode": step.mode, "memory": memory}


if __name__ == "__main__":
    main()
