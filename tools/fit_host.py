"""Fit the host times of emulated runs to recorded ones, and say how well they add up to the time from launch to launch.

    LUMOS_TRACES=… python -m tools.fit_host

writes src/lumos/emulation/device/data/host.toml. In a recording of PyTorch's eager mode a thread runs operators inside operators, and
the runtime calls that they make. Every moment between two launches belongs to one class: a runtime call; the own time of an operator
that launches, of one that neither launches nor calls others (a view), of one that calls others, of which some launch or none, of a node of
the backward pass; the time between two operators, in which Python runs, or on the backward thread the engine. Where neither of the two
launches, as in work on the host or in a line of views, that time is a class of its own: a framework's own code lies around launches.

A class has one value in each recording: the mean of its own times without the tenth at either end, since means add up to the time from
launch to launch and what lies outside are waits. The value that is written is the median over the recordings, the spread their first
and third quartile. No time of a step is used.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.emulation.device.host import HostClass
from lumos.trace import read
from lumos.trace.table import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.trace.table import Trace

TARGET = Path(__file__).parents[1] / "src/lumos/emulation/device/data/host.toml"
HEADING = """# Host time by class, µs, written by tools/fit_host.py from recordings of PyTorch's eager mode; do not edit by hand.
# value: the median over the recordings; low, high: their first and third quartile.
"""
#: Recordings of eager PyTorch, one of each job, that have operators and runtime calls.
TRACES = (
    "h100-inference/bert-small", "h100-inference/vit-nsfw", "h100-inference/qwen1.5-0.5b", "vgg13-h100/kineto",
    "switch-moe-a100/forward-4x128-tokens", "resnet-ddp-a100/rank0", "dlrm-a100-rank3/rank3", "resnet-v100/rank0",
    "dlrm-8xv100/kineto-rank0", "resnet-2080ti/kineto", "critical-path/alexnet", "resnet-ddp-mi300x/rank0",
    "resnet50-v100-old-schema/workers0",
)  # fmt: skip
#: A class needs so many values in a recording, of which it drops this share at either end.
FEWEST, DROPPED = 10, 0.1
_CALLS = (
    (HostClass.LAUNCH, ("LaunchKernel", "ModuleLaunch", "cuLaunch")),
    (HostClass.COPY, ("MemcpyAsync", "MemsetAsync")),
    (HostClass.EVENT, ("EventRecord", "StreamWaitEvent")),
)
_NODES = ("autograd::engine::evaluate_function", "AccumulateGrad")


class Own(NamedTuple):
    """A stretch of a thread that belongs to one class. start: ns of the row that it is the own time of."""

    kind: HostClass
    ns: int
    start: int


class _Open:
    """A row whose end lies ahead: how much of it others took, and what they were. launches: it has launched something, or one that it
    called has. before: ns since the row before on its thread ended, -1 where it is not an outermost one with a row before; after_launch:
    that row had launched something."""

    def __init__(self, start: int, end: int, name: str, before: int = -1, after_launch: bool = False) -> None:
        self.start, self.end, self.name, self.before, self.after_launch = start, end, name, before, after_launch
        self.inner, self.operators, self.calls, self.launches = 0, 0, 0, False

    def closed(self) -> Iterator[Own]:
        """Its own time, and the time before it."""
        node = self.name.startswith(_NODES) or "Backward" in self.name
        outer = HostClass.OUTER if self.launches else HostClass.QUIET_OUTER
        inside = outer if self.operators else HostClass.LEAF if self.calls else HostClass.VIEW
        yield Own(HostClass.NODE if node else inside, max(0, self.end - self.start - self.inner), self.start)
        if self.before >= 0:
            python = HostClass.PYTHON if self.launches or self.after_launch else HostClass.QUIET_PYTHON
            yield Own(HostClass.ENGINE if self.name.startswith("autograd::engine") else python, self.before, self.start - self.before)


class _Thread:
    """The rows of one thread that are open, and the outermost one before them."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.last: _Open | None = None

    def close(self, until: int) -> Iterator[Own]:
        """Close the rows that end until then."""
        while self.open and self.open[-1].end <= until:
            done = self.open.pop()
            if self.open:
                self.open[-1].launches |= done.launches
            else:
                self.last = done
            yield from done.closed()

    def begin(self, start: int, end: int, name: str) -> None:
        """An operator begins."""
        before, after_launch = -1, False
        if self.open:
            self.open[-1].inner += end - start
            self.open[-1].operators += 1
        elif self.last is not None:
            before, after_launch = max(0, start - self.last.end), self.last.launches
        self.open.append(_Open(start, end, name, before, after_launch))

    def call(self, ns: int, launches: bool) -> None:
        """A call of the runtime."""
        if self.open:
            self.open[-1].inner += ns
            self.open[-1].calls += launches
            self.open[-1].launches |= launches


def stretches(trace: Trace) -> Iterator[Own]:
    """The own times of a recording's rows, and the times between operators, thread by thread."""
    operator, call = trace.is_any(Category.OPERATOR), trace.is_any(Category.RUNTIME)
    rows = np.flatnonzero(operator | call)
    threads: dict[int, _Thread] = defaultdict(_Thread)
    for row in rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))].tolist():
        thread, start, ns = threads[int(trace.lane[row])], int(trace.start[row]), int(trace.duration[row])
        name = trace.strings[trace.name[row]]
        yield from thread.close(start)
        if call[row]:
            kind = next((kind for kind, words in _CALLS if any(word in name for word in words)), None)
            thread.call(ns, kind in (HostClass.LAUNCH, HostClass.COPY))
            if kind is not None:
                yield Own(kind, ns, start)
        else:
            thread.begin(start, start + ns, name)
    for thread in threads.values():
        yield from thread.close(2**63)


def trimmed(values: list[int]) -> float:
    """The mean without the largest and the smallest tenth."""
    ordered = np.sort(values)
    cut = int(len(ordered) * DROPPED)
    return float(ordered[cut : len(ordered) - cut].mean())


def main() -> None:
    """Fit, write, and print how the classes add up to the time from launch to launch in each recording."""
    folder = Path(os.environ["LUMOS_TRACES"])
    found: dict[HostClass, list[float]] = defaultdict(list)
    recordings = {name: list(stretches(read(folder / f"{name}.json.gz").traces[0])) for name in TRACES}
    for rows in recordings.values():
        for kind in HostClass:
            values = [own.ns for own in rows if own.kind is kind]
            if len(values) >= FEWEST:
                found[kind].append(trimmed(values) / 1e3)
    lines = [HEADING]
    fitted = {}
    for kind in HostClass:
        low, value, high = np.percentile(found[kind], [25, 50, 75])
        fitted[kind] = float(value)
        lines.append(f"[{kind}]\nvalue = {value:.2f}\nlow = {low:.2f}\nhigh = {high:.2f}\nrecordings = {len(found[kind])}\n")
    TARGET.write_text("\n".join(lines), encoding="utf-8")
    for name, rows in recordings.items():
        launches = max(1, sum(own.kind is HostClass.LAUNCH for own in rows))
        kinds = {kind: [own.ns for own in rows if own.kind is kind] for kind in HostClass}
        modelled = sum(fitted[kind] * len(values) for kind, values in kinds.items()) / launches
        measured = sum(trimmed(values) * len(values) / 1e3 for values in kinds.values() if values) / launches
        print(f"{name:40} from launch to launch: recorded {measured:6.1f} us, by class {modelled:6.1f} us, {modelled / measured - 1:+.0%}")


if __name__ == "__main__":
    main()
