import json
import shlex
import sys
from pathlib import Path

import pytest

import lumos
from lumos.arguments import declared
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations, Scale
from lumos.changes.settings import SETTINGS
from lumos.changes.whatif import answer_changes
from lumos.changes.words import ChangeWords
from lumos.cli import load, main
from lumos.serve.session import command_line

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt-2rank-cpu"


@pytest.fixture(scope="module")
def graph():
    return lumos.build(lumos.read(EXAMPLE))


def test_a_what_if_is_that_of_the_command_line(explorer, graph):
    changes = Durations.parse(["aten::mm=0.5"], (), (), ["1=1.1"])
    expected = answer_changes(graph.job, graph, Changes(durations=changes))
    body = {"scale": ["aten::mm=0.5"], "rank_slowdown": ["1=1.1"], "moved": True}
    answer = explorer.ask("/api/whatif", body).json
    assert answer["step_time_s"] == pytest.approx(expected.outcome.step_time_s, abs=1e-12)
    assert answer["base"]["step_time_s"] == pytest.approx(expected.base.step_time_s, abs=1e-12)
    assert answer["difference_s"] == pytest.approx(answer["step_time_s"] - answer["base"]["step_time_s"])
    assert answer["moved"][0]["what"] == expected.moved[0].what


def test_the_equivalent_command_answers_the_same(explorer, monkeypatch, capfd):
    answer = explorer.ask("/api/whatif", {"scale": ["aten::*mm*=0.7"], "drop": ["aten::sqrt"]}).json
    monkeypatch.setattr(sys, "argv", [*shlex.split(answer["command"]), "--json"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capfd.readouterr().out)["step_time_s"] == pytest.approx(answer["step_time_s"], abs=1e-12)


def test_the_equivalent_python_answers_the_same(explorer, capsys):
    answer = explorer.ask("/api/whatif", {"scale": ["aten::mm=0.7"], "rank_slowdown": ["0=2"]}).json
    exec(answer["python"], {})
    assert float(capsys.readouterr().out) == answer["step_time_s"]


def test_a_hostile_pattern_stays_one_word_of_the_command(explorer):
    glob = "aten::mm*'; rm -rf / #"
    result = explorer.ask("/api/whatif", {"scale": [f"{glob}=1"]})
    assert result.status == 400
    assert glob[:8] in result.json["error"]
    words = shlex.split(command_line(["a b"], Changes(durations=Durations(scales=(Scale(glob, 0.5),)))))
    assert words == ["lumos", "whatif", "a b", "--scale", f"{glob}=0.5"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"scale": ["nothing-like-it=2"]}, "no task matches"),
        ({"scale": ["aten::mm=-1"]}, "0 or more"),
        ({"scale": ["aten::mm"]}, "write GLOB=FACTOR"),
        ({"scale": ["aten::mm=1e400"]}, "0 or more"),
        ({"rank_slowdown": ["7=2"]}, "no rank 7"),
        ({"sclae": []}, "sclae"),
        ({"set": ["layres=8"]}, "did you mean 'layers'"),
        ({"set": ["layers=many"]}, "not a whole number"),
        ({"set": ["zero=4"]}, "at most 3"),
        ({"set": ["cuda_graphs=full"]}, "valid are on, off"),
        ({"set": ["schedule=1f2b"]}, "did you mean '1f1b'"),
        ({"set": ["layers=8"], "base_cluster": "/etc/passwd"}, "'/etc/passwd' is not a cluster"),
        ({"cluster": "/etc/passwd"}, "'/etc/passwd' is not a cluster"),
        ({"network": ["speed=x2"]}, "speed"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(explorer, body, message):
    result = explorer.ask("/api/whatif", body)
    assert result.status == 400
    assert message in result.json["error"]


def test_a_body_that_is_not_json(explorer):
    assert explorer.ask("/api/whatif", method="POST", headers={"content-type": "application/json"}).status == 400


def test_a_change_of_the_plan_is_answered_as_well(explorer, graph):
    answer = explorer.ask("/api/whatif", {"set": ["layers=8"]}).json
    expected = answer_changes(graph.job, graph, Changes({"layers": "8"}))
    assert answer["step_time_s"] == pytest.approx(expected.outcome.step_time_s, abs=1e-12)
    assert answer["command"].endswith("--set layers=8")
    assert answer["interval"]["prices_s"] > 0


def test_every_change_is_in_its_command_line():
    durations = Durations((Scale("a", 2),), ("b",), ("c",), ((1, 1.5),))
    changes = Changes({"layers": "8"}, durations, "a100", "h100", ("bandwidth=x2",))
    assert command_line(["out"], changes) == (
        "lumos whatif out --set layers=8 --scale a=2 --drop b --fuse c --rank-slowdown 1=1.5 --network bandwidth=x2"
        " --cluster h100 --base-cluster a100"
    )


def test_the_settings_are_those_of_the_command_line(explorer):
    answer = explorer.ask("/api/settings").json
    assert list(answer["settings"]) == list(SETTINGS)
    assert answer["settings"]["zero"] == {
        "kind": "whole number",
        "words": [],
        "least": 0,
        "most": 3,
        "help": SETTINGS["zero"].help,
        "valid_for": ["measured blocks", "prediction"],
    }
    assert answer["settings"]["cuda_graphs"]["words"] == ["on", "off"]
    assert "h100" in answer["clusters"]


def test_the_api_takes_the_words_of_the_command_line_and_no_others(explorer):
    asked = explorer.ask("/openapi.json").json["components"]["schemas"]["WhatIf"]
    assert set(asked["properties"]) == {"set", "moved", *declared(ChangeWords)} - {*SETTINGS} and asked["additionalProperties"] is False
    assert {*asked["properties"]} - {"set", "moved"} <= {option.name for option in load("whatif").params}
    assert all(key in asked["properties"]["set"]["description"] for key in SETTINGS)


def test_the_timeline_and_its_tasks(explorer):
    run = explorer.ask("/api/timeline").json["runs"][0]
    assert run["tasks"]["duration"]["length"] == run["pieces"]
    assert explorer.ask("/api/timeline?step=nine").status == 400


def test_the_names_that_take_most_time_come_first(explorer):
    answer = explorer.ask("/api/names").json
    assert answer[0]["name"] == "aten::mm"
    assert [n["time_ns"] for n in answer] == sorted((n["time_ns"] for n in answer), reverse=True)


def test_a_job_that_is_not_read_says_why(serve, tmp_path):
    served = serve(tmp_path / "absent.json")
    status = served.ask("/api/status").json
    assert status["state"] == "failed"
    assert "absent.json" in status["error"]
    refused = served.ask("/api/report")
    assert refused.status == 409
    assert "absent.json" in refused.json["error"]


#: Values that a field of the API does not have.
WRONG = ("\ud83d", "\u202e", "²", "9" * 5000, "1_0", "", -1, 1e308, 2**70, None, True, [], [["x"]], {"a": 1}, "[" * 400)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:8].encode("ascii", "backslashreplace").decode())
def test_every_field_takes_any_value_and_answers_in_json(explorer, value):
    rows = {"glob": value}
    for field in ("set", "base", "base_cluster", "cluster", "network", "scale", "drop", "fuse", "rank_slowdown", "step"):
        for body in ({field: value}, {field: [value]}, {field: {"layers": value}}, {field: [rows]}):
            answer = explorer.ask("/api/whatif", body)
            assert answer.status in (200, 400) and isinstance(answer.json, dict), body


def test_an_error_that_nobody_foresaw_is_said_to_be_a_fault_of_lumos(explorer, monkeypatch):
    monkeypatch.setattr(type(explorer.session.loading.result), "names", lambda self: 1 // 0)
    answer = explorer.ask("/api/names")
    assert answer.status == 500 and answer.json["error"].endswith("this is a fault of Lumos, please report it")
