"""Train a small GPT under DistributedDataParallel and record a few steps with lumos.collect.

    python examples/record_gpt.py --out DIR          starts its own processes
    torchrun --nproc-per-node 2 examples/record_gpt.py --out DIR

With GPUs: NCCL, one process per GPU, bfloat16 autocast. Without: gloo, two processes on the CPU, float32.
DIR gets one Kineto file per rank; the step times, measured on rank 0, are printed as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lumos.collect


@dataclass(frozen=True)
class Settings:
    """One training run. Sizes are per process where a process has its own."""

    out: str
    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int
    micro_batch: int
    accumulation: int
    steps: int
    wait: int
    warmup: int
    processes: int
    threads: int
    bucket_mb: float


class Block(nn.Module):
    """A pre-norm decoder layer: causal attention, then an MLP of four times the width."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query_key_value, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(batch, seq, 3, self.heads, hidden // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(functional.gelu(self.up(self.norm_mlp(x))))


class GPT(nn.Module):
    """Token and position embeddings, decoder layers, a final norm and an output head of its own."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(s.vocab, s.hidden), nn.Embedding(s.seq, s.hidden)
        self.blocks = nn.ModuleList(Block(s.hidden, s.heads) for _ in range(s.layers))
        self.norm, self.head = nn.LayerNorm(s.hidden), nn.Linear(s.hidden, s.vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor], autocast: torch.dtype | None) -> None:
    """One optimizer step over `batches`, a micro-batch [micro_batch, seq + 1] each; gradients are reduced with the last."""
    device = batches[0].device.type
    optimizer.zero_grad(set_to_none=True)
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast(device, dtype=autocast) if autocast else contextlib.nullcontext():
                loss = model(batch[:, :-1], batch[:, 1:])
            (loss / len(batches)).backward()
    optimizer.step()


def train(rank: int, world_size: int, s: Settings) -> None:
    """The program of one rank; torch.distributed is initialised."""
    torch.manual_seed(rank)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    model = DistributedDataParallel(GPT(s).to(device), bucket_cap_mb=s.bucket_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=on_gpu or None)
    batches = [torch.randint(s.vocab, (s.micro_batch, s.seq + 1), device=device) for _ in range(s.accumulation)]

    seconds = []
    with lumos.collect.profile(s.out, steps=s.steps, warmup=s.warmup, wait=s.wait) as recording:
        for _ in range(s.wait + s.warmup + s.steps):
            began = time.perf_counter()
            train_step(model, optimizer, batches, torch.bfloat16 if on_gpu else None)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            recording.step()
    if rank == 0:
        untraced, traced = seconds[2 : s.wait], seconds[-s.steps :]
        print(json.dumps({"settings": {**asdict(s), "out": None}, "world_size": world_size, **_summary(untraced, traced)}))


def _summary(untraced: list[float], traced: list[float]) -> dict[str, object]:
    spread = (max(traced) - min(traced)) / statistics.median(traced)
    before = statistics.median(untraced) if untraced else None
    return {"untraced_median_s": before, "traced_s": traced, "traced_spread": spread}


def run(local_rank: int, s: Settings, store: str | None) -> None:
    """Join the process group (through `store`, or the launcher's environment), train, leave."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank)
    else:
        torch.set_num_threads(s.threads)
    backend = "nccl" if on_gpu else "gloo"
    if store is None:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=Path(store).as_uri(), rank=local_rank, world_size=s.processes)
    try:
        train(dist.get_rank(), dist.get_world_size(), s)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def main() -> None:
    s = _arguments()
    if "LOCAL_RANK" in os.environ:  # started by torchrun
        run(int(os.environ["LOCAL_RANK"]), s, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(s, str(Path(folder) / "rendezvous")), nprocs=s.processes)


def _arguments() -> Settings:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for the traces")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences per process and micro-batch")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=4, help="steps recorded")
    parser.add_argument("--wait", type=int, default=8, help="steps before the profiler is touched (the first two are not timed)")
    parser.add_argument("--warmup", type=int, default=2, help="steps with the profiler prepared but silent")
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads per process, on the CPU")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="DDP's gradient buckets")
    s = Settings(**vars(parser.parse_args()))
    for name, value in asdict(s).items():
        if not isinstance(value, str) and value < (0 if name in ("wait", "warmup") else 1):
            parser.error(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if s.hidden % s.heads:
        parser.error(f"--hidden {s.hidden} is no multiple of --heads {s.heads}")
    return s


if __name__ == "__main__":
    main()
