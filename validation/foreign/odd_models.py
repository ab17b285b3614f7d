"""Models for the draws of odd families (`drawn`): what repeats in them, or is as long as a sequence, is not what it is in a transformer."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from validation.foreign.handwritten import _Layer
from validation.foreign.model import Model, tokens


class _Bags(nn.Module):
    """Tables of which each row of the batch sums several entries, beside dense features, under one tower."""

    def __init__(self, tables: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100_000, width, mode="sum") for _ in range(tables))
        self.dense = nn.Linear(13, width)
        self.tower = nn.Sequential(
            nn.Linear((tables + 1) * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        found = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        out: Tensor = self.tower(torch.cat([self.dense(dense), *found], 1))
        return out


def bags(tables: int, width: int, width_of_towers: int, micro_batch: int) -> Model:
    return Model(
        _Bags(tables, width, width_of_towers),
        lambda: (torch.randn(micro_batch, 13), torch.randint(0, 100_000, (micro_batch, tables, 4)), torch.rand(micro_batch, 1)),
        lambda m, b: functional.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2]),
    )


class _Loop(nn.Module):
    """A recurrent cell with a gate in a loop of Python over the steps of time."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(64, hidden), nn.Linear(hidden, 10)
        self.of_input, self.of_state = nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, 2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.into(x))
        state = torch.zeros_like(x[0])
        for now in x.unbind(0):
            new, gate = (self.of_input(now) + self.of_state(state)).chunk(2, -1)
            state = state + torch.sigmoid(gate) * (torch.tanh(new) - state)
        out: Tensor = self.head(state)
        return out


def time_loop(hidden: int, micro_batch: int, seq: int) -> Model:
    return Model(
        _Loop(hidden),
        lambda: (torch.randn(seq, micro_batch, 64), torch.randint(0, 10, (micro_batch,))),
        lambda m, b: cross_entropy(m(b[0]), b[1]),
    )


class _Latents(nn.Module):
    """A fixed array of latents that reads the sequence once, and layers over the latents alone."""

    def __init__(self, layers: int, hidden: int, heads: int, ffn: int, latents: int) -> None:
        super().__init__()
        self.heads = heads
        self.latents, self.into = nn.Parameter(torch.zeros(1, latents, hidden)), nn.Linear(256, hidden)
        self.query, self.pair, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, hidden)
        self.layers = nn.ModuleList(_Layer(hidden, heads, ffn, causal=False, scaled=False) for _ in range(layers))
        self.head = nn.Linear(hidden, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        rows, length, width = x.shape
        of = self.latents.expand(rows, -1, -1)
        key, value = self.pair(x).view(rows, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        query = self.query(of).view(rows, -1, self.heads, width // self.heads).transpose(1, 2)
        of = of + self.out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(of.shape))
        for layer in self.layers:
            of = layer(of)
        out: Tensor = self.head(of.mean(1))
        return out


def latents(layers: int, hidden: int, heads: int, ffn: int, latents: int, micro_batch: int, seq: int) -> Model:
    return Model(
        _Latents(layers, hidden, heads, ffn, latents),
        lambda: (torch.randn(micro_batch, seq, 256), torch.randint(0, 1000, (micro_batch,))),
        lambda m, b: cross_entropy(m(b[0]), b[1]),
    )


def two_lengths(layers: int, hidden: int, heads: int, ffn: int, source: int, micro_batch: int, seq: int) -> Model:
    """An encoder of long texts and a decoder of short ones. seq: tokens of the decoder."""
    config = transformers.BartConfig(
        vocab_size=32_000,
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=hidden,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        dropout=0.0,
        max_position_embeddings=4096,
    )
    return Model(
        transformers.BartForConditionalGeneration(config),
        lambda: (tokens(micro_batch, source), tokens(micro_batch, seq)),
        lambda m, b: m(input_ids=b[0], labels=b[1], use_cache=False).loss,
    )


class _LowRank(nn.Module):
    """A multiplication that stays as it is, beside a trained one of a low rank (Hu et al., 2021)."""

    def __init__(self, whole: nn.Linear, rank: int) -> None:
        super().__init__()
        self.whole = whole
        self.down, self.up = nn.Linear(whole.in_features, rank, bias=False), nn.Linear(rank, whole.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.whole(x) + 2.0 * self.up(self.down(x))
        return out


def _causal(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, seq: int) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=32_000,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max(seq, 2048),
    )
    return transformers.LlamaForCausalLM(config)


def lora(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, rank: int, micro_batch: int, seq: int) -> Model:
    """Low-rank parts of the attention's multiplications are trained, everything else stays, and the layers are computed again."""
    module = _causal(layers, hidden, heads, kv_heads, ffn, seq)
    module.requires_grad_(False)
    for name, part in list(module.named_modules()):
        if name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
            parent = module.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _LowRank(part, rank))
    module.enable_input_require_grads()
    module.gradient_checkpointing_enable({"use_reentrant": False})
    return Model(module, lambda: (tokens(micro_batch, seq),), lambda m, b: m(input_ids=b[0], labels=b[0], use_cache=False).loss)


class _Preferences(nn.Module):
    """A model that is trained to prefer one answer to another more than a frozen copy of it does (Rafailov et al., 2023)."""

    def __init__(self, policy: nn.Module, reference: nn.Module) -> None:
        super().__init__()
        self.policy, self.reference = policy, reference.requires_grad_(False)

    def forward(self, texts: Tensor) -> Tensor:
        with torch.no_grad():
            before = self._likelihood(self.reference, texts)
        liked, other = (self._likelihood(self.policy, texts) - before).chunk(2)
        return -functional.logsigmoid(0.1 * (liked - other)).mean()

    def _likelihood(self, model: nn.Module, texts: Tensor) -> Tensor:
        scores = model(input_ids=texts, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        return scores.gather(2, texts[:, 1:, None]).sum((1, 2))


def preferences(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    """micro_batch: texts, of which one half is preferred to the other."""
    policy, reference = (_causal(layers, hidden, heads, kv_heads, ffn, seq) for _ in range(2))
    return Model(_Preferences(policy, reference), lambda: (tokens(micro_batch, seq),), lambda m, b: m(b[0]))


class _Capacity(nn.Module):
    """Experts that take at most so many tokens each, sent to them by multiplications with a mask (Fedus et al., 2021)."""

    def __init__(self, hidden: int, ffn: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        flat = x.reshape(-1, width)
        odds = self.router(flat).softmax(-1)
        gate, chosen = odds.max(-1)
        experts = odds.shape[-1]
        capacity = 5 * len(flat) // (4 * experts)
        mask = functional.one_hot(chosen, experts).to(x.dtype)
        place = (mask.cumsum(0) - 1) * mask
        slot = functional.one_hot(place.sum(-1).long().clamp(max=capacity - 1), capacity).to(x.dtype)
        dispatch = mask[:, :, None] * slot[:, None, :] * (place < capacity).to(x.dtype).prod(-1)[:, None, None]
        sent = torch.einsum("tec,td->ecd", dispatch, flat)
        done = torch.bmm(functional.gelu(torch.bmm(sent, self.up)), self.down)
        return torch.einsum("tec,ecd->td", dispatch * gate[:, None, None], done).view(rows, length, width)


class _CapacityModel(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, ffn: int, experts: int, seq: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(32_000, hidden), nn.Embedding(max(seq, 1024), hidden)
        self.layers = nn.ModuleList(_Layer(hidden, heads, ffn, causal=True, scaled=False) for _ in range(layers))
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            layer.mlp = _Capacity(hidden, ffn, experts)  # type: ignore[assignment]
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, 32_000, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def capacity(layers: int, hidden: int, heads: int, ffn: int, experts: int, micro_batch: int, seq: int) -> Model:
    return Model(
        _CapacityModel(layers, hidden, heads, ffn, experts, seq),
        lambda: (tokens(micro_batch, seq + 1),),
        lambda m, b: cross_entropy(m(b[0][:, :-1]).flatten(0, 1).float(), b[0][:, 1:].flatten()),
    )
