"""Numbers of parameters are exact: compared with those of the model cards and config.json files."""

from dataclasses import replace

import pytest

from lumos.errors import UsageError
from lumos.model import Model, load_model

#: Totals of the safetensors indices on Hugging Face (or, for MPT, of llm-foundry's benchmark table, learned positions of
#: 2,048).
PUBLISHED = {
    "llama2-7b": 6_738_415_616, "llama2-13b": 13_015_864_320, "llama2-70b": 68_976_648_192, "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800, "llama3.2-1b": 1_235_814_400, "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_630_071_296, "qwen3-0.6b": 596_049_920, "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560, "deepseek-v2": 235_741_434_880, "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
}  # fmt: skip


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_are_the_published_ones(name, count):
    assert load_model(name).parameters == count


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt3-15b", 15), ("gpt3-44b", 44), ("gpt3-117b", 117), ("gpt3-175b", 175), ("deepseek-v3", 671)]
)
def test_named_sizes_match_their_counts(name, billions):
    assert load_model(name).parameters == pytest.approx(billions * 1e9, rel=0.02)


def test_attention_width_need_not_be_hidden():
    model = load_model("gpt3-44b")
    assert (model.attention_width, model.hidden) == (6144, 12288)
    square = replace(model, head_dim=256)
    assert square.layer_parameters().attention == 2 * model.layer_parameters().attention - model.hidden


def test_active_parameters_count_chosen_experts_only():
    model = load_model("qwen3-30b-a3b")
    assert model.active_parameters == pytest.approx(3.3e9, rel=0.02)
    assert load_model("llama3-8b").active_parameters == load_model("llama3-8b").parameters


def test_flops_are_six_per_weight_and_half_of_attention():
    model = load_model("llama2-7b")
    weights = model.parameters - 32000 * 4096
    assert model.flops_per_token(4096) == 6 * weights + 6 * 32 * 4096 * 4096
    assert load_model("gpt3-175b").flops_per_token(2048) == pytest.approx(6 * 174.6e9 + 6 * 96 * 12288 * 2048, rel=0.001)


def test_dimensions_that_contradict_are_refused():
    with pytest.raises(UsageError, match="multiple of kv_heads"):
        Model("x", layers=1, hidden=8, heads=4, kv_heads=3, head_dim=2, ffn=8, vocab=8)
