"""Settings that measured blocks cannot answer are refused one by one, each with its own reason."""

from __future__ import annotations

import pytest
from tests.changes.layout.test_replicated import job_of

from lumos.changes.changes import Changes
from lumos.changes.plan.needs import refusal
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError


def test_only_settings_that_need_the_plan_are_named():
    said = str(refusal({"layers": "4", "precision": "fp8", "schedule": "zero-bubble", "zero": "3"}, "no attention"))
    assert "precision=fp8: kernels for this type" in said
    assert "schedule=zero-bubble: it runs the two halves" in said
    assert "layers" not in said
    assert "zero=3" not in said
    assert "here it is not: no attention." in said


@pytest.mark.parametrize(("word", "why"), [("precision=fp8", "kernels for this type"), ("recompute=selective", "which parts of a layer")])
def test_a_job_without_a_plan_says_what_the_key_needs(tmp_path, word, why):
    with pytest.raises(LumosError, match=f"--set {word}: {why}.* shows no attention operators"):
        answer_changes(*job_of(tmp_path, (512, 512), (512, 512)), Changes(parse_settings([word])), force=True)
