"""What a `config.json` may not say: every such value is refused with its key."""

import json

import pytest

from lumos.errors import LumosError
from lumos.model.hugging_face import read_config

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
LLAMA |= {"vocab_size": 1000, "num_key_value_heads": None, "rope_scaling": {"factor": 8.0}}
MIXTURE = {"num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.fixture
def read(tmp_path):
    def changed(**keys):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **keys}))
        return read_config(tmp_path).model

    return changed


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": [1]}, r"model_type"),
        ({"hidden_size": "\ud83d"}, "surrogates not allowed"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"text_config": 5}, "Expected `object`, got `int`"),
        ({"attention_bias": "no"}, "attention_bias"),
        ({"attn_config": 5}, "attn_config"),
        ({"num_hidden_layers": 10**6}, "layers = 1000000 must be from 1 to 16,384"),
        ({"hidden_size": 4 * 10**9}, "hidden = 4000000000 must be from 1 to"),
        ({"vocab_size": -1}, "`int` >= 0 - at `.*vocab_size"),
        ({"num_attention_heads": 5}, r"hidden_size \(64\) is no multiple of num_attention_heads \(5\)"),
        ({**MIXTURE, "num_experts_per_tok": 9}, r"per_token \(9\) must be at most count \(8\)"),
        ({**MIXTURE}, "num_local_experts = 8, but llama has no experts; correct model_type"),
        ({**MIXTURE, "model_type": "qwen3_moe", "first_k_dense_replace": 2}, "8 experts and no layer that has them .2 of 2 layers"),
        ({"num_key_value_head": 2}, "num_key_value_head = 2 is not read; is num_key_value_heads meant"),
        ({"is_causal": False}, "is_causal is false: attention that sees what comes later"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true: attention that sees what comes later"),
        ({"model_type": "gemma3n_text", "intermediate_size": [128]}, "'gemma3n_text' cannot be priced: its layers hold other matrices"),
        ({"model_type": "lfm2"}, "'lfm2' cannot be priced: most of its layers are convolutions"),
        ({**MIXTURE, "n_shared_experts": "x"}, "n_shared_experts"),
        ({**MIXTURE, "moe_layer_freq": "x"}, "moe_layer_freq"),
        ({"kv_lora_rank": 8, "qk_nope_head_dim": 1, "qk_rope_head_dim": 1, "v_head_dim": 1, "q_lora_rank": "x"}, "q_lora_rank"),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_with_its_key(read, keys, said):
    with pytest.raises(LumosError, match=said) as refused:
        read(**keys)
    assert "config.json" in str(refused.value)
