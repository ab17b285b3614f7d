"""An ordinary training script for several GPUs, which knows nothing of Lumos: a small Llama in plain PyTorch, sharded with FSDP2.

    torchrun --nproc-per-node 8 examples/train_llama.py [--layers N] [--width N] [--length N] [--batch N] [--item]

`examples/llama-8gpu` is what `lumos collect --emulate h100` makes of this command, on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

VOCABULARY, HEAD, GROUP = 32_000, 128, 4


class Attention(nn.Module):
    """Causal attention with positions as rotations; four heads of queries share one of keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // GROUP, bias=False)
        self.value = nn.Linear(width, width // GROUP, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query, key, value = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.query, self.key, self.value))
        query, key = (part * cosine + torch.cat((-part[..., HEAD // 2 :], part[..., : HEAD // 2]), -1) * sine for part in (query, key))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a gated feed-forward part, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        y = self.feed_forward_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """The model."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        frequencies = 10_000.0 ** -(torch.arange(0, HEAD, 2, device=tokens.device) / HEAD)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), frequencies).repeat(1, 2)
        x = self.embedding(tokens)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def main() -> None:
    arguments = argparse.ArgumentParser()
    for name, default in (("layers", 4), ("width", 2048), ("length", 2048), ("batch", 1), ("steps", 20)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    arguments.add_argument("--item", action="store_true", help="print the loss of every step")
    asked = arguments.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    with device:
        model = Llama(asked.layers, asked.width)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.layers, model):
        fully_shard(part, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(asked.steps):
        tokens = torch.randint(VOCABULARY, (asked.batch, asked.length + 1), device=device)
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if asked.item and dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
