"""Profiles: chosen by name and year, and changed switch by switch."""

from __future__ import annotations

import pytest

from lumos.errors import UsageError
from lumos.plan.framework import choose, profile, with_switches


@pytest.mark.parametrize(
    ("text", "year", "name"),
    [
        ("Megatron-LM", 2021, "megatron-2021"),
        ("Megatron-LM (Megatron Core)", 2026, "megatron-core"),
        ("Megatron-DeepSpeed", 2023, "megatron-deepspeed"),
        ("NeMo (Megatron Core)", 2024, "nemo"),
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


def test_switches_are_parsed_by_their_kind():
    changed = with_switches(profile("fsdp"), {"tp_overlap": "on", "host_us": "12.5", "attention": "fa3", "gradient_bytes": "2"})
    assert (changed.tp_overlap, changed.host_us, changed.attention, changed.gradient_bytes) == (True, 12.5, "fa3", 2)


@pytest.mark.parametrize(
    ("switches", "word"),
    [
        ({"tp_overlp": "on"}, "did you mean 'tp_overlap'"),
        ({"tp_overlap": "maybe"}, "not on or off"),
        ({"host_us": "quick"}, "not a number"),
    ],
)
def test_wrong_switches(switches, word):
    with pytest.raises(UsageError, match=word):
        with_switches(profile("fsdp"), switches)


def test_unknown_profile_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'fsdp'"):
        profile("fsdpp")
