"""A GPT whose layers are shared by tensor-parallel ranks, as Megatron's are, with replicas beside them: a subject of `validation.plans`.

    torchrun --nproc-per-node 8 validation/scripts/tensor_ranks.py --tp 4
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SIZES = {"layers": 6, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000, "seq": 2048, "batch": 2, "tp": 1, "steps": 4}


class _Copied(torch.autograd.Function):
    """What all ranks have; the gradients of their parts are added up."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    """The sum of what the ranks have."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Layer(nn.Module):
    """One rank's part of a layer."""

    def __init__(self, sizes: argparse.Namespace, group: Any) -> None:
        super().__init__()
        hidden, ranks = sizes.hidden, sizes.tp
        self.group, self.ranks, self.heads, self.width = group, ranks, sizes.heads // ranks, hidden // sizes.heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.project, self.out = nn.Linear(hidden, 3 * hidden // ranks), nn.Linear(hidden // ranks, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, sizes.ffn // ranks), nn.Linear(sizes.ffn // ranks, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.project(self._copied(self.first(x))).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, self.width).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        x = x + self._summed(self.out(mixed))
        return x + self._summed(self.down(functional.gelu(self.up(self._copied(self.second(x))))))

    def _copied(self, x: Tensor) -> Tensor:
        return _Copied.apply(x, self.group) if self.ranks > 1 else x

    def _summed(self, x: Tensor) -> Tensor:
        return _Summed.apply(x, self.group) if self.ranks > 1 else x


class Model(nn.Module):
    """Embedding, layers and head; all ranks have the whole embedding and the whole head."""

    def __init__(self, sizes: argparse.Namespace, group: Any) -> None:
        super().__init__()
        self.recompute = sizes.recompute
        self.embed, self.norm = nn.Embedding(sizes.vocab, sizes.hidden), nn.LayerNorm(sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes, group) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    for name, default in SIZES.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--recompute", action="store_true")
    sizes = p.parse_args()
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank % 8)
    layers = [dist.new_group(list(range(low, low + sizes.tp))) for low in range(0, world, sizes.tp)][rank // sizes.tp]
    replicas = [dist.new_group(list(range(first, world, sizes.tp))) for first in range(sizes.tp)][rank % sizes.tp]
    model: nn.Module = Model(sizes, layers).cuda().bfloat16()
    if world > sizes.tp:
        model = nn.parallel.DistributedDataParallel(model, process_group=replicas)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(sizes.steps):
        tokens, wanted = (torch.randint(0, sizes.vocab, (sizes.batch, sizes.seq), device="cuda") for _ in range(2))
        functional.cross_entropy(model(tokens).view(-1, sizes.vocab), wanted.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
