"""A model from a Hugging Face `config.json`.

It reads the keys of llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, gpt2, gpt_neox, mpt and
families with the same keys. A key that is absent takes the family's documented default; a missing size without a default
is an error that names the key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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


def read_config(path: Path) -> Model:
    """The model that a `config.json`, or the folder that holds one, describes. Raises LumosError where it is not valid."""
    path = path / "config.json" if path.is_dir() else path
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); give the path of a Hugging Face config.json") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise LumosError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise LumosError(f"{path}: a config.json holds one object, not a {type(table).__name__}")
    return from_config(table.get("text_config", table), str(path))


def from_config(table: Mapping[str, Any], place: str) -> Model:
    """The model that a configuration's keys describe. place: where they come from, for error messages."""
    family = str(table.get("model_type", "llama"))
    defaults = _UNGATED.get(family, {})
    gated = family not in _UNGATED
    hidden, heads = _size(table, "hidden_size", place), _size(table, "num_attention_heads", place)
    latent = _latent(table, place)
    expansion = table.get("expansion_ratio", 4)
    ffn = _optional(table, "intermediate_size") or (0 if gated and _experts_key(table) else int(expansion * hidden))
    if gated and not ffn and not _experts_key(table):
        raise LumosError(f"{place}: intermediate_size is missing; add it")
    bias = (bool(table.get("attention_bias", defaults.get("bias", False))) and not gated) or bool(defaults.get("bias", False))
    positions = str(defaults.get("positions", "rope"))
    if family == "mpt" and table.get("learned_pos_emb", True) and not table.get("attn_config", {}).get("alibi", False):
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
