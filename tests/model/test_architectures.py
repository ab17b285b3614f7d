"""Which architectures are priced, and what a `config.json` says that is not."""

import json
from math import prod

import pytest
from tools.architectures import BUILD

from lumos.errors import LumosError
from lumos.model.catalogue import load_model, read_model
from lumos.model.hugging_face import priced_types
from lumos.plan.configuration import Settings, job_from

SIZES = {"num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 4096}
SIZES |= {"vocab_size": 1000}


@pytest.fixture
def path(tmp_path):
    def written(**keys):
        (tmp_path / "config.json").write_text(json.dumps({**SIZES, **keys}))
        return str(tmp_path / "config.json")

    return written


def codes(notes):
    return {note.code: note.message for note in notes}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"model_type": "bert"}, "'bert' cannot be priced: it is an encoder"),
        ({"model_type": "mamba"}, "'mamba' cannot be priced"),
        ({"model_type": "jamba", "attn_layer_period": 8}, "'jamba' cannot be priced: its layers hold other matrices"),
        ({"model_type": "qwen3_next"}, "'qwen3_next' cannot be priced: some of its layers are linear_attention"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "is_encoder_decoder is true"),
        ({"model_type": "zorblax"}, "'zorblax' is no known architecture"),
        ({"model_type": "qwen2x"}, "nearest: qwen2"),
        ({"model_type": "llama", "layer_types": ["full_attention", "mamba"]}, "layer_types: mamba"),
        ({"model_type": "llama", "layer_types": ["full_attention"] * 3}, "layer_types has 3 of 4 layers"),
        ({"architectures": ["BertForMaskedLM"]}, "'bert' cannot be priced: it is an encoder"),
        ({"hybrid_override_pattern": "M-M*"}, "keys that a llama does not have: hybrid_override_pattern"),
    ],
)
def test_layers_that_are_not_attention_and_an_mlp_are_refused_by_name(path, keys, reason):
    with pytest.raises(LumosError, match=reason):
        load_model(path(**keys))


def test_the_type_decides_what_no_key_states(path):
    gemma, gpt = load_model(path(model_type="gemma")), load_model(path(model_type="gpt2"))
    assert gemma.gated and gemma.tied and gemma.head_dim == 256 and gemma.norm == "rms"
    assert not gpt.gated and gpt.tied and gpt.positions == "learned" and gpt.norm_bias
    assert load_model(path(model_type="falcon")).kv_heads == 1  # multi_query unless it is said otherwise
    assert load_model(path(model_type="nemotron")).squared_relu


def test_keys_that_were_not_read_are_named(path):
    notes = codes(read_model(path(model_type="llama", rope_theta=1e4, torch_dtype="bfloat16", hyper_layers=3)).notes)
    assert "not read: hyper_layers;" in notes["unread-fields"]
    assert "num_nextn_predict_layers" in codes(read_model(path(model_type="llama", num_nextn_predict_layers=1)).notes)["unread-fields"]
    assert "unread-fields" not in codes(read_model(path(model_type="llama", rope_theta=1e4, use_cache=True)).notes)
    assert "assumed-architecture" in codes(read_model(path()).notes)
    assert "not read: num_layers;" in codes(read_model(path(model_type="llama", num_layers=2)).notes)["unread-fields"]


@pytest.mark.parametrize("of_class", ["LlamaForCausalLM", "LlamaForSequenceClassification", "MambaForCausalLM"])
def test_a_class_that_is_not_the_language_model_of_its_type_is_named(path, of_class):
    named = codes(read_model(path(model_type="llama", architectures=[of_class])).notes)
    assert (of_class in named.get("differs", "")) is (of_class != "LlamaForCausalLM")
    read = read_model(path(architectures=["Qwen3ForCausalLM"]))  # without a type, the class says it
    assert read.model.qk_norm and not read.notes


def test_a_model_that_also_sees_is_priced_as_the_one_that_reads(tmp_path):
    table = {"model_type": "llama4", "text_config": {**SIZES, "model_type": "llama", "head_dim": 64}, "vision_config": {"hidden_size": 1}}
    (tmp_path / "config.json").write_text(json.dumps(table))
    read = read_model(tmp_path)
    assert read.model.head_dim == 64 and "vision_config" in codes(read.notes)["part-of-a-model"]
    (tmp_path / "config.json").write_text(json.dumps({**table, "tie_word_embeddings": True, "vocab_size": 5}))
    read = read_model(tmp_path)
    assert read.model.tied and "not read: vocab_size," in codes(read.notes)["unread-fields"]


@pytest.mark.parametrize(("seq", "asked"), [(1024, False), (16384, True)])
def test_a_window_shorter_than_the_sequence_widens_the_interval(path, seq, asked):
    model = path(model_type="gpt_oss", sliding_window=1024, layer_types=["sliding_attention", "full_attention"] * 2)
    job = job_from(Settings(model=model, cluster="h100", gpus=8, global_batch=8, seq=seq))
    assert ("unpriced-window" in {u.code for u in job.unknowns}) is asked
    if asked:
        (unknown,) = [u for u in job.unknowns if u.code == "unpriced-window"]
        (other,) = unknown.answers.values()
        assert "2 of 4 layers" in unknown.question
        # a document of this length has as many pairs of tokens as the window leaves: n w - w^2 / 2 of n^2 / 2
        assert other.plan.document * seq / 2 == pytest.approx(seq * 1024 - 1024**2 / 2, rel=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("kind", priced_types())
def test_parameters_are_those_of_the_library(kind, tmp_path):
    """With sizes other than those by which the table was written."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sizes = {**BUILD.get(kind, {}), "num_hidden_layers": 6, "vocab_size": 5000}
    try:
        config = transformers.AutoConfig.for_model(kind, **sizes).get_text_config(decoder=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # some types cannot be built by two sizes alone
        pytest.skip(f"{kind}: {type(error).__name__}")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    try:
        read = load_model(tmp_path)
    except LumosError as error:
        pytest.skip(str(error))
    assert read.parameters == pytest.approx(sum(prod(p.shape) for p in model.parameters()), rel=0.01)
