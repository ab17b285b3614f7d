"""Models by the spellings of published tables, and from Hugging Face configurations."""

import json

import pytest

from lumos.errors import LumosError
from lumos.model import load_model, model_names


@pytest.mark.parametrize("spelling", ["Llama3.1 8B", "llama-3.1-8b", "LLAMA3-8B", "meta-llama/Meta-Llama-3.1-8B"])
def test_spellings_of_one_model(spelling):
    assert load_model(spelling.removeprefix("meta-llama/")).name == "llama3-8b"


def test_unknown_name_lists_the_nearest():
    with pytest.raises(LumosError, match="nearest: llama3-70b"):
        load_model("llama3-71b")


def test_a_name_longer_than_any_file_s_is_an_unknown_one():
    with pytest.raises(LumosError, match=r"^model '\[{100}' is not known"):
        load_model("[" * 5000)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
DEEPSEEK = {
    "model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120, "num_attention_heads": 128, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


@pytest.mark.parametrize(("table", "count"), [(LLAMA, 8_030_261_248), (DEEPSEEK, 235_741_434_880), (GPT2, 124_439_808)])
def test_hugging_face_config(tmp_path, table, count):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(table))
    assert load_model(str(path)).parameters == count
    assert load_model(str(tmp_path)).parameters == count


@pytest.mark.parametrize("text", ["[1]", "not json", "[" * 100_000])
def test_file_that_is_no_config(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(LumosError, match=r"config\.json"):
        load_model(str(path))


def test_every_name_is_its_own_model():
    """gpt3-1.3b and gpt3-13b differ only in the decimal point."""
    assert {name: load_model(name).name for name in model_names()} == {name: name for name in model_names()}
    assert load_model("GPT3 1.3B").name == "gpt3-1.3b" and load_model("gpt3_13b").name == "gpt3-13b"
    assert load_model("llama32-1b").name == "llama3.2-1b"
