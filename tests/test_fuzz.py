"""The fuzzer of the verbs finds what it looks for: an exception that nobody foresaw, and where it came from."""

import json
from random import Random

import pytest
from tools.fuzz_inputs import FAMILIES
from tools.fuzz_verbs import fault_of, fuzz, mutated, places

from lumos.errors import LumosError


def test_every_place_of_a_document_is_found():
    assert list(places({"a": [1, {"b": 2}]})) == [("a",), ("a", 0), ("a", 1), ("a", 1, "b")]


def test_a_mutation_changes_a_copy_and_says_where():
    document = {"traceEvents": [{"cat": "kernel", "args": {"stream": 7}}, {"cat": "kernel", "args": {"stream": 7}}, {"cat": "cpu_op"}]}
    before = json.dumps(document)
    for seed in range(50):
        changed, said = mutated(document, [("traceEvents", 0, "args", "stream")], Random(seed))
        streams = [row["args"]["stream"] for row in changed["traceEvents"][:2]]
        assert said.startswith("traceEvents.0.args.stream = ") and json.dumps(document) == before
        assert changed["traceEvents"][2] == {"cat": "cpu_op"}
        assert streams[1] == 7 or "(2 rows)" in said


@pytest.mark.parametrize(("raised", "kind"), [(LumosError("refused"), None), (KeyError("trusted"), "KeyError")])
def test_only_an_error_that_nobody_foresaw_is_a_fault(monkeypatch, raised, kind):
    def cost(*_, **__):
        raise raised

    monkeypatch.setattr("lumos.cost.cluster.load_cluster", cost)
    found = fault_of(["cost", "gemm", "--on", "h100", "--m", "8", "--n", "8", "--k", "8"])
    assert (found and found[0].kind) == kind


def test_a_second_of_every_family_of_small_files():
    """`make fuzz` runs hours of it."""
    small = [family for family in FAMILIES if family.name in ("coefficients", "passes", "a Chakra set")]
    calls, faults = fuzz(small, 1.0, Random(1), print)
    assert calls and not faults
