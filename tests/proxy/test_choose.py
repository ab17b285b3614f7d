"""Parts of a program, and programs without the names of a job."""

import json
from pathlib import Path

from tests.proxy.conftest import Write, annotation, mm, operator

from lumos.proxy import choose
from lumos.proxy.generation import generate_program
from lumos.proxy.program import Program, RankProgram, RecordedOperator


def make(*operators: RecordedOperator) -> Program:
    return Program([RankProgram(0, "step", 100, False, 0, list(operators), [], [])], [], 1, "profiler")


def test_only_keeps_matching_operators_with_what_they_called() -> None:
    linear = RecordedOperator("aten::linear", start_ns=0, children=[RecordedOperator("aten::t"), RecordedOperator("aten::mm")])
    kept = choose.only_blocks(make(linear, RecordedOperator("aten::relu")), ["aten::mm", "aten::r*"]).ranks[0]
    assert [o.name for o in kept.operators] == ["aten::mm", "aten::relu"]
    assert kept.recorded_ns == -1
    whole = choose.only_blocks(make(linear), ["aten::linear"]).ranks[0]
    assert [o.name for o in whole.walk()] == ["aten::linear", "aten::t", "aten::mm"]


def test_links_between_operators_follow_them_or_are_dropped() -> None:
    program = make(
        RecordedOperator("aten::relu"),
        RecordedOperator("aten::mm", backward=3),
        RecordedOperator("aten::add", after=[0, 1]),
        RecordedOperator("aten::mm", after=[1]),
    )
    kept = choose.only_blocks(program, ["aten::mm", "aten::add"]).ranks[0]
    assert [(o.name, o.after, o.backward) for o in kept.operators] == [("aten::mm", [], 2), ("aten::add", [0], -1), ("aten::mm", [0], -1)]


def test_nothing_of_the_source_remains_under_obfuscation(kineto: Write, tmp_path: Path) -> None:
    secret = [("float", [4], ""), ("Scalar", [], "SecretText")]
    path = kineto(
        annotation("ProfilerStep#1", 0, 100), annotation("SecretLayer", 0, 90), operator("SecretModule: forward", 5, 30),
        mm(10, 5), operator("secretlib::fused", 40, 5, inputs=secret), traceName="/home/secret/run", host_name="secrethost",
        lumos_collect={"threads": 1, "note": "Secret"}, name="secret-rank0.json",
    )  # fmt: skip
    generate_program([str(path)], tmp_path / "out", obfuscate=True)
    for file in (tmp_path / "out").iterdir():
        assert "secret" not in file.read_text().lower()
    names = [one["name"] for one in json.loads((tmp_path / "out" / "trace.json").read_text())["ranks"][0]["operators"]]
    assert "aten::mm" in names
    assert sum(name.startswith("hidden::") for name in names) == 1
