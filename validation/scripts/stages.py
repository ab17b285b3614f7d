"""A GPT over the stages of a pipeline, by torch.distributed.pipelining: a subject of `validation.plans`.

    torchrun --nproc-per-node 4 validation/scripts/stages.py --microbatches 8 --schedule 1f1b
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

SIZES = {"layers": 8, "hidden": 2048, "heads": 16, "vocab": 32000, "seq": 1024, "batch": 2, "microbatches": 4, "steps": 4}
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.project, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        parts = self.project(self.first(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, hidden)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Stage(nn.Module):
    """The layers of one stage; the first embeds, the last has the head."""

    def __init__(self, sizes: argparse.Namespace, stage: int, stages: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocab, sizes.hidden) if stage == 0 else None
        self.layers = nn.ModuleList(Layer(sizes.hidden, sizes.heads) for _ in range(sizes.layers // stages))
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if stage == stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    for name, default in SIZES.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    sizes = p.parse_args()
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank % 8)
    model = Stage(sizes, rank, world).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = sizes.batch * sizes.microbatches
    kind = (torch.zeros(sizes.batch, sizes.seq, dtype=torch.long), torch.zeros(sizes.batch, sizes.seq, sizes.hidden).bfloat16())
    given = kind[1].cuda().requires_grad_() if rank else kind[0].cuda()
    last = torch.zeros(sizes.batch, sizes.seq, sizes.vocab).bfloat16().cuda()
    made = last if rank == world - 1 else kind[1].cuda().requires_grad_()
    stage = PipelineStage(model, rank, world, torch.device("cuda"), given, made)

    def loss(scores: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(scores.view(-1, sizes.vocab), wanted.view(-1))

    schedule = SCHEDULES[sizes.schedule](stage, sizes.microbatches, loss)
    for _ in range(sizes.steps):
        tokens = torch.randint(0, sizes.vocab, (batch, sizes.seq), device="cuda")
        if rank == 0:
            schedule.step(tokens)
        elif rank == world - 1:
            schedule.step(target=tokens)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
