"""Three models of `transformers`, built from their configuration classes with the sizes of the recorded ones, and called for ever.

    python inference.py bert|vit|qwen

No weights are loaded and nothing is asked of the network. Sizes and inputs are those that the recordings of `h100-inference` show.
"""

from __future__ import annotations

import sys

import torch
import transformers


def bert() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """BERT-small with its language head on one text of 141 tokens."""
    config = transformers.BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    mask = torch.ones(1, 141, dtype=torch.int64)
    tokens = {"input_ids": torch.randint(0, config.vocab_size, (1, 141)), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    return transformers.BertForMaskedLM(config), tokens


def vit() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The body of ViT-base, with its pooling layer, on four images."""
    return transformers.ViTModel(transformers.ViTConfig()), {"pixel_values": torch.rand(4, 3, 224, 224).bfloat16()}


def qwen() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The body of Qwen 1.5 with 0.5 billion parameters on sixteen texts of 559 tokens."""
    config = transformers.Qwen2Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
    )
    tokens = torch.randint(0, config.vocab_size, (16, 559))
    return transformers.Qwen2Model(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


MODELS = {"bert": bert, "vit": vit, "qwen": qwen}

if __name__ == "__main__":
    torch.set_default_dtype(torch.bfloat16)  # as `from_pretrained` does, so that what a model keeps in float32 stays so
    model, inputs = MODELS[sys.argv[1]]()
    torch.set_default_dtype(torch.float32)
    model = model.to("cuda").eval()
    inputs = {name: tensor.to("cuda") for name, tensor in inputs.items()}
    with torch.inference_mode():
        while True:
            model(**inputs)
