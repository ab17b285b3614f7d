"""The run: the step, as often as it is asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from lumos.proxy.benchmark.device import calibrate, cuda, spin_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.proxy.benchmark.program import Item, Program


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
        function = item.function
        assert function is not None
        positional, named = program.passed(item)
        return lambda: function(*positional, **named)

    def stand_in(self, item: Item) -> Callable[[], Any]:
        """A spin of the measured duration, on the device for the work that was launched, and on the CPU; or a copy."""
        node = item.node
        if item.bytes:
            source = torch.zeros(max(item.bytes // 2, 1), dtype=torch.uint8, device=self.program.device)  # half is read, half is written
            target = torch.empty_like(source)
            return lambda: target.copy_(source)
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
