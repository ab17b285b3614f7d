"""Llama 3 as torchtitan writes it (package `torchtitan`), with its attention by PyTorch's own function: one multiplication for queries,
keys and values, and complex numbers for positions."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from validation.foreign.model import Model, tokens


class _Layers(nn.Module):
    """The model with its layers in a list, as other packages have theirs, so that FSDP2 finds them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.layers = nn.ModuleList(cast(Any, model).layers.values())

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(read)
        return out

    def gradient_checkpointing_enable(self, **_: Any) -> None:
        """Let every layer run again in the backward pass, by torchtitan's own wrappers."""
        from torchtitan.distributed.activation_checkpoint import FullAC

        FullAC.Config().build(dump_folder="").apply(self.model)
        self.layers = nn.ModuleList(cast(Any, self.model).layers.values())


def torchtitan_llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention

    vocabulary = 32_000
    nothing: dict[str, Any] = {}
    config = llama3.Llama3Model.Config(
        dim=hidden,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=hidden, param_init=nothing),
        norm=RMSNorm.Config(normalized_shape=hidden, param_init=nothing),
        lm_head=Linear.Config(in_features=hidden, out_features=vocabulary, param_init=nothing),
        layers=llama3._build_llama3_layers(
            n_layers=layers,
            dim=hidden,
            n_heads=heads,
            n_kv_heads=kv_heads,
            hidden_dim=ffn,
            rope=ComplexRoPE.Config(dim=hidden // heads, max_seq_len=max(seq, 2048), theta=500_000, scaling="llama"),
            attn_backend="varlen",
        ),
    )
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Model(
        _Layers(config.build()),
        lambda: (tokens(micro_batch, seq), tokens(micro_batch, seq)),
        lambda m, b: cross_entropy(m(b[0]).flatten(0, 1).float(), b[1].flatten()),
    )
