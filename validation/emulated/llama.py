"""A Llama of plain torch, trained with FSDP2, tensor parallelism and selective activation checkpointing, as torchtitan trains it.

    torchrun … llama.py --layers 32 --hidden 4096 --tp 8 --batch 2 --seq 8192

The normalisation is torchtitan's own of the time of its published runs: in fp32, then multiplied by a weight in the type of the
activations. The checkpointing keeps every second multiplication, attention, and reduced and scattered tensors.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

SIZES = {"layers": 32, "hidden": 4096, "heads": 32, "kv": 8, "ffn": 14336, "vocab": 128256, "seq": 8192, "batch": 2, "tp": 1}
_MM = torch.ops.aten.mm.default
_KEPT = (
    _MM,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


class Norm(nn.Module):
    """Root-mean-square normalisation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Attention(nn.Module):
    """Attention with fewer heads of keys and values than of queries."""

    def __init__(self, hidden: int, heads: int, kv: int) -> None:
        super().__init__()
        self.heads, self.kv, self.width = heads, kv, hidden // heads
        self.wq = nn.Linear(hidden, hidden, bias=False)
        self.wk = nn.Linear(hidden, kv * self.width, bias=False)
        self.wv = nn.Linear(hidden, kv * self.width, bias=False)
        self.wo = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (project(x).view(batch, length, -1, self.width) for project in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        k, v = repeated(k, self.heads // self.kv), repeated(v, self.heads // self.kv)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Queries or keys turned by their positions."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles.view(1, pairs.shape[1], 1, pairs.shape[3])).flatten(3).type_as(x)


def repeated(x: Tensor, times: int) -> Tensor:
    """Keys or values for each head of queries."""
    batch, length, heads, width = x.shape
    return x[:, :, :, None, :].expand(batch, length, heads, times, width).reshape(batch, length, heads * times, width)


class FeedForward(nn.Module):
    """Two layers with a gate."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)
        self.w3 = nn.Linear(hidden, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        self.attention = Attention(sizes.hidden, sizes.heads, sizes.kv)
        self.feed_forward = FeedForward(sizes.hidden, sizes.ffn)
        self.attention_norm, self.ffn_norm = Norm(sizes.hidden), Norm(sizes.hidden)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The whole model."""

    angles: Tensor

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleDict({str(i): Block(sizes) for i in range(sizes.layers)})
        self.norm = Norm(sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        width = sizes.hidden // sizes.heads
        turns = torch.outer(torch.arange(sizes.seq), 500_000.0 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("angles", torch.polar(torch.ones_like(turns), turns), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.angles)
        return self.output(self.norm(x))


def tensor_parallel(model: Llama, mesh: DeviceMesh, size: int) -> None:
    """Split the layers over the ranks of `mesh`, with the activations between them split along the sequence."""
    outer = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    inner = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, outer)
    for layer in model.layers.values():
        layer.attention.heads //= size
        layer.attention.kv //= size
        parallelize_module(layer, mesh, inner)


def selective() -> Any:
    """Contexts that keep every second multiplication, attention, and what was reduced and scattered."""
    seen: dict[bool, int] = defaultdict(int)

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        seen[context.is_recompute] += function == _MM
        skipped = function == _MM and seen[context.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if function in _KEPT and not skipped else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a batch, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main() -> None:
    """Train for ever."""
    parser = argparse.ArgumentParser()
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--eager-loss", action="store_true")
    parser.add_argument("--apart", action="store_true", help="the first and the last layers are gathered for themselves")
    sizes = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size() // sizes.tp, sizes.tp), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = Llama(sizes)
    if sizes.tp > 1:
        tensor_parallel(model, mesh["tp"], sizes.tp)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, layer in model.layers.named_children():
        model.layers.register_module(name, checkpoint_wrapper(layer, context_fn=selective, preserve_rng_state=False))
    loss_of = torch.compile(cross_entropy) if sizes.compile and not sizes.eager_loss else cross_entropy
    for layer in model.layers.values():
        if sizes.compile:
            layer.compile()
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    if sizes.apart:
        fully_shard(model.tok_embeddings, mesh=mesh["dp"], mp_policy=policy)
        fully_shard([model.norm, model.output], mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    while True:
        tokens, labels = (torch.randint(0, sizes.vocab, (sizes.batch, sizes.seq), device="cuda") for _ in range(2))
        logits = model(tokens)
        with loss_parallel() if sizes.tp > 1 else nullcontext():
            loss = loss_of(logits, labels)
            del logits
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
