"""Further models of `transformers`, for the jobs that are drawn (`drawn`): functions of the sizes that a change may set."""

from __future__ import annotations

import torch
import transformers
from torch.nn.functional import cross_entropy
from validation.foreign.model import Model, language_model, tokens


def opt(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    config = transformers.OPTConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        word_embed_proj_dim=hidden,
        num_attention_heads=heads,
        ffn_dim=ffn,
        max_position_embeddings=max(seq, 2048),
        dropout=0.0,
    )
    return language_model(transformers.OPTForCausalLM(config), micro_batch, seq, use_cache=False)


def qwen2(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    config = transformers.Qwen2Config(
        vocab_size=64_000,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=ffn,
    )
    return language_model(transformers.Qwen2ForCausalLM(config), micro_batch, seq, use_cache=False)


def gemma(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    config = transformers.GemmaConfig(
        vocab_size=64_000,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=ffn,
    )
    return language_model(transformers.GemmaForCausalLM(config), micro_batch, seq, use_cache=False)


def roberta(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    config = transformers.RobertaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=ffn,
        max_position_embeddings=seq + 2,
        type_vocab_size=1,
    )
    return language_model(transformers.RobertaForMaskedLM(config), micro_batch, seq)


def deit(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int) -> Model:
    config = transformers.DeiTConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=ffn)
    config.num_labels = 1000
    module = transformers.DeiTForImageClassification(config)
    return Model(
        module,
        lambda: (torch.randn(micro_batch, 3, 224, 224), torch.randint(0, 1000, (micro_batch,))),
        lambda m, b: cross_entropy(m(pixel_values=b[0]).logits, b[1]),
    )


def bart(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    config = transformers.BartConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=hidden,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        max_position_embeddings=max(seq, 1024),
        dropout=0.0,
    )
    module = transformers.BartForConditionalGeneration(config)
    return Model(
        module,
        lambda: (tokens(micro_batch, seq), tokens(micro_batch, seq)),
        lambda m, b: m(input_ids=b[0], labels=b[1], use_cache=False).loss,
    )
