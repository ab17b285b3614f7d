"""The fuzzer of the verbs finds what it looks for: an exception that nobody foresaw, and where it came from."""

from random import Random

import pytest
from tools.fuzz_inputs import FAMILIES
from tools.fuzz_verbs import fault_of, fuzz

from lumos.errors import LumosError


@pytest.mark.parametrize(("raised", "kind"), [(LumosError("refused"), None), (KeyError("trusted"), "KeyError")])
def test_only_an_error_that_nobody_foresaw_is_a_fault(monkeypatch, raised, kind):
    def cost(*_, **__):
        raise raised

    monkeypatch.setattr("lumos.cost.cluster.load_cluster", cost)
    result = fault_of(["cost", "gemm", "--on", "h100", "--m", "8", "--n", "8", "--k", "8"])
    assert (result and result[0].kind) == kind


def test_a_second_of_every_family_of_small_files():
    """`make fuzz` runs hours of it."""
    small = [family for family in FAMILIES if family.name in ("coefficients", "passes", "a Chakra set")]
    calls, faults = fuzz(small, 1.0, Random(1), print)
    assert calls and not faults
