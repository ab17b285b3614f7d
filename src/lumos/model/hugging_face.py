"""A model from a Hugging Face `config.json`.

Its `model_type` says what a layer consists of, its keys say how large everything is. A key that is absent
takes the default of its architecture; a missing size is an error that names the key. Layers that are neither attention over all
tokens nor over a window of them are refused by their key. Keys that were not read are named.

`data/architectures.json` is written by `tools/architectures.py`, which builds every causal language model that the library
`transformers` has and counts the matrices of each layer. A `model_type` is priced if they are exactly those that `lumos.model.Model`
multiplies; any other is refused with what was found.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict, cast

import msgspec

from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.model.transformer import Experts, Latent, Model

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Other names of the keys that are read.
KEY_NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "head_dim": ("attention_head_dim",),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": ("shared_intermediate_size",),
    "decoder_sparse_step": ("interleave_moe_layer_step", "moe_layer_freq"),
    "attention_bias": ("qkv_bias", "use_qkv_bias"),
    "qk_norm": ("use_qk_norm", "qk_layernorm"),
}
#: Keys that change nothing about the work of a training step: names, tokens, the start of training, numerics of the same kernels.
_NEUTRAL = re.compile(
    r"_name_or_path|transformers_version|model_type|auto_map|.*dtype|.*token_ids?|.*_token|tokenizer.*|is_decoder|"
    r"add_cross_attention|is_encoder_decoder|use_cache|cache_.*|return_dict|output_.*|chunk_size_feed_forward|problem_type|id2label|"
    r"label2id|.*_eps|.*epsilon|eps|.*_std|init.*|.*initializer.*|.*rope.*|rotary.*|.*rotary|max_position_embeddings|"
    r".*_?(dropout|pdrop|drop|layerdrop)(_prob|_rate)?|pretraining_tp|.*_act|hidden_activation|activation.*|.*_coef|.*_alpha|"
    r".*scal(e|ing)(_.*)?|.*_multiplier|.*softcap.*|scoring_func|norm_topk_prob|n_group|topk_group|router_jitter_noise|.*_loss.*|"
    r"summary_.*|query_pre_attn_scalar|unpadded_vocab_size|task_specific_params|prefix|use_mambapy|"
    r"original_max_position_embeddings|seq_length|initial_context_length|rms_norm|apply_residual_.*|attention_softmax_in_fp32|"
    r"max_window_layers|use_parallel_residual|residual_in_fp32|.*_temperature.*|attn_implementation|_attn_implementation.*|"
    r"reorder_and_upcast_attn|slow_but_exact|logit_scale|parallel_attn|partial_rotary_factor|moe_layers|sep_token_id|mtp_.*loss.*|aux_loss_alpha|seq_aux|ep_size|gradient_.*|swiglu_limit"
)
#: What follows an architecture in the name of its class where that has a head of the whole vocabulary.
_LANGUAGE_MODEL = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$")
#: What a layer may be called in a list of layers whose kinds are priced, or priced as attention over all tokens.
FULL, WINDOWED = ("full_attention", "attention", "global"), ("sliding_attention", "chunked_attention", "local")

#: The keys of a `config.json` that are read here, by their first names: sizes and counts, switches, and others.
_SIZES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
    "max_position_embeddings", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
    "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "sliding_window", "attention_chunk_size", "num_nextn_predict_layers",
)  # fmt: skip
_FLAGS = (
    "attention_bias", "mlp_bias", "qk_norm", "no_bias", "learned_pos_emb", "multi_query", "new_decoder_architecture", "alibi",
    "tie_word_embeddings", "use_sliding_window", "is_encoder_decoder", "add_cross_attention", "is_causal", "use_bidirectional_attention",
)  # fmt: skip
_OTHERS: dict[str, Any] = {
    "model_type": str, "_name_or_path": str, "topk_method": str, "attn_config": dict[str, Any], "mlp_only_layers": list[int],
    "expansion_ratio": Annotated[float, msgspec.Meta(gt=0, le=1000)],
    **dict.fromkeys(("architectures", "layer_types", "mlp_layer_types"), list[str]),
}  # fmt: skip
_TYPES = {**dict.fromkeys(_SIZES, Annotated[int, msgspec.Meta(ge=0)]), **dict.fromkeys(_FLAGS, bool), **_OTHERS}
#: As msgspec checks them. Files write null for what a model does not have.
_Config: Any = cast("Any", TypedDict)("_Config", {key: kind | None for key, kind in _TYPES.items()}, total=False)

READ_KEYS = frozenset(_TYPES)


class TokenWindow(NamedTuple):
    """Layers that see only the last `tokens` tokens. layers: how many of the model's layers; None where the file does not say."""

    tokens: int
    layers: int | None


class ReadModel(NamedTuple):
    """A model, what was assumed or not read of the file that describes it, and whether some of its layers see a window only."""

    model: Model
    notes: tuple[Diagnostic, ...] = ()
    window: TokenWindow | None = None


def read_config(path: Path) -> ReadModel:
    """The model that a `config.json`, or the folder that holds one, describes. Raises LumosError where it is not valid or not priced."""
    path = path / "config.json" if path.is_dir() else path
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); give the path of a Hugging Face config.json") from error
    except (ValueError, RecursionError) as error:
        raise LumosError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise LumosError(f"{path}: a config.json holds one object, not a {type(table).__name__}")
    inner = table.get("text_config")
    if not inner:
        return from_config(table, str(path))
    if isinstance(inner, dict):
        inner = {key: table[key] for key in ("model_type", "tie_word_embeddings") if key in table} | inner
    read = from_config(inner, str(path))
    others = ", ".join(sorted(key for key in table if key.endswith("_config") and key not in ("text_config", "quantization_config")))
    note = [Diagnostic("part-of-a-model", f"only its language model is priced, not {others}")] if others else []
    if beside := sorted(key for key in READ_KEYS & table.keys() - {"model_type", "architectures"} if table[key] != inner.get(key)):
        said = f"{path}: not read: {', '.join(beside)}, since text_config says otherwise or nothing of it"
        note.append(Diagnostic("unread-fields", said))
    return read._replace(notes=(*note, *read.notes))


def from_config(table: object, source: str) -> ReadModel:
    """The model that a configuration's keys describe. source: where they come from, for error messages."""
    said = table.get("model_type") if isinstance(table, dict) else None
    if isinstance(said, str) and said in _file().refused:  # its keys may have types of their own
        architecture(said, source)
    stated = _typed(table, {}, source)
    _refuse_other_layers(stated, source)
    kind, notes = stated.get("model_type") or _said_by_class(stated), []
    if not kind:
        kind = "llama"
        if unread := _unread(cast("Mapping[str, object]", table), architecture(kind, source)):
            other = f"keys that a llama does not have: {', '.join(unread)}"
            raise LumosError(f"{source}: neither model_type nor architectures say what a layer is, and it has {other}; add its model_type")
        said = "neither model_type nor architectures: a layer is taken to be that of llama (gated MLP, RMSNorm, rotary)"
        notes.append(Diagnostic("assumed-architecture", said))
    read = read_as(table, architecture(kind, source), kind, source)
    return read._replace(notes=(*notes, *read.notes))


def read_as(table: object, known: Architecture, kind: str, source: str) -> ReadModel:
    """The model that a configuration's keys describe, as one of the architecture `known`. kind: its `model_type`."""
    notes = []
    given = known.defaults | {key: value for key, value in _typed(table, known.keys, source).items() if value is not None}
    model, raw = _model(given, known, kind, source), cast("Mapping[str, object]", table)
    if known.apart:
        notes.append(Diagnostic("differs", f"{kind}: {known.apart}; it is priced without"))
    if given.get("num_nextn_predict_layers"):
        notes.append(Diagnostic("unread-fields", f"{source}: num_nextn_predict_layers: layers that predict further tokens are not priced"))
    named = [name for name in given.get("architectures") or () if _plain(name) != _plain(kind.removesuffix("_text"))]
    if named:
        notes.append(Diagnostic("differs", f"architectures: {', '.join(named)}: it is priced as {kind} with a head of its vocabulary"))
    if model.experts is not None and not known.experts:
        has = _spelt(raw, known.keys)["num_experts"]
        raise LumosError(f"{source}: {has} = {model.experts.count}, but {kind} has no experts; correct model_type, or take {has} out")
    if unread := _unread(raw, known):
        lacking = {name for key in READ_KEYS for name in (key, *KEY_NAMES.get(key, ())) if not given.get(key)}
        for key in unread:
            if near := get_close_matches(key, lacking, 1, 0.9):
                raise LumosError(f"{source}: {key} = {raw[key]!r} is not read; is {near[0]} meant? Correct the name, or take the key out")
        notes.append(Diagnostic("unread-fields", f"{source}: not read: {', '.join(unread)}; what they change is not in the prediction"))
    return ReadModel(model, tuple(notes), _window(given, model))


def _said_by_class(table: Mapping[str, Any]) -> str:
    """The `model_type` of a file that has none, by the class it names: the known one of that name, or the name; "" without one."""
    plain = next((_plain(re.sub(r"(For[A-Z]\w*|Model)$", "", name)) for name in table.get("architectures") or ()), "")
    return next((kind for kind in priced_types() if _plain(kind) == plain), plain)


def _plain(name: str) -> str:
    """The letters and digits of the name of an architecture, or of the class of its language model."""
    return re.sub("[^a-z0-9]", "", _LANGUAGE_MODEL.sub("", name).lower())


def _unread(table: Mapping[str, object], known: Architecture) -> list[str]:
    """The keys that say something of the work and are not read: among them further names of one that is, where they have another value."""
    read = _spelt(table, known.keys)
    same = {name: table.get(read[key]) for key in READ_KEYS for name in (key, *KEY_NAMES.get(key, ()))}
    said = {key for key, value in table.items() if value not in (None, False, 0, [], {}) and not _NEUTRAL.fullmatch(key)}
    return sorted(key for key in said - set(read.values()) if key not in same or table[key] != same[key])


def _model(table: Mapping[str, Any], known: Architecture, kind: str, source: str) -> Model:
    style = dict(known.style)
    hidden, heads, latent = _size(table, "hidden_size", source), _size(table, "num_attention_heads", source), _latent(table, source)
    if latent is None and not table.get("head_dim") and hidden % heads:
        raise LumosError(f"{source}: hidden_size ({hidden}) is no multiple of num_attention_heads ({heads}); add head_dim")
    try:
        experts = _experts(table, source)
    except UsageError as error:
        raise LumosError(f"{source}: {error}") from error
    ffn = table.get("intermediate_size") or 0
    if not ffn and not style.get("gated"):
        ffn = int((table.get("expansion_ratio") or 4) * hidden)
    if not ffn and not experts:
        raise LumosError(f"{source}: intermediate_size is missing; add it")
    if table.get("no_bias") is False or (table.get("mlp_bias") and table.get("attention_bias")):
        style |= {"bias": True, "norm_bias": style.get("norm") == "layer"}
    if table.get("no_bias"):
        style |= {"bias": False, "norm_bias": False}
    if kind == "mpt":
        style["positions"] = "none" if (table.get("attn_config") or {}).get("alibi") or not table.get("learned_pos_emb") else "learned"
    elif table.get("alibi"):
        style["positions"] = "none"
    single = table.get("multi_query") and not table.get("new_decoder_architecture")
    try:
        model = Model(
            name=str(table.get("_name_or_path") or kind),
            layers=_size(table, "num_hidden_layers", source),
            hidden=hidden,
            heads=heads,
            kv_heads=1 if single else table.get("num_key_value_heads") or heads,
            head_dim=(latent.nope + latent.rope) if latent else (table.get("head_dim") or hidden // heads),
            ffn=ffn,
            vocab=_size(table, "vocab_size", source),
            bias=bool(style.get("bias")),
            qkv_bias=bool(table.get("attention_bias", style.get("qkv_bias"))),
            max_positions=(table.get("max_position_embeddings") or 0) if style.get("positions") == "learned" else 0,
            tied=bool(table.get("tie_word_embeddings", False)),
            qk_norm=bool(table.get("qk_norm", style.get("qk_norm"))),
            **{key: style[key] for key in ("gated", "norm", "norm_bias", "positions", "squared_relu") if key in style},  # type: ignore[arg-type]
            experts=experts,
            latent=latent,
        )
    except LumosError as error:
        raise LumosError(f"{source}: {error}") from error
    if experts and not model.mixture_layers:
        dense = f"{experts.first_dense} of {model.layers} layers come without, and behind them one of {experts.every} has them"
        raise LumosError(f"{source}: it states {experts.count} experts and no layer that has them ({dense}); correct that")
    return model


def _typed(table: object, keys: Mapping[str, str], source: str) -> Mapping[str, Any]:
    """The keys that are read here, by their first names. keys: other names that an architecture gives them. Raises LumosError where
    one is of another type or out of range."""
    spelt = _spelt(table, keys) if isinstance(table, dict) else {}
    named: Any = {**table, **{key: table[name] for key, name in spelt.items() if name in table}} if isinstance(table, dict) else table
    try:
        return cast("Mapping[str, Any]", msgspec.convert(named, _Config))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the second: text with a lone surrogate
        said = re.sub(r"\$\.(\w+)", lambda match: f"$.{spelt.get(match.group(1), match.group(1))}", str(error))
        raise LumosError(f"{source}: {said}; correct the value, or take the config.json from the model's page") from error


def _spelt(table: Mapping[str, object], keys: Mapping[str, str]) -> dict[str, str]:
    """The name by which each key that is read stands in the file. keys: as in `_typed`."""
    spelt = {key: key for key in READ_KEYS}
    spelt |= {key: name for key, names in KEY_NAMES.items() for name in reversed((key, *names)) if table.get(name) is not None}
    return spelt | {key: name for key, name in keys.items() if name in table}


def _refuse_other_layers(table: Mapping[str, Any], source: str) -> None:
    """Raise LumosError for layers that are not attention of a decoder over its own tokens."""
    others = sorted(set(table.get("layer_types") or ()) - {*FULL, *WINDOWED})
    if others:
        known = ", ".join((*FULL, *WINDOWED))
        raise LumosError(f"{source}: layer_types: {', '.join(others)}: such layers cannot be priced; known: {known}")
    layers = table.get("num_hidden_layers") or 0
    for key in ("layer_types", "mlp_layer_types"):
        if 0 < len(table.get(key) or ()) < layers:
            raise LumosError(f"{source}: {key} has {len(table[key])} of {layers} layers (num_hidden_layers); it must say what each is")
    later, between = "attention that sees what comes later", "attention between two sequences"
    for key, value, what in (
        ("is_encoder_decoder", True, between), ("add_cross_attention", True, between),
        ("is_causal", False, later), ("use_bidirectional_attention", True, later),
    ):  # fmt: skip
        if table.get(key) is value:
            raise LumosError(f"{source}: {key} is {str(value).lower()}: {what} cannot be priced, only decoders that see their own")


def _window(table: Mapping[str, Any], model: Model) -> TokenWindow | None:
    tokens = table.get("sliding_window") or table.get("attention_chunk_size")
    if not tokens or table.get("use_sliding_window") is False:
        return None
    kinds = table.get("layer_types")
    count = sum(kind in WINDOWED for kind in kinds[: model.layers]) if kinds else None
    return TokenWindow(int(tokens), count) if count != 0 else None


def _size(table: Mapping[str, Any], key: str, source: str) -> int:
    value = table.get(key)
    if not value:
        names = ", ".join((key, *KEY_NAMES.get(key, ())))
        raise LumosError(f"{source}: {key} is missing or not a positive whole number; one of {names} must be given")
    return int(value)


def _experts(table: Mapping[str, Any], source: str) -> Experts | None:
    count = table.get("num_experts") or 0
    if count < 2:
        return None
    ffn = table.get("moe_intermediate_size") or table.get("intermediate_size")
    if not ffn:
        raise LumosError(f"{source}: moe_intermediate_size is missing; add the width of one expert")
    shared = table.get("n_shared_experts") or 0
    shared_ffn = table.get("shared_expert_intermediate_size") or shared * ffn
    first, every = table.get("first_k_dense_replace") or 0, table.get("decoder_sparse_step") or 1
    kinds = table.get("mlp_layer_types")
    if kinds:
        first = next((i for i, kind in enumerate(kinds) if kind == "sparse"), len(kinds))
        every = next((i for i, kind in enumerate(kinds[first + 1 :], 1) if kind == "sparse"), 1)
        first -= every - 1
    elif table.get("mlp_only_layers"):
        first = len(table["mlp_only_layers"])
        if sorted(table["mlp_only_layers"]) != list(range(first)):
            raise LumosError(f"{source}: mlp_only_layers: layers without experts among those with can only be priced where they come first")
    return Experts(
        count=count,
        per_token=_size(table, "num_experts_per_tok", source),
        ffn=ffn,
        shared=shared or (1 if shared_ffn else 0),
        shared_ffn=shared_ffn,
        first_dense=max(0, first),
        every=every,
        router_bias=table.get("topk_method") == "noaux_tc",
    )


def _latent(table: Mapping[str, Any], source: str) -> Latent | None:
    if not table.get("kv_lora_rank"):
        return None
    return Latent(
        query_rank=table.get("q_lora_rank") or 0,
        kv_rank=_size(table, "kv_lora_rank", source),
        nope=_size(table, "qk_nope_head_dim", source),
        rope=_size(table, "qk_rope_head_dim", source),
        value=_size(table, "v_head_dim", source),
    )


ARCHITECTURES = Path(__file__).parent / "data" / "architectures.json"


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An architecture that is priced.

    style: fields of `lumos.model.Model` that no key of a `config.json` states (gated, norm, positions, …), where they differ from its
    defaults. defaults: values of keys that a `config.json` may leave out. keys: other names of keys, for types that use a usual name for
    something else. apart: what a layer does besides what is priced, in words; empty where there is nothing. experts: whether some of its
    layers have routed experts.
    """

    style: dict[str, bool | str] = {}
    defaults: dict[str, Any] = {}
    keys: dict[str, str] = {}
    apart: str = ""
    experts: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """transformers: the version of the library that was asked."""

    transformers: str
    priced: dict[str, Architecture]
    refused: dict[str, str]


@cache
def _file() -> _File:
    return msgspec.json.decode(ARCHITECTURES.read_bytes(), type=_File)


def priced_types() -> tuple[str, ...]:
    """Every `model_type` that is priced, sorted."""
    return tuple(sorted(_file().priced))


def architecture(model_type: str, source: str) -> Architecture:
    """The architecture of a `model_type`. Raises LumosError for one that is not priced, with the reason; source: what is read."""
    priced = _file().priced.get(model_type)
    if priced is not None:
        return priced
    if model_type in _file().refused:
        raise LumosError(f"{source}: model_type {model_type!r} cannot be priced: {_file().refused[model_type]}")
    near = ", ".join(get_close_matches(model_type, priced_types(), 3, 0.6))
    hint = f"; nearest: {near}" if near else ""
    raise LumosError(
        f"{source}: model_type {model_type!r} is no known architecture{hint}. If its layers are those of one of the "
        f"{len(priced_types())} known (llama, qwen3, mixtral, deepseek_v3, gpt2, …), write that model_type into a copy of the file"
    )
