"""Other people's models: those of `transformers` and of `torch.nn`, and a recommender written in the manner of DLRM.

A model function takes the sizes that a change may set.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from validation.foreign.drawn_models import bart, deit, gemma, opt, qwen2, roberta
from validation.foreign.handwritten import decoder, pictures
from validation.foreign.later_models import convnext, falcon, gpt_neox, mamba2, qwen3_moe, unet, whisper
from validation.foreign.megatron_core import megatron_gpt
from validation.foreign.model import Model, language_model, tokens
from validation.foreign.odd_models import bags, capacity, latents, lora, preferences, time_loop, two_lengths
from validation.foreign.torchtitan_models import torchtitan_llama


def gpt2(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int, vocabulary: int = 50257) -> Model:
    config = transformers.GPT2Config(
        n_layer=layers,
        vocab_size=vocabulary,
        n_embd=hidden,
        n_head=heads,
        n_inner=ffn,
        n_positions=max(seq, 1024),
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    return language_model(transformers.GPT2LMHeadModel(config), micro_batch, seq, use_cache=False)


def llama(layers: int, hidden: int, heads: int, micro_batch: int, seq: int, ffn: int, kv_heads: int, vocabulary: int = 32000) -> Model:
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max(seq, 2048),
    )
    return language_model(transformers.LlamaForCausalLM(config), micro_batch, seq, use_cache=False)


def mixtral(layers: int, hidden: int, heads: int, micro_batch: int, seq: int, ffn: int, experts: int, vocabulary: int = 32000) -> Model:
    config = transformers.MixtralConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        num_local_experts=experts,
        max_position_embeddings=max(seq, 2048),
    )
    return language_model(transformers.MixtralForCausalLM(config), micro_batch, seq, use_cache=False)


def bert(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int, vocabulary: int = 30522) -> Model:
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=ffn,
        max_position_embeddings=max(seq, 512),
    )
    return language_model(transformers.BertForMaskedLM(config), micro_batch, seq)


def t5(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int, vocabulary: int = 32128) -> Model:
    config = transformers.T5Config(
        num_layers=layers,
        vocab_size=vocabulary,
        d_model=hidden,
        num_heads=heads,
        d_kv=hidden // heads,
        d_ff=ffn,
        dropout_rate=0.0,
        use_cache=False,
    )
    config.update({"decoder_start_token_id": 0})
    module = transformers.T5ForConditionalGeneration(config)
    return Model(module, lambda: (tokens(micro_batch, seq), tokens(micro_batch, seq)), lambda m, b: m(input_ids=b[0], labels=b[1]).loss)


def vit(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int) -> Model:
    config = transformers.ViTConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=ffn)
    config.num_labels = 1000
    module = transformers.ViTForImageClassification(config)
    return Model(
        module,
        lambda: (torch.randn(micro_batch, 3, 224, 224), torch.randint(0, 1000, (micro_batch,))),
        lambda m, b: cross_entropy(m(pixel_values=b[0]).logits, b[1]),
    )


def resnet(micro_batch: int, image: int = 224) -> Model:
    config = transformers.ResNetConfig()
    config.num_labels = 1000
    module = transformers.ResNetForImageClassification(config)
    return Model(
        module,
        lambda: (torch.randn(micro_batch, 3, image, image), torch.randint(0, 1000, (micro_batch,))),
        lambda m, b: cross_entropy(m(pixel_values=b[0]).logits, b[1]),
    )


class _Translator(nn.Module):
    """An encoder and a decoder of `torch.nn` between an embedding and a head."""

    def __init__(self, layers: int, hidden: int, heads: int, ffn: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.body = nn.Transformer(hidden, heads, layers, layers, ffn, dropout=0.0, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embedding(source), self.embedding(target)))
        return out


def translator(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int, vocabulary: int = 16000) -> Model:
    module = _Translator(layers, hidden, heads, ffn, vocabulary)
    return Model(
        module,
        lambda: (tokens(micro_batch, seq), tokens(micro_batch, seq)),
        lambda m, b: cross_entropy(m(b[0], b[1]).flatten(0, 1), b[1].flatten()),
    )


class _Recurrent(nn.Module):
    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.body = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embedding(tokens))[0])
        return out


def lstm(layers: int, hidden: int, micro_batch: int, seq: int, vocabulary: int = 10000) -> Model:
    module = _Recurrent(layers, hidden, vocabulary)
    return Model(module, lambda: (tokens(micro_batch, seq),), lambda m, b: cross_entropy(m(b[0]).flatten(0, 1), b[0].flatten()))


class _Recommender(nn.Module):
    """Dense features through one tower, sparse ones through tables, their products through another tower, as DLRM does (Naumov, 2019)."""

    pairs: Tensor

    def __init__(self, tables: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, width)
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1)
        )
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1), persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        first, second = self.pairs
        out: Tensor = self.top(torch.cat([products[:, first, second], bottom], 1))
        return out


def dlrm(tables: int, width: int, width_of_towers: int, micro_batch: int) -> Model:
    module = _Recommender(tables, 100_000, width, width_of_towers)
    return Model(
        module,
        lambda: (torch.randn(micro_batch, 13), torch.randint(0, 100_000, (micro_batch, tables)), torch.rand(micro_batch, 1)),
        lambda m, b: binary_cross_entropy_with_logits(m(b[0], b[1]), b[2]),
    )


MODELS: dict[str, Callable[..., Model]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mixtral": mixtral,
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "resnet": resnet,
    "translator": translator,
    "lstm": lstm,
    "dlrm": dlrm,
    "opt": opt,
    "qwen2": qwen2,
    "gemma": gemma,
    "roberta": roberta,
    "deit": deit,
    "bart": bart,
    "gpt_neox": gpt_neox,
    "falcon": falcon,
    "qwen3_moe": qwen3_moe,
    "mamba2": mamba2,
    "whisper": whisper,
    "convnext": convnext,
    "unet": unet,
    "decoder": decoder,
    "pictures": pictures,
    "megatron": megatron_gpt,
    "torchtitan": torchtitan_llama,
    "bags": bags,
    "time_loop": time_loop,
    "latents": latents,
    "two_lengths": two_lengths,
    "lora": lora,
    "preferences": preferences,
    "capacity": capacity,
}
#: Families whose own package shares their layers among tensor-parallel ranks.
SPREAD_BY_PACKAGE = ("megatron",)
