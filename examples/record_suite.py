"""Record ground truth on one GPU: training steps at many settings, traced and untraced, and microbenchmarks.

    python examples/record_suite.py --out examples/h200                    everything
    python examples/record_suite.py --out examples/h200 --seconds 500      as much as fits; run it again to continue
    python examples/record_suite.py --out /tmp/try --device cpu --scale tiny   every setting in small, on the CPU

Each setting changes one thing from a base: four blocks of the 15B GPT-3 of the Lumos paper (arXiv 2504.09307, table 2:
hidden 6144, ffn 12288, 48 heads of 128), sequence 2048, micro-batch 2, the shapes of one of four tensor-parallel ranks
sharded as Megatron does (arXiv 1909.08053, section 3), bfloat16 parameters, fused AdamW. Only the compute of one rank runs, and
no collective. A step is forward and backward over the blocks with a fixed input and a fixed output gradient, then the optimizer;
it ends when the device is idle, like a step of a loop that reads its loss.

Written under --out as it goes: `recording.json` (device, driver, versions, command), `steps.csv` with one
`SETTING/rank0.json.gz` each, `gemm.csv`, `attention.csv`, `normalisation.csv`, `copy.csv`. Needs torch and lumos.collect only.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import gc
import json
import math
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lumos.collect

UNTRACED_STEPS, TRACED_STEPS, WARM_UP_STEPS = 20, 3, 3
MAX_TRACE_BYTES = 1_000_000
DTYPE = torch.bfloat16
SOURCE = "lumos examples/record_suite.py"


# ---------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """One program. Attention width is heads x head_dim, which in the paper's wider variants is not hidden."""

    name: str
    block: str = "gpt"  # gpt, llama (grouped queries, SwiGLU, RMSNorm), moe (llama with routed experts)
    layers: int = 4
    hidden: int = 6144
    ffn: int = 12288
    heads: int = 48
    kv_heads: int = 48
    head_dim: int = 128
    experts: int = 0
    experts_per_token: int = 0
    seq: int = 2048
    micro_batch: int = 2
    tp: int = 4
    accumulation: int = 1
    recompute: bool = False
    cuda_graph: bool = False
    overlap: bool = False


BASE = Setting("base")
#: Meta-Llama-3-8B config.json, and Mixtral-8x7B's (the same attention; eight experts of that width, two per token).
LLAMA = replace(BASE, name="llama3-8b", block="llama", layers=1, hidden=4096, ffn=14336, heads=32, kv_heads=8, tp=1)
MOE = replace(LLAMA, name="moe", block="moe", experts=8, experts_per_token=2)
#: Kernels of a few microseconds, so that the CPU's launches set the step.
LAUNCH_BOUND = replace(
    BASE, name="launch-bound", layers=8, hidden=256, ffn=512, heads=4, kv_heads=4, head_dim=64, seq=64, micro_batch=1, tp=1
)

SETTINGS = (
    BASE,
    *(replace(BASE, name=f"layers-{n}", layers=n) for n in (2, 8)),
    *(replace(BASE, name=f"hidden-{n}", hidden=n, ffn=2 * n) for n in (3072, 9216, 12288)),
    *(replace(BASE, name=f"seq-{n}", seq=n) for n in (1024, 4096)),
    *(replace(BASE, name=f"micro-batch-{n}", micro_batch=n) for n in (1, 4)),
    *(replace(BASE, name=f"tp-{n}", tp=n) for n in (1, 2, 8)),
    replace(BASE, name="recompute", recompute=True),
    replace(BASE, name="accumulation-4", accumulation=4),
    LLAMA,
    MOE,
    replace(BASE, name="cuda-graph", cuda_graph=True),
    replace(BASE, name="overlap", overlap=True),
    LAUNCH_BOUND,
    replace(BASE, name="base-again"),  # how far the device drifted while the others ran
)


def tiny(s: Setting) -> Setting:
    """The same program with every width and the sequence divided by 32, for a CPU."""
    return replace(s, hidden=s.hidden // 32, ffn=s.ffn // 32, head_dim=s.head_dim // 32, seq=s.seq // 32)


# ---------------------------------------------------------------- model


class RMSNorm(nn.Module):
    """arXiv 1910.07467; as Llama computes it, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Attention(nn.Module):
    """One tensor-parallel rank's heads: column-parallel projections in, row-parallel out."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.heads // s.tp, s.kv_heads // s.tp, s.head_dim
        self.rotary = s.block != "gpt"
        bias = s.block == "gpt"
        self.inputs = nn.Linear(s.hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        self.output = nn.Linear(self.heads * self.head_dim, s.hidden, bias=bias)
        angles = torch.outer(torch.arange(s.seq), 500_000.0 ** (-torch.arange(0, s.head_dim, 2) / s.head_dim))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * self.cosine - odd * self.sine, even * self.sine + odd * self.cosine), -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        joined = self.inputs(x).view(batch, seq, -1, self.head_dim).transpose(1, 2)
        query, key, value = joined.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.rotary:
            query, key = self.rotate(query), self.rotate(key)
        if self.kv_heads != self.heads:
            key, value = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).reshape(batch, seq, -1))


class MLP(nn.Module):
    """GELU with biases (GPT), or SwiGLU without (Llama, and every expert): column-parallel up, row-parallel down."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.gated = s.block != "gpt"
        self.up = nn.Linear(s.hidden, s.ffn // s.tp * (2 if self.gated else 1), bias=not self.gated)
        self.down = nn.Linear(s.ffn // s.tp, s.hidden, bias=not self.gated)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down(functional.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class Experts(nn.Module):
    """Routed experts, none dropped: tokens sorted by expert, the counts read back to the CPU, one MLP call per expert."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.per_token = s.experts_per_token
        self.router = nn.Linear(s.hidden, s.experts, bias=False)
        self.experts = nn.ModuleList(MLP(s) for _ in range(s.experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.per_token, dim=-1)
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        sent = (order // self.per_token).split(counts)
        shares = weights.flatten()[order].split(counts)
        out = torch.zeros_like(tokens)
        for expert, rows, share in zip(self.experts, sent, shares, strict=True):
            out = out.index_add(0, rows, expert(tokens[rows]) * share[:, None])
        return out.view_as(x)


class Block(nn.Module):
    """A pre-norm decoder layer of one tensor-parallel rank; both norms and the residual stream are replicated."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        norm = nn.LayerNorm if s.block == "gpt" else RMSNorm
        self.norm_attention, self.norm_mlp = norm(s.hidden), norm(s.hidden)
        self.attention = Attention(s)
        self.mlp = Experts(s) if s.block == "moe" else MLP(s)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


# ---------------------------------------------------------------- one training step


def training_step(s: Setting, device: torch.device) -> Callable[[], None]:
    """Allocate the program of `s`, and return what runs one of its steps."""
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    with device:
        blocks = nn.ModuleList(Block(s) for _ in range(s.layers)).to(DTYPE)
        x = torch.randn(s.micro_batch, s.seq, s.hidden, dtype=DTYPE, requires_grad=True)
        gradient = torch.randn_like(x)
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-5, fused=on_gpu or None, capturable=on_gpu and s.cuda_graph)
    copies = SideCopies(x, s.layers) if s.overlap and on_gpu else None

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        x.grad = None
        for _ in range(s.accumulation):
            y: Tensor = x
            if copies:
                copies.prefetch()
            for index, block in enumerate(blocks):
                y = checkpoint(block, y, use_reentrant=False) if s.recompute else block(y)
                if copies:
                    copies.offload(index, y)
            y.backward(gradient)
            if copies:
                copies.take(x)
        optimizer.step()

    return captured(step, optimizer) if s.cuda_graph and on_gpu else step


class SideCopies:
    """Traffic on a stream of its own: the next input comes from pinned memory, each block's output goes there.

    Every hand-over between the streams is an event recorded on one and awaited by the other.
    """

    def __init__(self, x: Tensor, layers: int) -> None:
        self.stream = torch.cuda.Stream()
        self.staged = torch.empty_like(x, requires_grad=False)
        self.source = x.detach().cpu().pin_memory()
        self.sinks = [torch.empty_like(self.source).pin_memory() for _ in range(layers)]
        self.arrived, self.taken = torch.cuda.Event(), torch.cuda.Event()

    def prefetch(self) -> None:
        self.stream.wait_event(self.taken)
        with torch.cuda.stream(self.stream):
            self.staged.copy_(self.source, non_blocking=True)
            self.arrived.record()

    def offload(self, index: int, y: Tensor) -> None:
        self.stream.wait_event(torch.cuda.current_stream().record_event())
        with torch.cuda.stream(self.stream):
            self.sinks[index].copy_(y.detach(), non_blocking=True)
        y.record_stream(self.stream)

    def take(self, x: Tensor) -> None:
        torch.cuda.current_stream().wait_event(self.arrived)
        with torch.no_grad():
            x.copy_(self.staged)
        self.taken.record()


def captured(step: Callable[[], None], optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """The step as one CUDA graph, captured as torch's notes on CUDA graphs prescribe: warmed up on a side stream first."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# ---------------------------------------------------------------- steps, untraced and traced


def record_setting(s: Setting, device: torch.device, folder: Path) -> dict[str, Any]:
    """Time `s` without the profiler, then trace it; the row of steps.csv. Spread: interquartile range over median."""
    release_memory()
    step = training_step(s, device)
    for _ in range(WARM_UP_STEPS):
        timed_step(step, device)
    untraced = [timed_step(step, device) for _ in range(UNTRACED_STEPS)]
    steps, traced, path = traced_steps(step, device, folder / s.name)
    quartiles = statistics.quantiles(untraced, n=4)
    return {
        "setting": s.name,
        "untraced_median_ns": round(statistics.median(untraced)),
        "untraced_spread": round((quartiles[2] - quartiles[0]) / statistics.median(untraced), 5),
        "untraced_steps": len(untraced),
        "traced_median_ns": round(statistics.median(traced)),
        "traced_steps": steps,
        "trace": str(path.relative_to(folder)),
        "trace_bytes": path.stat().st_size,
        **{key: value for key, value in asdict(s).items() if key != "name"},
        "untraced_ns": " ".join(map(str, untraced)),
        "traced_ns": " ".join(map(str, traced)),
        "notes": "eager: no graphs and streams on the CPU" if device.type == "cpu" and (s.cuda_graph or s.overlap) else "",
    }


STEP_COLUMNS = (
    *("setting", "untraced_median_ns", "untraced_spread", "untraced_steps"),
    *("traced_median_ns", "traced_steps", "trace", "trace_bytes"),
    *(field.name for field in fields(Setting) if field.name != "name"),
    *("untraced_ns", "traced_ns", "notes"),
)


def timed_step(step: Callable[[], None], device: torch.device) -> int:
    """Nanoseconds from an idle device to an idle device."""
    began = time.perf_counter_ns()
    step()
    synchronize(device)
    return time.perf_counter_ns() - began


def traced_steps(step: Callable[[], None], device: torch.device, folder: Path) -> tuple[int, list[int], Path]:
    """Profile TRACED_STEPS steps, or fewer where the trace would be larger than MAX_TRACE_BYTES."""
    for count in range(TRACED_STEPS, 0, -1):
        times = []
        with lumos.collect.profile(folder, steps=count, warmup=2, align=False) as recording:
            for _ in range(2 + count):
                times.append(timed_step(step, device))
                recording.step()
        if recording.path is None:
            raise RuntimeError(f"{folder.name}: the profiler wrote nothing: {recording.failure}")
        if recording.path.stat().st_size <= MAX_TRACE_BYTES:
            return count, times[2:], recording.path
    raise RuntimeError(f"{folder.name}: the trace of one step is over {MAX_TRACE_BYTES} bytes")


def release_memory() -> None:
    """Free the memory of the previous setting."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------- microbenchmarks


def microseconds(work: Callable[[], object], device: torch.device) -> float:
    """Median time of one of several calls without pauses between them: device time by CUDA events, else wall time.

    The device sleeps while the CPU queues the calls, so that launching does not count. Operands stay in the cache as the last call
    left them, as in training, where a kernel reads what the one before it wrote.
    """
    for _ in range(3):
        work()
    synchronize(device)
    began = time.perf_counter()
    work()
    launched = time.perf_counter() - began
    synchronize(device)
    once = time.perf_counter() - began
    calls = max(2, min(50, math.ceil(0.004 / once)))
    return round(statistics.median(_batch(work, calls, launched, device) for _ in range(5)) / calls, 4)


def _batch(work: Callable[[], object], calls: int, launched: float, device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - began) * 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # Twice the launching time in cycles of at most 2 GHz.
    torch.cuda._sleep(int(launched * calls * 2 * 2e9))
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


@dataclass(frozen=True)
class Point:
    """One row of a microbenchmark. `table` and `key` name it; `run` measures it and returns the row."""

    table: str
    key: str
    run: Callable[[torch.device], dict[str, Any]]


TABLES = {
    "gemm.csv": "id,source,url,gpu,dtype,m,n,k,time_us,tflops,kernel,notes",
    "attention.csv": "id,source,url,gpu,dtype,direction,causal,batch,seq_len,heads,kv_heads,head_dim,time_us,tflops,kernel,notes",
    "normalisation.csv": "id,source,url,gpu,dtype,direction,rows,width,time_us,gb_per_s,kernel,notes",
    "copy.csv": "id,source,url,gpu,kind,bytes,time_us,gb_per_s,kernel,notes",
}


def points(scale: str) -> list[Point]:
    """Every microbenchmark, in a fixed random order, so that a part of them covers the grid evenly."""
    small = scale == "tiny"
    everything = [*gemm_points(small), *attention_points(small), *normalisation_points(small), *copy_points(small)]
    random.Random(0).shuffle(everything)
    return everything


def gemm_points(small: bool) -> Iterator[Point]:
    rows = (16, 64) if small else (64, 256, 1024, 2048, 4096, 8192, 16384)
    widths = (32, 96) if small else (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
    for m, n, k, form in product(rows, widths, widths, ("fwd", "dgrad", "wgrad")):
        yield Point("gemm.csv", f"gemm-{form}-{m}-{n}-{k}", partial(gemm, form=form, tokens=m, out=n, inner=k))


def gemm(device: torch.device, form: str, tokens: int, out: int, inner: int) -> dict[str, Any]:
    """A linear layer's three products, as torch lays them out; m, n, k are those of the product: [m, k] x [k, n]."""
    x = torch.randn(tokens, inner, device=device, dtype=DTYPE)
    weight = torch.randn(out, inner, device=device, dtype=DTYPE)
    dy = torch.randn(tokens, out, device=device, dtype=DTYPE)
    left, right = {"fwd": (x, weight.t()), "dgrad": (dy, weight), "wgrad": (dy.t(), x)}[form]
    (m, k), n = left.shape, right.shape[1]
    result = torch.empty(m, n, device=device, dtype=DTYPE)
    time_us = microseconds(lambda: torch.mm(left, right, out=result), device)
    tflops = round(2 * m * n * k / time_us / 1e6, 3)
    return {"dtype": "bfloat16", "m": m, "n": n, "k": k, "time_us": time_us, "tflops": tflops, "kernel": f"torch.mm {form}"}


def attention_points(small: bool) -> Iterator[Point]:
    seqs = (32, 64) if small else (512, 1024, 2048, 4096, 8192, 16384)
    batches = (1, 2) if small else (1, 2, 4, 8, 16)
    heads = (4,) if small else (6, 12, 24, 48)
    dims = (16,) if small else (64, 128)
    for seq, batch, h, d in product(seqs, batches, heads, dims):
        if batch * seq > 32768:
            continue
        for causal, direction in product(("yes", "no"), ("fwd", "bwd", "fwd+bwd")):
            measure = partial(attention, direction=direction, causal=causal, batch=batch, seq=seq, heads=h, dim=d)
            yield Point("attention.csv", f"attention-{direction}-{causal}-{batch}-{seq}-{h}-{d}", measure)


def attention(device: torch.device, direction: str, causal: str, batch: int, seq: int, heads: int, dim: int) -> dict[str, Any]:
    """scaled_dot_product_attention. TFLOP/s: two products forward, five backward (arXiv 2307.08691), causal counted half."""
    query, key, value = (torch.randn(batch, heads, seq, dim, device=device, dtype=DTYPE, requires_grad=True) for _ in range(3))
    gradient = torch.randn_like(query)

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal == "yes")

    out = forward()
    work: Callable[[], object] = {
        "fwd": forward,
        "bwd": lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True),
        "fwd+bwd": lambda: torch.autograd.grad(forward(), (query, key, value), gradient),
    }[direction]
    products = {"fwd": 2, "bwd": 5, "fwd+bwd": 7}[direction]
    time_us = microseconds(work, device)
    flops = products * 2 * batch * heads * seq * seq * dim / (2 if causal == "yes" else 1)
    shape = {"batch": batch, "seq_len": seq, "heads": heads, "kv_heads": heads, "head_dim": dim}
    measured = {"time_us": time_us, "tflops": round(flops / time_us / 1e6, 3), "kernel": "torch scaled_dot_product_attention"}
    return {"dtype": "bfloat16", "direction": direction, "causal": causal, **shape, **measured}


def normalisation_points(small: bool) -> Iterator[Point]:
    rows = (16, 64) if small else (256, 1024, 4096, 16384, 65536)
    widths = (64,) if small else (1024, 2048, 3072, 4096, 6144, 9216, 12288)
    for r, width, direction in product(rows, widths, ("fwd", "bwd")):
        measure = partial(normalisation, direction=direction, rows=r, width=width)
        yield Point("normalisation.csv", f"layer_norm-{direction}-{r}-{width}", measure)


def normalisation(device: torch.device, direction: str, rows: int, width: int) -> dict[str, Any]:
    """LayerNorm. Bytes: forward reads and writes the activation once; backward reads two and writes one."""
    x = torch.randn(rows, width, device=device, dtype=DTYPE, requires_grad=True)
    weight = torch.ones(width, device=device, dtype=DTYPE, requires_grad=True)
    bias = torch.zeros(width, device=device, dtype=DTYPE, requires_grad=True)
    gradient = torch.randn_like(x)

    def forward() -> Tensor:
        return functional.layer_norm(x, (width,), weight, bias)

    out = forward()
    backward = lambda: torch.autograd.grad(out, (x, weight, bias), gradient, retain_graph=True)  # noqa: E731 - the pair reads as one
    time_us = microseconds(forward if direction == "fwd" else backward, device)
    moved = rows * width * DTYPE.itemsize * (2 if direction == "fwd" else 3)
    speed = round(moved / time_us / 1e3, 3)
    row = {"dtype": "bfloat16", "direction": direction, "rows": rows, "width": width}
    return {**row, "time_us": time_us, "gb_per_s": speed, "kernel": "torch layer_norm"}


def copy_points(small: bool) -> Iterator[Point]:
    kinds = ("device-to-device", "pinned-to-device", "device-to-pinned", "pageable-to-device", "device-to-pageable")
    for exponent, kind in product((12, 14) if small else range(12, 31, 2), kinds):
        yield Point("copy.csv", f"copy-{kind}-{1 << exponent}", partial(copy, kind=kind, size=1 << exponent))


def copy(device: torch.device, kind: str, size: int) -> dict[str, Any]:
    """`size` bytes moved once; a copy within the device reads and writes them."""

    def place(where: str) -> Tensor:
        pinned = where == "pinned" and device.type == "cuda"
        return torch.zeros(size, dtype=torch.uint8, device=device if where == "device" else "cpu", pin_memory=pinned)

    source, sink = (place(where) for where in kind.split("-to-"))
    time_us = microseconds(lambda: sink.copy_(source, non_blocking=True), device)
    speed = round(size / time_us / 1e3, 3)
    return {"kind": kind, "bytes": size, "time_us": time_us, "gb_per_s": speed, "kernel": "torch copy_"}


# ---------------------------------------------------------------- files


class Table:
    """A CSV that is written row by row. If the script was killed, an incomplete last line is removed when it is opened again."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, columns
        if path.exists():
            whole = path.read_text()
            path.write_text(whole[: whole.rfind("\n") + 1])
        if not path.exists() or path.stat().st_size == 0:
            path.write_text(",".join(columns) + "\n")
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != tuple(columns):
                raise SystemExit(f"{path}: its columns are not this script's; record into another folder")
            self.done = {row[columns[0]] for row in reader}

    def append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)
        self.done.add(row[self.columns[0]])


def machine(device: torch.device, scale: str) -> dict[str, Any]:
    """The device and versions that the figures depend on."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "device_bytes": torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
        "driver": _driver() if on_gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "python": platform.python_version(),
        "scale": scale,
    }


def _driver() -> str | None:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def claim(folder: Path, found: dict[str, Any]) -> None:
    """Write the machine's description into `folder`, or exit where another is there: a table must not mix machines or versions."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recording.json"
    if not path.exists():
        command = shlex.join(["python", f"examples/{Path(__file__).name}", *sys.argv[1:]])
        path.write_text(json.dumps({**found, "command": command}, indent=1) + "\n")
        return
    before = json.loads(path.read_text())
    changed = [f"{key} {before.get(key)} then, {value} now" for key, value in found.items() if before.get(key) != value]
    if changed:
        raise SystemExit(f"{folder} holds another machine's recording ({'; '.join(changed)}): give another --out")


# ---------------------------------------------------------------- the suite


def main() -> int:
    options = _arguments()
    device = torch.device(options.device)
    deadline = time.monotonic() + options.seconds
    found = machine(device, options.scale)
    claim(options.out, found)
    failed, left = [], 0
    for name, record in work(options, device, found["device"]):
        if time.monotonic() > deadline:
            left += 1
            continue
        try:
            record()
        except RuntimeError as error:  # go on with the others where this device cannot run one (memory, a missing kernel)
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        else:
            print(name, flush=True)
    print(f"{options.out}: {left} left (run again to continue), {len(failed)} failed {failed[:8]}")
    return 1 if failed else 0


def work(options: argparse.Namespace, device: torch.device, gpu: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is still to record, by name: the settings, then the microbenchmarks."""
    steps = Table(options.out / "steps.csv", STEP_COLUMNS)
    for s in SETTINGS:
        if s.name not in steps.done and fnmatch.fnmatch(s.name, options.only):
            sized = tiny(s) if options.scale == "tiny" else s
            yield s.name, lambda sized=sized: steps.append(record_setting(sized, device, options.out))
    tables = {name: Table(options.out / name, columns.split(",")) for name, columns in TABLES.items()}
    origin = {"source": SOURCE, "gpu": gpu, "notes": f"torch {torch.__version__}; median of 5 batches; operands as left in cache"}
    for point in points(options.scale):
        table = tables[point.table]
        if point.key not in table.done and fnmatch.fnmatch(point.key, options.only):
            yield point.key, lambda point=point, table=table: table.append({"id": point.key, **origin, **point.run(device)})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder of this device's recording")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing new after this long")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full", help="tiny: every width and sequence / 32")
    parser.add_argument("--only", default="*", metavar="GLOB", help="settings and microbenchmarks by name, as in 'hidden-*' or 'gemm-*'")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("this torch sees no CUDA device; --device cpu --scale tiny runs every setting in small")
    return options


if __name__ == "__main__":
    sys.exit(main())
