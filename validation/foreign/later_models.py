"""Models for the draws after the first (`drawn`): of `transformers`, and the U-Net of `diffusers`, which need not be installed else."""

from __future__ import annotations

import torch
import transformers
from torch.nn.functional import cross_entropy, mse_loss
from validation.foreign.model import Model, language_model, tokens


def gpt_neox(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    config = transformers.GPTNeoXConfig(
        vocab_size=50_432,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=ffn,
        max_position_embeddings=max(seq, 2048),
    )
    return language_model(transformers.GPTNeoXForCausalLM(config), micro_batch, seq, use_cache=False)


def falcon(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int) -> Model:
    """One head of keys and values for all queries, and a feed-forward part beside the attention."""
    config = transformers.FalconConfig(
        vocab_size=65_024,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        ffn_hidden_size=ffn,
        max_position_embeddings=max(seq, 2048),
    )
    return language_model(transformers.FalconForCausalLM(config), micro_batch, seq, use_cache=False)


def qwen3_moe(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, experts: int, micro_batch: int, seq: int) -> Model:
    config = transformers.Qwen3MoeConfig(
        vocab_size=64_000,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        moe_intermediate_size=ffn,
        num_experts=experts,
        num_experts_per_tok=4,
    )
    return language_model(transformers.Qwen3MoeForCausalLM(config), micro_batch, seq, use_cache=False)


def mamba2(layers: int, hidden: int, micro_batch: int, seq: int) -> Model:
    """A state-space model, whose scan over chunks of the sequence is written in plain operators."""
    config = transformers.Mamba2Config(
        vocab_size=32_000, num_hidden_layers=layers, hidden_size=hidden, num_heads=hidden * 2 // 64, head_dim=64, n_groups=1, chunk_size=128
    )
    return language_model(transformers.Mamba2ForCausalLM(config), micro_batch, seq, use_cache=False)


def whisper(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int) -> Model:
    """Half a minute of sound, 3,000 frames, through two convolutions into the encoder; the decoder writes 224 tokens."""
    config = transformers.WhisperConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=hidden,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        dropout=0.0,
    )
    module = transformers.WhisperForConditionalGeneration(config)
    return Model(
        module,
        lambda: (torch.randn(micro_batch, config.num_mel_bins, 3000), tokens(micro_batch, 224)),
        lambda m, b: m(input_features=b[0], labels=b[1], use_cache=False).loss,
    )


def convnext(micro_batch: int) -> Model:
    config = transformers.ConvNextConfig()
    config.num_labels = 1000
    module = transformers.ConvNextForImageClassification(config)
    return Model(
        module,
        lambda: (torch.randn(micro_batch, 3, 224, 224), torch.randint(0, 1000, (micro_batch,))),
        lambda m, b: cross_entropy(m(pixel_values=b[0]).logits, b[1]),
    )


def unet(hidden: int, micro_batch: int) -> Model:
    """The noise of pictures of 32 × 32 in four channels, found with the help of a text of 77 vectors, as in latent diffusion."""
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(hidden, 2 * hidden, 4 * hidden),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=768,
        attention_head_dim=hidden // 8,
    )

    def batch() -> tuple[torch.Tensor, ...]:
        picture = micro_batch, 4, 32, 32
        return torch.randn(picture), torch.randn(picture), torch.randint(0, 1000, (micro_batch,)), torch.randn(micro_batch, 77, 768)

    return Model(module, batch, lambda m, b: mse_loss(m(b[0], b[2], b[3]).sample.float(), b[1].float()))
