"""Write which causal language models of the library transformers can be priced to src/lumos/model/data/architectures.json.

    python -m tools.architectures

needs torch and transformers. Every model is built by its default configuration without memory for its weights. One is priced if each of
its layers has exactly the matrices that `lumos.model.Model` counts for the same configuration; what norms and biases it has is
read off its parameters. What it writes is part of the source, so that Lumos itself needs neither library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import msgspec

from lumos.errors import LumosError
from lumos.model.hugging_face import ARCHITECTURES, FULL, KEY_NAMES, READ_KEYS, WINDOWED, Architecture, read_as
from lumos.model.transformer import Model

#: Keys that a configuration says itself, be it for a model or inside one that also sees or hears.
OWN = {
    "model_type", "architectures", "_name_or_path", "layer_types", "mlp_layer_types", "is_encoder_decoder", "add_cross_attention",
    "num_nextn_predict_layers",
}  # fmt: skip
#: Keys whose defaults are sizes, which every configuration of a model states; the part of one that only reads text leaves them out.
SIZES = {
    *OWN, "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "shared_expert_intermediate_size", "attention_chunk_size",
    "first_k_dense_replace", "n_shared_experts",
}  # fmt: skip
#: Types whose keys mean something else than usual, from the library's modules of those names.
KEYS = {"llama4_text": {"intermediate_size": "intermediate_size_mlp", "moe_intermediate_size": "intermediate_size"}}
DEFAULTS = {"llama4_text": {"n_shared_experts": 1}}
#: Layers that multiply what others do, in another order or with other kernels between. From the library's modules of those names.
APART = {
    "falcon": "attention and MLP of a layer run side by side on one input, so that tensor parallelism exchanges half as often",
    "gptj": "attention and MLP of a layer run side by side on one input, so that tensor parallelism exchanges half as often",
    "phi": "attention and MLP of a layer run side by side on one input, so that tensor parallelism exchanges half as often",
    "cohere": "attention and MLP of a layer run side by side on one input, so that tensor parallelism exchanges half as often",
    "cohere2": "attention and MLP of a layer run side by side on one input, so that tensor parallelism exchanges half as often",
    "gpt_neox": "attention and MLP of a layer may run side by side on one input (use_parallel_residual)",
    "gemma2": "a layer has four norms, and caps its scores", "gemma3_text": "a layer has four norms",
}  # fmt: skip
#: Values without which the library's default configuration cannot be built, or is none of its models.
BUILD = {
    "deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128}, "nemotron": {"num_key_value_heads": 48, "head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128, "num_key_value_heads": 32}, "ministral": {"head_dim": 128}, "dots1": {"head_dim": 128},
}  # fmt: skip
#: Types of models that are published with code of their own, and the type that has the same layers.
SAME = {"kimi_k2": "deepseek_v3", "internlm2": "llama"}
#: Types with the usual matrices and another use of them, from the library's modules of those names.
OTHERWISE = {
    "bitnet": "its weights have three values", "diffllama": "its attention subtracts two maps of scores",
    "gpt_neo": "its attention sees every token in half of the layers only (attention_types)",
    "doge": "its attention masks what it computes", "moshi": "it predicts streams of audio", "git": "it sees images",
    "bert-generation": "it is an encoder, whose attention sees what comes later",
    "lfm2": "most of its layers are convolutions", "minimax_m3_vl_text": "most of its layers attend to blocks that an index selects",
}  # fmt: skip


#: How far the whole number of parameters may be off: norms and biases that no work depends on.
WHOLE = 0.005


class Built(NamedTuple):
    """A model of the library: its configuration, the parameters of each layer and those outside layers, as (name, shape), and the
    names of its modules' classes."""

    config: dict[str, Any]
    layers: list[list[tuple[str, tuple[int, ...]]]]
    outer: list[tuple[str, tuple[int, ...]]]
    classes: set[str]


def main() -> None:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    priced, refused = {}, {}
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            built = build(kind)
            priced[built.config["model_type"]] = found_architecture(built)
        except LumosError as error:
            refused[kind] = str(error)
    priced |= {kind: priced[other] for kind, other in SAME.items()}
    rows = {kind: {key: value for key, value in msgspec.to_builtins(each).items() if value} for kind, each in sorted(priced.items())}
    table: dict[str, dict[str, Any]] = {"priced": rows, "refused": {kind: refused[kind] for kind in sorted(refused) if kind not in priced}}
    parts = {name: ",\n".join(f"{json.dumps(kind)}: {json.dumps(each)}" for kind, each in part.items()) for name, part in table.items()}
    text = f'{{"transformers": "{transformers.__version__}",\n"priced": {{\n{parts["priced"]}}},\n"refused": {{\n{parts["refused"]}}}}}\n'
    ARCHITECTURES.write_text(text, encoding="utf-8")


def build(kind: str) -> Built:
    """The causal language model of a `model_type`, with the sizes of its default configuration. Raises LumosError where it has none."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.for_model(kind, **BUILD.get(kind, {})).get_text_config(decoder=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # the library has many, of all kinds
        raise LumosError(f"the library could not build it ({type(error).__name__})") from error
    stacks = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList) and len(part) > 1]
    if not stacks:
        raise LumosError("it has no stack of layers")
    name, stack = max(stacks, key=lambda each: sum(p.numel() for p in each[1].parameters()))
    layers = [[(key, tuple(p.shape)) for key, p in layer.named_parameters()] for layer in stack]
    outer = [(key, tuple(p.shape)) for key, p in model.named_parameters() if not key.startswith(f"{name}.")]
    return Built(config.to_dict(), layers, outer, {type(part).__name__ for part in model.modules()})


def found_architecture(built: Built) -> Architecture:
    """How the model's layers are read. Raises LumosError if no reading has their matrices."""
    config, kind = built.config, built.config["model_type"]
    if kind in OTHERWISE:
        raise LumosError(OTHERWISE[kind])
    if config.get("is_encoder_decoder") or any("cross" in key for layer in built.layers for key, _ in layer):
        raise LumosError("it attends to a second sequence")
    others = sorted(set(config.get("layer_types") or ()) - {*FULL, *WINDOWED})
    if others:
        raise LumosError(f"some of its layers are {', '.join(others)}")
    if "num_attention_heads" not in config and not any(name in config for name in KEY_NAMES["num_attention_heads"]):
        raise LumosError("it has an encoder beside its decoder" if "encoder_layers" in config else "it states no num_attention_heads")
    if config.get("is_decoder") is False and "type_vocab_size" in config:
        raise LumosError("it is an encoder, whose attention sees what comes later")
    parameters = built.layers[-1]
    biases = [key for key, _ in parameters if key.endswith("bias") and "norm" not in key and "ln_" not in key]
    inputs = [key for key in biases if any(word in key for word in ("q_proj", "query", "c_attn", "qkv", "Wqkv", "k_proj", "v_proj"))]
    norms = [c for c in built.classes if "norm" in c.lower()]
    table = sum(len(shape) == 2 and ("pos" in key or "wpe" in key) for key, shape in built.outer)
    sizes = sum(prod(shape) for part in (*built.layers, built.outer) for _, shape in part)
    style: dict[str, bool | str] = {
        "norm": "rms" if any("RMS" in c or "rms" in c for c in norms) else "layer",
        "norm_bias": any(key.endswith("bias") and ("norm" in key.lower() or "ln_" in key) for key, _ in parameters),
        "bias": len(biases) > len(inputs),
        "qkv_bias": bool(inputs),
        "positions": "rope" if any("otary" in c for c in built.classes) else "learned" if table else "none",
        "qk_norm": any(word in key for key, _ in parameters for word in ("q_norm", "query_layernorm", "q_layernorm", "query_norm")),
        "squared_relu": config.get("hidden_act") in ("relu2", "relu_squared"),
    }
    mixture = any(config.get(name) for name in ("num_experts", *KEY_NAMES["num_experts"]))
    keys, defaults = KEYS.get(kind, {}), {**_defaults(config), **DEFAULTS.get(kind, {})}
    for gated in (True, False):
        plain = {"rms", "rope", False}  # what `lumos.model.Model` has unless it is told
        own = {key: value for key, value in {"gated": gated, **style}.items() if value not in plain}
        known = Architecture(own, defaults, keys, APART.get(kind, ""), mixture)
        try:
            model = read_as(config, known, kind, kind).model
        except LumosError:  # sizes that this reading needs are not there
            continue
        if abs(model.parameters / sizes - 1) < WHOLE and list(map(_matrices, built.layers)) == _counted(model):
            return known
    raise LumosError("its layers hold other matrices than those of attention and an MLP")


def _defaults(config: dict[str, Any]) -> dict[str, Any]:
    """What a `config.json` of the model may leave out, by the first name of each key."""
    names = {key: (key, *KEY_NAMES.get(key, ())) for key in READ_KEYS}
    named = {key: next((config[name] for name in names[key] if config.get(name) is not None), None) for key in READ_KEYS}
    hidden, heads = named["hidden_size"], named["num_attention_heads"]
    if hidden and heads and named["head_dim"] == hidden // heads:
        named["head_dim"] = None  # it follows from the others
    left_out = OWN if config["model_type"].endswith("_text") else SIZES
    kept = {key: value for key, value in sorted(named.items()) if key not in left_out and value is not None}
    return {key: value for key, value in kept.items() if not isinstance(value, dict | list)}


def _matrices(layer: Sequence[tuple[str, tuple[int, ...]]]) -> int:
    """Elements of a layer's matrices. Biases of experts are stacked to one, and are none."""
    sizes = [prod(shape) for key, shape in layer if len(shape) > 1 and "bias" not in key and "shared_expert_gate" not in key]
    return sum(sizes)


def _counted(model: Model) -> list[int]:
    """Elements of the matrices of each layer as they are multiplied here."""
    bare = replace(model, bias=False, qkv_bias=False)
    found = []
    for i in range(model.layers):
        part = bare.layer_parameters(model.is_mixture(i))
        latent = 0 if model.latent is None else model.latent.query_rank + model.latent.kv_rank
        corrections = model.experts.count if model.experts is not None and model.experts.router_bias and model.is_mixture(i) else 0
        found.append(part.attention + part.mlp + part.expert - latent - corrections)
    return found


if __name__ == "__main__":
    main()
