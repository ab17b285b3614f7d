"""Profiles: read from their file, chosen by name and year."""

import tomllib
from dataclasses import replace

import pytest

from lumos.errors import UsageError
from lumos.plan.configuration import Settings, job_from
from lumos.plan.profiles import _DATA, Told, choose, framework_profile, named, release_of
from lumos.vocabulary import Precision


@pytest.mark.parametrize(
    ("text", "year", "name"),
    [
        ("Megatron-LM", 2021, "megatron-2021"),
        ("Megatron-LM (Megatron Core)", 2026, "megatron-core"),
        ("Megatron-DeepSpeed", 2023, "megatron-deepspeed"),
        ("NeMo (Megatron Core)", 2024, "nemo"),
        ("MLPerf submission", 2025, "mlperf"),
        ("Megatron Bridge (Megatron Core)", 2025, "megatron-bridge"),
        ("MaxText", 2024, "jax"),
        ("Primus (Megatron Core)", 2025, "megatron-core"),
        ("torchtitan FSDP2", 2025, "fsdp2"),
        ("llm-foundry FSDP", 2023, "generic"),
        ("DeepSpeed ZeRO", 2023, "generic"),
        ("nanotron", 2025, "nanotron"),
        ("InternEvo", 2024, "internevo"),
        ("PyTorch FSDP", 2024, "fsdp2"),
        ("torchtitan compiled", None, "fsdp2-compiled"),
        ("NeMo 22.09", None, "megatron-2021"),
        ("NeMo AutoModel", 2025, "fsdp2"),
        ("Megatron-LM of 2021", None, "megatron-2021"),
    ],
)
def test_choice_by_name_and_year(text, year, name):
    assert choose(text, year)[0].name == name


def test_a_framework_is_named_by_its_profile_or_as_tables_have_it():
    assert named("fsdp2") == (framework_profile("fsdp2"), "")
    assert named("torchtitan") == (framework_profile("fsdp2"), "torch FSDP2, eager")
    with pytest.raises(UsageError, match="did you mean 'nemo'"):
        named("nemmo")


def test_versions_differ_from_their_profile_in_what_they_state():
    base = framework_profile("megatron-2021")
    assert choose("Megatron-LM", 2022)[0] == replace(base, tp_async=True, fused_accumulation=True)
    assert choose("Megatron-LM", 2020)[0] == base


def test_remarks_tell_a_compiled_framework_from_an_eager_one():
    assert choose("torchtitan FSDP2", 2025, "torch.compile")[0] == framework_profile("fsdp2-compiled")


def test_every_value_has_a_source():
    table = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    values = [table["defaults"], *(each["values"] for one in table["profile"] for each in (one, *one.get("version", ())))]
    assert all(value.keys() == {"value", "source"} and value["source"] for of in values for value in of.values())


def test_a_release_has_values_of_its_own():
    """The notes of a row, or the name that a user gives, tell the release; the profile's own values hold where neither does."""
    base = framework_profile("megatron-bridge")
    since = choose("Megatron Bridge", 2025, "26.06.01 NeMo Container").framework
    assert since == replace(base, grouped_kernel=True, cuda_graphs=True, fp8_activations=True)
    assert choose("Megatron Bridge", 2025, "26.08 NeMo Container").framework == since == named("megatron bridge 26.06").framework
    assert choose("Megatron Bridge", 2025, "26.04.01 NeMo Container").framework == base == choose("Megatron Bridge", 2025).framework
    assert release_of("25.11 NeMo Container") == "25.11"
    assert release_of("128.06 tokens, torch 2.10, 26.13") is None


def test_a_release_that_is_not_told_is_asked_for_where_it_matters():
    def asked(framework: str, model: str) -> bool:
        job = job_from(Settings(model=model, cluster="gb200", gpus=8, global_batch=64, seq=4096, framework=framework))
        return "unknown-release" in {u.code for u in job.unknowns}

    assert asked("megatron-bridge", "qwen3-30b-a3b")
    assert not asked("megatron bridge 26.04", "qwen3-30b-a3b")  # told, and older
    assert not asked("megatron bridge 26.06", "qwen3-30b-a3b")
    assert not asked("megatron-bridge", "llama3-8b")  # no experts


def test_a_plan_tells_something_of_a_framework_without_a_profile():
    """torch FSDP and DeepSpeed shard parameters, and leave attention to FlashAttention 2; 8 bit without that is Transformer Engine's."""
    generic = framework_profile("generic")
    for told in (Told(3), Told(3, Precision.FP8)):
        assert choose("HomeGrown", 2025, told=told).framework == replace(generic, attention="fa2")
    assert choose("HomeGrown", 2025, told=Told(1)).framework == choose("HomeGrown", 2025, told=Told(1, Precision.BF16)).framework == generic
    assert choose("HomeGrown", 2025, told=Told(1, Precision.FP8)).framework == replace(generic, fp8_norms=True, fused_accumulation=True)
    assert named("generic", Told(3)).framework.attention == "fa2"
    assert named("generic", Told(1)) == named("generic")
    assert choose("NeMo", 2025, told=Told(3)).framework == framework_profile("nemo")


def test_what_selective_recomputation_computes_is_asked_where_it_is_selected():
    def asked(**changes: object) -> bool:
        settings = Settings(model="llama3-8b", cluster="h100", gpus=8, global_batch=8, seq=4096, framework="generic", **changes)
        return "unknown-selective" in {u.code for u in job_from(settings).unknowns}

    assert asked(recompute="selective")
    assert not asked(recompute="none")
    assert not asked(recompute="selective", switches={"selective": "alternate"})
