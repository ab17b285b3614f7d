"""Profiles: read from their file, chosen by name and year."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from lumos.errors import UsageError
from lumos.plan.profiles import _DATA, choose, framework_profile, named, profile_questions, profiles


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
        ("llm-foundry FSDP", 2023, "llm-foundry"),
        ("DeepSpeed ZeRO", 2023, "deepspeed"),
        ("InternEvo", 2024, "internevo"),
        ("PyTorch FSDP", 2024, "fsdp"),
    ],
)
def test_choice_by_name_and_year(text, year, name):
    assert choose(text, year)[0].name == name


def test_unknown_frameworks_are_said_to_be_assumed():
    assert "not known" in choose("HomeGrown", 2025)[1]


def test_attention_of_the_era():
    assert choose("llm-foundry FSDP", 2023)[0].attention == "fa1"
    assert choose("llm-foundry FSDP", 2024)[0].attention == "fa2"


def test_unknown_profile_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'fsdp'"):
        framework_profile("fsdpp")


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


def test_a_profile_like_another_has_its_values_and_questions():
    nemo, bridge = framework_profile("nemo"), framework_profile("megatron-bridge")
    assert bridge == replace(nemo, name="megatron-bridge", deep_ep=True)
    assert profile_questions("megatron-bridge") == profile_questions("nemo") != ()


def test_remarks_name_a_framework_that_the_column_does_not():
    assert choose("NeMo (Megatron Core)", 2025, "Llama2 70B (MaxText)").framework.name == "jax"
    assert choose("NeMo (Megatron Core)", 2025, "MLPerf Training v4.0").framework.precision == "fp8"


def test_every_choice_leads_to_a_profile():
    table = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    assert {choice["profile"] for choice in table["choice"]} == set(profiles()) - {table["unknown"]}
    assert table["unknown"] in profiles()


def test_every_value_has_a_source():
    table = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    values = [table["defaults"], *(each["values"] for one in table["profile"] for each in (one, *one.get("version", ())))]
    assert all(value.keys() == {"value", "source"} and value["source"] for of in values for value in of.values())
