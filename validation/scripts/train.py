"""A small training script of several families of models, with the switches that users turn: the subject of `validation.scripted`.

    python validation/scripts/train.py --model gpt --batch 8
    torchrun --nproc-per-node 4 validation/scripts/train.py --model gpt --ddp
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal self-attention, fused or with its matrix of scores in memory."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A pre-norm layer of a transformer."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.attention, self.norms = Attention(width, heads, fused), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """A decoder of `layers` layers."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = a.recompute
        self.embed = nn.Embedding(a.vocab, a.width)
        self.layers = nn.ModuleList(Layer(a.width, a.heads, not a.materialised) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x))


class Convolutions(nn.Module):
    """Blocks of convolution, normalisation and activation on images of 64 x 64."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        sizes = [3, *(a.width // 4 * 2 ** min(i, 2) for i in range(a.layers))]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(m, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU()) for m, n in pairwise(sizes)
        )
        self.head = nn.Linear(sizes[-1], a.vocab)

    def forward(self, images: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            images = block(images)
            if i < 3:
                images = functional.max_pool2d(images, 2)
        return self.head(images.mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(a.vocab, a.width), nn.LSTM(a.width, a.width, a.layers, batch_first=True)
        self.head = nn.Linear(a.width, a.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


class Perceptron(nn.Module):
    """Linear layers with activations."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a.width, a.width) for _ in range(a.layers))
        self.head, self.dropout = nn.Linear(a.width, a.vocab), nn.Dropout(a.dropout)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(functional.relu(layer(x)))
        return self.head(x)


class Ranking(nn.Module):
    """Bags of embeddings beside dense features, as recommendation models have them."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10_000, a.width, mode="sum") for _ in range(a.layers))
        self.dense, self.over = nn.Linear(a.width, a.width), nn.Linear(a.width * (a.layers + 1), a.vocab)

    def forward(self, x: Tensor) -> Tensor:
        at = (x[:, :8].abs() * 1000).long() % 10_000
        return self.over(torch.cat([functional.relu(self.dense(x)), *(table(at) for table in self.tables)], 1))


MODELS = {"gpt": GPT, "cnn": Convolutions, "lstm": Recurrent, "mlp": Perceptron, "dlrm": Ranking}


def batch_of(a: argparse.Namespace, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    if a.model in ("gpt", "lstm"):
        tokens = torch.randint(a.vocab, (a.batch, a.length), device=device)
        return tokens, tokens.flatten()
    shape = (a.batch, 3, 64, 64) if a.model == "cnn" else (a.batch, a.width)
    return torch.randn(shape, device=device), torch.randint(a.vocab, (a.batch,), device=device)


def optimizer_of(a: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that was asked for."""
    if a.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}[a.adam]
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


def train(a: argparse.Namespace) -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    on_device = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_device else torch.device("cpu")
    if on_device:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if on_device else "gloo")
    model: nn.Module = MODELS[a.model](a).to(device)
    if a.fsdp:
        from torch.distributed.fsdp import fully_shard

        for layer in getattr(model, "layers", ()):
            fully_shard(layer)
        fully_shard(model)
    elif world > 1:
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=a.bucket_mb)
    if a.compile:
        model = torch.compile(model)
    optimizer = optimizer_of(a, model)
    autocast = torch.autocast(device.type, torch.bfloat16) if a.bf16 else contextlib.nullcontext()
    spent = [time.process_time()]
    for _ in range(a.steps):
        for _ in range(a.accumulate):
            inputs, targets = batch_of(a, device)
            with autocast:
                loss = functional.cross_entropy(model(inputs).flatten(0, -2), targets)
            (loss / a.accumulate).backward()
            if a.item:
                loss.item()
        if a.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spent.append(time.process_time())
    if a.time:
        print(statistics.median(after - before for before, after in pairwise(spent[3:])))
    if world > 1:
        dist.destroy_process_group()


def main() -> None:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", choices=MODELS, default="gpt")
    for name, default in (("layers", 4), ("width", 512), ("heads", 8), ("length", 256), ("vocab", 4096), ("batch", 8), ("steps", 12)):
        p.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("accumulate", 1), ("threads", 1)):
        p.add_argument(f"--{name}", type=int, default=default)
    for name in ("materialised", "recompute", "compile", "bf16", "item", "clip", "fsdp", "time"):
        p.add_argument(f"--{name}", action="store_true")
    p.add_argument("--bucket-mb", type=float, default=25.0)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    p.add_argument("--adam", choices=("foreach", "fused", "loop"), default="foreach")
    train(p.parse_args())


if __name__ == "__main__":
    main()
