"""Hand-drawn traces: a few rows with times that a person can follow, written in a profiler's format and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Kind
from lumos.simulation.durations import scale
from lumos.trace import read
from lumos.trace.table import Job, Trace

THREAD, AUTOGRAD = 100, 200


class Drawing:
    """Rows of one rank's recording; times in whole microseconds."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rows: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
        self.rank = rank
        self._correlation = 0

    def row(self, cat: str, name: str, start: float, dur: float, tid: Any = THREAD, pid: Any = 1, **args: Any) -> Drawing:
        self.rows.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, "args": args})
        return self

    def op(self, name: str, start: float, dur: float, tid: int = THREAD, **args: Any) -> Drawing:
        return self.row("cpu_op", name, start, dur, tid, **args)

    def call(self, name: str, start: float, dur: float, tid: int = THREAD, correlation: int | None = None) -> Drawing:
        return self.row("cuda_runtime", name, start, dur, tid, correlation=self.correlate() if correlation is None else correlation)

    def correlate(self) -> int:
        self._correlation += 1
        return self._correlation

    def work(self, cat: str, name: str, start: float, dur: float, stream: int, correlation: int, **args: Any) -> Drawing:
        return self.row(cat, name, start, dur, stream, 0, stream=stream, device=0, correlation=correlation, **args)

    def launch(
        self, call: tuple[float, float], kernel: tuple[float, float], stream: int = 7, name: str = "kernel", tid: int = THREAD, **args: Any
    ) -> Drawing:
        """A launch call (start, dur) and the kernel (start, dur) that it launches."""
        correlation = self.correlate()
        self.call("cudaLaunchKernel", *call, tid=tid, correlation=correlation)
        return self.work("kernel", name, *kernel, stream, correlation, **args)

    def step(self, number: int, start: float, dur: float) -> Drawing:
        return self.row("user_annotation", f"ProfilerStep#{number}", start, dur)

    def copy(self, call: tuple[float, float], copy: tuple[float, float], name: str, nbytes: int, stream: int = 7) -> Drawing:
        correlation = self.correlate()
        self.call("cudaMemcpyAsync", *call, correlation=correlation)
        return self.work("gpu_memcpy", name, *copy, stream, correlation, bytes=nbytes)

    def write(self, folder: Path) -> Path:
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps({**self.header, "traceEvents": self.rows}))
        return path


@pytest.fixture
def trace(tmp_path: Path) -> Callable[[Drawing], Trace]:
    """Write one drawing and read it back."""
    return lambda drawing: read(str(drawing.write(tmp_path))).traces[0]


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """Write the drawings of several ranks and read them back as one job."""

    def make(*drawings: Drawing) -> Job:
        for drawing in drawings:
            drawing.write(tmp_path)
        return read(str(tmp_path))

    return make


@pytest.fixture
def draw() -> type[Drawing]:
    return Drawing


@pytest.fixture
def loop_time() -> Callable[[Trace, float], float]:
    """What the loop of a recording takes for a step in the long run with the kernels so many times as long, us."""

    def of(trace: Trace, factor: float) -> float:
        graph = rank_graph(trace)
        owners = members(scale(graph, graph.kind == Kind.KERNEL, factor))
        return steady(owners).step_time_ns / 1000

    return of
