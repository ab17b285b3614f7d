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
from typing import Any

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

    def __init__(self, width: int, heads: int, fused: bool, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.attention, self.norms = Attention(width, heads, fused), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """A decoder of `layers` layers."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = a.recompute
        self.embed = nn.Embedding(a.vocab, a.width)
        linear = Linear8 if a.eighth else nn.Linear
        self.layers = nn.ModuleList(Layer(a.width, a.heads, not a.materialised, linear) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x))


class Eighth(torch.autograd.Function):
    """A product of inputs and weights in eight bits; gradients are made in the type of the inputs."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        one = torch.ones((), device=x.device)
        rounded, transposed = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
        return torch._scaled_mm(rounded, transposed, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x


class Linear8(nn.Linear):
    """A linear layer that multiplies in eight bits."""

    def forward(self, x: Tensor) -> Tensor:
        out = Eighth.apply(x.flatten(0, -2).bfloat16(), self.weight.bfloat16())
        return out.view(*x.shape[:-1], -1) + self.bias.bfloat16()


class Gathered(nn.Module):
    """Layers whose width is shared among all ranks, of a sequence that is: it is gathered in two halves before each, at once or while the
    half before is worked on. The gradient of the gathered parts is left out."""

    def __init__(self, a: argparse.Namespace, world: int) -> None:
        super().__init__()
        self.asynchronous = a.asynchronous
        self.layers = nn.ModuleList(nn.Linear(a.width, a.width // world) for _ in range(a.layers))
        self.head = nn.Linear(a.width // world, a.vocab)

    def forward(self, x: Tensor) -> Tensor:
        world, parts = dist.get_world_size(), x.chunk(2)
        out = x
        for layer in self.layers:
            gathered, waiting = [torch.empty(len(each) * world, *each.shape[1:], device=x.device) for each in parts], []
            for into, part in zip(gathered, parts, strict=True):
                work = dist.all_gather_into_tensor(into, part.detach().contiguous(), async_op=True)
                waiting.append(work)
                if not self.asynchronous:
                    work.wait()
            outs = []
            for into, work in zip(gathered, waiting, strict=True):
                if self.asynchronous:
                    work.wait()
                outs.append(functional.gelu(layer(into)))
            out = torch.cat(outs)
        return self.head(out[: len(x)])


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


class Translator(nn.Module):
    """An encoder and a decoder of torch's own layers."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.width)
        self.body = nn.Transformer(a.width, a.heads, a.layers, a.layers, 4 * a.width, dropout=a.dropout, batch_first=True)
        self.head = nn.Linear(a.width, a.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(self.body(x, x.flip(1)))


class Temporal(nn.Module):
    """Dilated convolutions over a sequence, each added to what it was given."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.width)
        self.convolutions = nn.ModuleList(nn.Conv1d(a.width, a.width, 3, padding=2**i, dilation=2**i) for i in range(a.layers))
        self.norm, self.head = nn.GroupNorm(4, a.width), nn.Linear(a.width, a.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        for convolution in self.convolutions:
            x = x + functional.silu(self.norm(convolution(x)))
        return self.head(x.transpose(1, 2))


class Mixer(nn.Module):
    """Layers that mix positions and then channels."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.width)
        self.positions = nn.ModuleList(nn.Linear(a.length, a.length) for _ in range(a.layers))
        self.channels = nn.ModuleList(nn.Sequential(nn.Linear(a.width, 2 * a.width), nn.GELU(), nn.Linear(2 * a.width, a.width))
                                      for _ in range(a.layers))  # fmt: skip
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for positions, channels in zip(self.positions, self.channels, strict=True):
            x = x + positions(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norm(x))
        return self.head(x)


class Ladder(nn.Module):
    """Convolutions down to small images and up again, with what was there on the way down beside it."""

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        sizes = [a.width // 4 * 2**i for i in range(3)]
        self.stem = nn.Conv2d(3, sizes[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(m, n, 3, padding=1, stride=2) for m, n in pairwise(sizes))
        self.middle = nn.ModuleList(nn.Conv2d(sizes[-1], sizes[-1], 3, padding=1) for _ in range(a.layers))
        self.up = nn.ModuleList(nn.Conv2d(n + m, m, 3, padding=1) for m, n in reversed([*pairwise(sizes)]))
        self.head = nn.Linear(sizes[0], a.vocab)

    def forward(self, images: Tensor) -> Tensor:
        x, kept = self.stem(images), []
        for down in self.down:
            kept.append(x)
            x = functional.leaky_relu(down(x))
        for middle in self.middle:
            x = x + functional.leaky_relu(middle(x))
        for up in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = functional.leaky_relu(up(torch.cat([x, kept.pop()], 1)))
        return self.head(x.mean((2, 3)))


MODELS = {
    "gpt": GPT, "cnn": Convolutions, "lstm": Recurrent, "mlp": Perceptron, "dlrm": Ranking, "translator": Translator, "temporal": Temporal,
    "mixer": Mixer, "ladder": Ladder,
}  # fmt: skip
#: Those that are given tokens, and those that are given images; others take rows of numbers.
_OF_TOKENS, _OF_IMAGES = ("gpt", "lstm", "translator", "temporal", "mixer"), ("cnn", "ladder")


def average_gradients(model: nn.Module) -> None:
    """What overlapped gradients are held against: one exchange of all, once the backward pass is done."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    together = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(together)
    for each, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
        each.copy_(part.view_as(each) / dist.get_world_size())


def run_stages(a: argparse.Namespace, device: torch.device) -> None:
    """A pipeline whose stages have the layers of --stages: each microbatch forward, then each backward."""
    rank, sizes = dist.get_rank(), [int(each) for each in a.stages.split(",")]
    first, last = rank == 0, rank == len(sizes) - 1
    model = nn.Sequential(*(Layer(a.width, a.heads, True) for _ in range(sizes[rank]))).to(device)
    head = nn.Linear(a.width, a.vocab, bias=False).to(device) if last else nn.Identity()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3, fused=device.type == "cuda")
    for _ in range(a.steps):
        kept = []
        for _ in range(a.accumulate):
            x = torch.randn(a.batch, a.length, a.width, device=device, requires_grad=not first)
            if not first:
                dist.recv(x.detach(), rank - 1)
            y = model(x)
            if not last:
                dist.send(y.detach(), rank + 1)
            kept.append((x, y))
        for x, y in kept:
            if last:
                head(y).float().logsumexp(-1).mean().backward()
            else:
                gradient = torch.empty_like(y)
                dist.recv(gradient, rank + 1)
                y.backward(gradient)
            if not first:
                dist.send(x.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()


def batch_of(a: argparse.Namespace, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    if a.model in _OF_TOKENS:
        tokens = torch.randint(a.vocab, (a.batch, a.length), device=device)
        return tokens, tokens.flatten()
    shape = (a.batch, 3, 64, 64) if a.model in _OF_IMAGES else (a.batch, a.width)
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
    if a.stages:
        run_stages(a, device)
        return
    model: nn.Module = (Gathered(a, world) if a.tp else MODELS[a.model](a)).to(device)
    if a.fsdp:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shard = a.shard or world
        mesh = init_device_mesh(device.type, (world // shard, shard), mesh_dim_names=("replicate", "shard"))
        for part in (*getattr(model, "layers", ()), model):
            fully_shard(part, mesh=mesh if shard < world else mesh["shard"])
    elif world > 1 and not (a.late or a.tp):
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
        if a.late:
            average_gradients(model)
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
    for name, default in (("accumulate", 1), ("threads", 1), ("shard", 0)):
        p.add_argument(f"--{name}", type=int, default=default)
    for name in (
        "materialised", "recompute", "compile", "bf16", "item", "clip", "fsdp", "time", "late", "tp", "asynchronous", "eighth",
    ):  # fmt: skip
        p.add_argument(f"--{name}", action="store_true")
    p.add_argument("--bucket-mb", type=float, default=25.0)
    p.add_argument("--stages", default="", help="layers of each stage of a pipeline, as 3,3,2")
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    p.add_argument("--adam", choices=("foreach", "fused", "loop"), default="foreach")
    train(p.parse_args())


if __name__ == "__main__":
    main()
