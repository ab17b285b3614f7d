"""A model from a Hugging Face `config.json`.

It reads the keys of llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, gpt2, gpt_neox, mpt and
families with the same keys. A key that is absent takes the family's documented default; a missing size without a default
is an error that names the key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

import msgspec

from lumos.errors import LumosError
from lumos.model.transformer import Experts, Latent, Model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Families whose MLP has no gate, with their defaults for other keys.
_UNGATED = {
    "gpt2": {"positions": "learned", "bias": True, "tied": True},
    "gpt_neox": {"positions": "rope", "bias": True, "tied": False},
    "mpt": {"positions": "none", "bias": False, "tied": True},
    "nemotron": {"positions": "rope", "bias": False, "tied": False},
    "starcoder2": {"positions": "rope", "bias": True, "tied": True},
}
_SPELLINGS = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
}


_Size = Annotated[int, msgspec.Meta(ge=0)] | None
_Flag = bool | None


class _Config(TypedDict, total=False):
    """The keys of a `config.json` that are read here. Files write null for what a model does not have."""

    model_type: str | None
    _name_or_path: str | None
    num_hidden_layers: _Size
    n_layer: _Size
    n_layers: _Size
    num_layers: _Size
    hidden_size: _Size
    n_embd: _Size
    d_model: _Size
    num_attention_heads: _Size
    n_head: _Size
    n_heads: _Size
    num_key_value_heads: _Size
    head_dim: _Size
    intermediate_size: _Size
    n_inner: _Size
    ffn_hidden_size: _Size
    expansion_ratio: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None
    vocab_size: _Size
    max_position_embeddings: _Size
    n_positions: _Size
    max_seq_len: _Size
    attention_bias: _Flag
    no_bias: _Flag
    learned_pos_emb: _Flag
    attn_config: dict[str, Any] | None
    tie_word_embeddings: _Flag
    num_local_experts: _Size
    num_experts: _Size
    n_routed_experts: _Size
    num_experts_per_tok: _Size
    moe_intermediate_size: _Size
    n_shared_experts: _Size
    shared_expert_intermediate_size: _Size
    first_k_dense_replace: _Size
    moe_layer_freq: _Size
    decoder_sparse_step: _Size
    topk_method: str | None
    q_lora_rank: _Size
    kv_lora_rank: _Size
    qk_nope_head_dim: _Size
    qk_rope_head_dim: _Size
    v_head_dim: _Size


def read_config(path: Path) -> Model:
    """The model that a `config.json`, or the folder that holds one, describes. Raises LumosError where it is not valid."""
    path = path / "config.json" if path.is_dir() else path
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); give the path of a Hugging Face config.json") from error
    except (ValueError, RecursionError) as error:
        raise LumosError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise LumosError(f"{path}: a config.json holds one object, not a {type(table).__name__}")
    return from_config(table.get("text_config") or table, str(path))


def from_config(table: Mapping[str, Any], place: str) -> Model:
    """The model that a configuration's keys describe. place: where they come from, for error messages."""
    table = _typed(table, place)
    family = table.get("model_type") or "llama"
    defaults = _UNGATED.get(family, {})
    gated = family not in _UNGATED
    hidden, heads = _size(table, "hidden_size", place), _size(table, "num_attention_heads", place)
    latent = _latent(table, place)
    if latent is None and not _optional(table, "head_dim") and hidden % heads:
        raise LumosError(f"{place}: hidden_size ({hidden}) is no multiple of num_attention_heads ({heads}); add head_dim")
    expansion = table.get("expansion_ratio") or 4
    ffn = _optional(table, "intermediate_size") or (0 if gated and _experts_key(table) else int(expansion * hidden))
    if gated and not ffn and not _experts_key(table):
        raise LumosError(f"{place}: intermediate_size is missing; add it")
    bias = (bool(table.get("attention_bias", defaults.get("bias", False))) and not gated) or bool(defaults.get("bias", False))
    positions = str(defaults.get("positions", "rope"))
    if family == "mpt" and table.get("learned_pos_emb", True) and not (table.get("attn_config") or {}).get("alibi", False):
        positions = "learned"
    if family == "mpt":
        bias = not table.get("no_bias", False)
    try:
        return Model(
            name=str(table.get("_name_or_path") or table.get("model_type", "model")),
            layers=_size(table, "num_hidden_layers", place),
            hidden=hidden,
            heads=heads,
            kv_heads=_optional(table, "num_key_value_heads") or heads,
            head_dim=(latent.nope + latent.rope) if latent else (_optional(table, "head_dim") or hidden // heads),
            ffn=ffn,
            vocab=_size(table, "vocab_size", place),
            gated=gated,
            norm="layer" if family in _UNGATED else "rms",
            norm_bias=family in _UNGATED and bias,
            bias=bias,
            qkv_bias=bool(table.get("attention_bias", family in ("qwen2", "qwen2_moe"))),
            positions=positions,
            max_positions=(_optional(table, "max_position_embeddings") or 0) if positions == "learned" else 0,
            tied=bool(table.get("tie_word_embeddings", defaults.get("tied", False))),
            qk_norm=family in ("qwen3", "qwen3_moe"),
            experts=_experts(table, place),
            latent=latent,
        )
    except LumosError as error:
        raise LumosError(f"{place}: {error}") from error


def _typed(table: object, place: str) -> Mapping[str, Any]:
    """The keys that are read here. Raises LumosError where one is of another type or out of range."""
    try:
        return cast("Mapping[str, Any]", msgspec.convert(table, _Config))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the second: text with a lone surrogate
        raise LumosError(f"{place}: {error}; correct the value, or take the config.json from the model's page") from error


def _size(table: Mapping[str, Any], key: str, place: str) -> int:
    value = _optional(table, key)
    if value is None:
        names = ", ".join((key, *_SPELLINGS.get(key, ())))
        raise LumosError(f"{place}: {key} is missing or not a positive whole number; one of {names} must be given")
    return value


def _optional(table: Mapping[str, Any], key: str) -> int | None:
    for name in (key, *_SPELLINGS.get(key, ())):
        value = table.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _experts_key(table: Mapping[str, Any]) -> int | None:
    for key in ("n_routed_experts", "num_local_experts", "num_experts"):
        value = table.get(key)
        if isinstance(value, int) and value > 1:
            return value
    return None


def _experts(table: Mapping[str, Any], place: str) -> Experts | None:
    count = _experts_key(table)
    if count is None:
        return None
    ffn = _optional(table, "moe_intermediate_size") or _optional(table, "intermediate_size")
    if ffn is None:
        raise LumosError(f"{place}: moe_intermediate_size is missing; add the width of one expert")
    shared = table.get("n_shared_experts") or 0
    shared_ffn = table.get("shared_expert_intermediate_size") or shared * ffn
    return Experts(
        count=count,
        per_token=_size(table, "num_experts_per_tok", place),
        ffn=ffn,
        shared=shared or (1 if shared_ffn else 0),
        shared_ffn=shared_ffn,
        first_dense=table.get("first_k_dense_replace", 0) or 0,
        every=table.get("moe_layer_freq", table.get("decoder_sparse_step", 1)) or 1,
        router_bias=table.get("topk_method") == "noaux_tc",
    )


def _latent(table: Mapping[str, Any], place: str) -> Latent | None:
    if not table.get("kv_lora_rank"):
        return None
    return Latent(
        query_rank=table.get("q_lora_rank") or 0,
        kv_rank=_size(table, "kv_lora_rank", place),
        nope=_size(table, "qk_nope_head_dim", place),
        rope=_size(table, "qk_rope_head_dim", place),
        value=_size(table, "v_head_dim", place),
    )
