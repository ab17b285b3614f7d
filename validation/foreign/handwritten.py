"""Models written by hand in plain `torch.nn`, as many people write theirs: a decoder whose layers are shared among tensor-parallel ranks by
functions of autograd, as Megatron-LM does (Shoeybi et al., 2019), and a vision transformer in the manner of `timm`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from validation.foreign.model import Model, tokens


class _Attention(nn.Module):
    """Attention whose queries, keys and values come from one multiplication. A rank may have a part of the heads."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.size, self.causal = hidden // heads, causal
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        query, key, value = self.qkv(x).view(rows, length, 3, -1, self.size).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, -1))
        return out


class _FeedForward(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


class _Layer(nn.Module):
    """Attention and a feed-forward part, each after a norm, beside a residual; scaled: each result times a vector of its own."""

    def __init__(self, hidden: int, heads: int, ffn: int, *, causal: bool, scaled: bool) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.mlp = _Attention(hidden, heads, causal), _FeedForward(hidden, ffn)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(hidden)) for _ in range(2)) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scaled(self.attention(self.before_attention(x)), 0)
        return x + self.scaled(self.mlp(self.before_mlp(x)), 1)

    def scaled(self, x: Tensor, which: int) -> Tensor:
        return x if self.scales is None else x * self.scales[which]


class _Decoder(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, ffn: int, seq: int, vocabulary: int = 50_304) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(max(seq, 1024), hidden)
        self.layers = nn.ModuleList(_Layer(hidden, heads, ffn, causal=True, scaled=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def decoder(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    return Model(
        _Decoder(layers, hidden, heads, ffn, seq),
        lambda: (tokens(micro_batch, seq + 1),),
        lambda m, b: cross_entropy(m(b[0][:, :-1]).flatten(0, 1).float(), b[0][:, 1:].flatten()),
    )


class _Pictures(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, 196, hidden))
        self.layers = nn.ModuleList(_Layer(hidden, heads, ffn, causal=False, scaled=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, 1000)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x).mean(1))
        return out


def pictures(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int) -> Model:
    return Model(
        _Pictures(layers, hidden, heads, ffn),
        lambda: (torch.randn(micro_batch, 3, 224, 224), torch.randint(0, 1000, (micro_batch,))),
        lambda m, b: cross_entropy(m(b[0]), b[1]),
    )


class _Copied(torch.autograd.Function):
    """What every rank has, on its way into a layer that the ranks share: its gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Summed(torch.autograd.Function):
    """What the ranks found of a sum, on its way out of the layer; its gradient is the same for all."""

    @staticmethod
    def forward(_: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return gradient, None


class _ByColumn(nn.Module):
    """A rank's part of the columns of a multiplication."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        own, self.group = whole.out_features // group.size(), group
        self.weight = nn.Parameter(torch.empty(own, whole.in_features, dtype=whole.weight.dtype))
        self.bias = nn.Parameter(torch.empty(own, dtype=whole.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(_Copied.apply(x, self.group), self.weight, self.bias)


class _ByRow(nn.Module):
    """A rank's part of the rows of a multiplication, whose results the ranks sum; the bias comes after that."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        own, self.group = whole.in_features // group.size(), group
        self.weight = nn.Parameter(torch.empty(whole.out_features, own, dtype=whole.weight.dtype))
        self.bias = nn.Parameter(torch.empty(whole.out_features, dtype=whole.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Summed.apply(functional.linear(x, self.weight), self.group)
        return out + self.bias


def share_layers(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Let the ranks of a group share the multiplications of all layers."""
    for part in list(module.modules()):
        if isinstance(part, _Attention):
            part.qkv, part.out = _shared(part.qkv, part.out, group)
        elif isinstance(part, _FeedForward):
            part.up, part.down = _shared(part.up, part.down, group)


def _shared(first: Any, second: Any, group: dist.ProcessGroup) -> Any:
    return _ByColumn(first, group), _ByRow(second, group)
