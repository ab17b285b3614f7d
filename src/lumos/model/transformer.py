"""A decoder-only transformer: its dimensions, its number of parameters, and the FLOPs of a token.

A layer is norm, attention, norm, MLP (dense, or routed and shared experts), with a residual stream of width `hidden`. The
width of attention is heads × head_dim, which need not be `hidden`. Numbers of parameters are exact: tests compare them with
published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lumos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

POSITIONS = ("rope", "learned", "none")
NORMS = ("layer", "rms")


#: The most layers of a model, and the largest of its other sizes: each some hundred times that of any model that was published, so that
#: what exceeds them is a mistake, and what does not can be computed in 64 bits and in memory.
MOST_LAYERS = 1 << 14
LARGEST_SIZE = 1 << 26
#: The most tokens of a sequence: ten times the longest context of any published model (Llama 4 Scout's ten million).
MOST_TOKENS = 1 << 27


def _check_sizes(what: str, value: object, least: Mapping[str, int]) -> None:
    """Raise UsageError unless each of the sizes of `value` that `least` names is at least that and no larger than any model's."""
    for key, lowest in least.items():
        size, most = getattr(value, key), MOST_LAYERS if key == "layers" else LARGEST_SIZE
        if not lowest <= size <= most:
            raise UsageError(f"{what}: {key} = {size} must be from {lowest} to {most:,}")


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture-of-experts MLP: `count` routed experts of width `ffn`, `per_token` of them for each token.

    shared: number of experts that every token passes through, of width `shared_ffn` in total. first_dense: number of leading
    layers with a dense MLP. every: one of so many layers after them is a mixture (1: all of them).
    """

    count: int
    per_token: int
    ffn: int
    shared: int = 0
    shared_ffn: int = 0
    first_dense: int = 0
    every: int = 1
    nodes: int = 0  # the experts of one token are on at most so many nodes (0: no limit)
    router_bias: bool = False  # the router has a correction bias per expert, which is not trained by gradients

    def __post_init__(self) -> None:
        _check_sizes("experts", self, {"count": 1, "per_token": 1, "ffn": 1, "shared": 0, "shared_ffn": 0, "first_dense": 0, "every": 1})
        if self.per_token > self.count:
            raise UsageError(f"experts: per_token ({self.per_token}) must be at most count ({self.count})")


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    query_rank, kv_rank: widths of the compressed projections; with query_rank 0, queries are projected directly. nope, rope:
    parts of a head of queries and keys without and with rotary positions. value: size of a head of values.
    """

    query_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int

    def __post_init__(self) -> None:
        _check_sizes("latent", self, {"query_rank": 0, "kv_rank": 1, "nope": 0, "rope": 0, "value": 1})


class LayerParameters(NamedTuple):
    """Numbers of parameters of one layer by part. expert: of all routed experts together."""

    attention: int
    mlp: int  # dense MLP, or router and shared experts
    expert: int
    norm: int

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True, slots=True)
class Model:
    """Dimensions of a decoder-only transformer.

    kv_heads: heads of keys and values (GQA). ffn: width of the dense MLP. gated: whether the MLP has a gate (SwiGLU, GeGLU).
    norm: one of NORMS; norm_bias: whether norms have biases. bias: whether all linear layers have biases; qkv_bias: whether the
    attention's input projections have. positions: one of POSITIONS; max_positions: rows of a learned position table. tied:
    whether the output projection is the embedding table. qk_norm: whether queries and keys are normalised per head.
    squared_relu: whether the activation of an MLP without gate is squared ReLU (else GeLU).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = False
    norm: str = "rms"
    norm_bias: bool = False
    bias: bool = False
    qkv_bias: bool = False
    positions: str = "rope"
    max_positions: int = 0
    tied: bool = False
    qk_norm: bool = False
    squared_relu: bool = False
    experts: Experts | None = None
    latent: Latent | None = None

    def __post_init__(self) -> None:
        _check_sizes(f"model {self.name}", self, {"layers": 1, "hidden": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "vocab": 1, "ffn": 0})
        if self.heads % self.kv_heads:
            raise UsageError(f"model {self.name}: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.ffn < 1 and not (self.experts and self.experts.first_dense == 0 and self.experts.every == 1):
            raise UsageError(f"model {self.name}: ffn = {self.ffn} must be at least 1 where layers have a dense MLP")
        if self.positions not in POSITIONS or self.norm not in NORMS:
            raise UsageError(f"model {self.name}: positions must be one of {', '.join(POSITIONS)} and norm one of {', '.join(NORMS)}")

    def is_mixture(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) has routed experts."""
        e = self.experts
        return e is not None and layer >= e.first_dense and (layer - e.first_dense) % e.every == e.every - 1

    @property
    def mixture_layers(self) -> int:
        """How many layers have routed experts."""
        return sum(self.is_mixture(i) for i in range(self.layers))

    @property
    def attention_width(self) -> int:
        """Width of the attention's output, heads × value head size."""
        return self.heads * (self.latent.value if self.latent else self.head_dim)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation of the residual stream."""
        return self.hidden * (2 if self.norm_bias else 1)

    def layer_parameters(self, mixture: bool = False) -> LayerParameters:
        """Exact numbers of parameters of one layer, with a dense MLP or with routed experts."""
        norm = 2 * self.norm_parameters + (2 * self.head_dim if self.qk_norm else 0)
        if not mixture or self.experts is None:
            return LayerParameters(self._attention(), self._mlp(self.ffn), 0, norm)
        e = self.experts
        router = self.hidden * e.count + (e.count if e.router_bias else 0)
        shared = self._mlp(e.shared_ffn) if e.shared_ffn else 0
        return LayerParameters(self._attention(), router + shared, e.count * self._mlp(e.ffn), norm)

    def _attention(self) -> int:
        h = self.hidden
        if self.latent is not None:
            m = self.latent
            queries = self.heads * (m.nope + m.rope)
            into = h * m.query_rank + m.query_rank + m.query_rank * queries if m.query_rank else h * queries
            down = h * (m.kv_rank + m.rope) + m.kv_rank
            up = m.kv_rank * self.heads * (m.nope + m.value)
            return into + down + up + self.heads * m.value * h
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = (queries + 2 * keys if self.bias or self.qkv_bias else 0) + (h if self.bias else 0)
        return h * (queries + 2 * keys) + queries * h + biases

    def _mlp(self, width: int) -> int:
        rows = 3 if self.gated else 2
        return rows * self.hidden * width + ((rows - 1) * width + self.hidden if self.bias else 0)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        return self.vocab * self.hidden + (self.max_positions * self.hidden if self.positions == "learned" else 0)

    @property
    def head_parameters(self) -> int:
        """Parameters of the final norm and of the output projection (none where that is the token embedding)."""
        return self.norm_parameters + (0 if self.tied else self.vocab * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters."""
        mixtures = self.mixture_layers
        dense = (self.layers - mixtures) * self.layer_parameters().total if mixtures < self.layers else 0
        return self.embedding_parameters + self.head_parameters + dense + mixtures * self.layer_parameters(True).total

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: of the routed experts only `per_token`."""
        if self.experts is None:
            return self.parameters
        e = self.experts
        return self.parameters - self.mixture_layers * (e.count - e.per_token) * self._mlp(e.ffn)

    def flops_per_token(self, seq_len: int) -> float:
        """Model FLOPs of forward and backward for one token of a causal sequence: 6 per weight of a multiplication, plus attention.

        The token embedding and learned positions are looked up, not multiplied; a tied embedding is multiplied once. Causal
        attention counts half the scores: 6 · layers · heads · (query + value size) · seq_len / 2 operations (Narayanan et
        al. 2021, arXiv:2104.04473, appendix). Recomputation does not count.
        """
        multiplied = self.active_parameters - self.embedding_parameters + (self.vocab * self.hidden if self.tied else 0)
        query = self.latent.nope + self.latent.rope if self.latent else self.head_dim
        value = self.latent.value if self.latent else self.head_dim
        return 6.0 * multiplied + 3.0 * self.layers * self.heads * (query + value) * seq_len
