from pathlib import Path

import numpy as np
import pytest

import lumos
from lumos.analyze.replay import replay
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.reports.page import document as document_module
from lumos.reports.page.document import ReportedJob, document
from lumos.result import plain
from lumos.units import duration

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt-2rank-cpu"


@pytest.fixture(scope="module")
def example():
    return ReportedJob.of(lumos.read(EXAMPLE))


@pytest.fixture(scope="module")
def found(example):
    return document(example, command=["lumos", "report", "out/"])


def test_it_repeats_what_the_analyses_answer(example, found):
    assert found["replay"] == plain(replay(example.graph, example.replayed))
    assert found["about"]["command"] == ["lumos", "report", "out/"]
    assert found["step"] in found["step_names"] and found["called"] == {"measured": "measured"}


def test_the_headline_is_the_first_finding(example, found):
    first = example.diagnosis.findings[0]
    step = "214.7 ms a step (period; latency 213.7 ms) on 2 ranks."
    assert found["headline"] == f"{first.title}: worth {duration(1e9 * first.worth_s)} of {step}"


def test_the_parts_of_the_path_sum_to_its_length(found):
    for path in found["path"]:
        assert sum(path["by_class"].values()) == path["duration_ns"]


def test_the_steps_end_to_end_take_the_time_from_the_first_completion_to_the_last(example, found):
    job = example.times.job
    assert sum(step["time_ns"] for step in found["steps"][1:]) == job[-1].completion_ns - job[0].completion_ns


def test_time_by_class_and_waiting_cover_what_ranks_did(example, found):
    classes = found["classes"]["measured"]
    assert np.shape(classes["time_ns"]) == (2, len(classes["labels"]))
    assert len(classes["waiting_ns"]) == 2


def test_it_says_first_what_to_fix(example, found):
    """As `lumos diagnose` does, with commands that name the folder of the recording."""
    expected = lumos.diagnose(example.job, graph=example.graph)
    shown, graph = found["diagnosis"]["findings"], example.graph
    numbers = [each["where"]["number"] for each in shown]
    assert [graph.names[graph.name[task]] for task in numbers] == [each["where"]["task"] for each in shown]
    assert [{**each, "where": {k: v for k, v in each["where"].items() if k != "number"}} for each in shown] == plain(expected.findings)
    assert all(str(EXAMPLE) in each["command"] for each in found["diagnosis"]["findings"])
    assert {lack["code"] for lack in found["diagnosis"]["lacks"]} == {"two-ranks", "no-device", "no-host-rows"}


def test_every_step_has_its_busy_curves(found):
    assert [b["step"] for b in found["busy"]] == list(found["step_names"])
    assert all([c["name"] for c in b["curves"]] == ["rank 0", "rank 1"] for b in found["busy"])


def test_a_change_adds_its_answer_and_its_run(example):
    changed = document(example, changes=Changes(durations=Durations.parse(["aten::mm=0.5"], (), (), ())))
    answer = changed["whatif"]
    assert answer["step_time_s"] < answer["base"]["step_time_s"]
    assert sum(m["delta_s"] for m in answer["moved"]) == pytest.approx(answer["difference_s"])
    runs = changed["timeline"]["runs"]
    assert [r["source"] for r in runs] == ["measured", "changed"]
    assert runs[1]["length_ns"] == pytest.approx(answer["step_time_s"] * 1e9, rel=0.02)  # one step, and the mean over all


def test_a_change_of_the_plan_adds_its_answer(example):
    changed = document(example, changes=Changes({"layers": "8"}))
    assert list(changed["whatif"]["changes"]) == ["layers = 8 (measured: 4)"]
    assert changed["whatif"]["step_time_s"] > 1.5 * changed["whatif"]["base"]["step_time_s"]
    assert [r["source"] for r in changed["timeline"]["runs"]] == ["measured"]


def test_stragglers_that_take_too_long_are_left_out_and_said_so(example, monkeypatch):
    monkeypatch.setattr(document_module, "MOST_TRIED", 2 * len(example.graph) - 1)
    fresh = ReportedJob(example.job, example.graph, example.replayed)  # which has not compared its ranks yet
    found = document(fresh, timeline=False)
    assert found["stragglers"] is found["timeline"] is None
    assert found["diagnostics"][-1]["code"] == "stragglers-left-out"
