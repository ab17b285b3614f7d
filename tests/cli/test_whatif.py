"""`lumos whatif` on the recorded example."""

import json
from pathlib import Path

import pytest
from tests.segment.test_readings import two_lengths

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu")


def test_a_slower_operator_slows_the_step_and_says_why(lumos):
    done = lumos("whatif", EXAMPLE, "--scale", "operator:aten::addmm=2", "--json")
    assert done.status == 0, done.err
    answer = done.json
    assert answer["step_time_s"] > answer["base"]["step_time_s"] * 1.1
    assert answer["changes"] == ["scale operator:aten::addmm by 2"]
    assert answer["moved"][0]["what"] == "operators"
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["step_time_s"])


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--gpus", "--dp"), ("--batch-size", "--micro-batch"), ("--compile", "--after"), ("--tensor-parallel", "--tp"),
        ("--pipeline-model-parallel-size", "--pp"), ("--seq-len", "--seq"), ("--gradient-accumulation-steps", "--microbatches"),
    ],
)  # fmt: skip
def test_an_option_of_other_tools_names_that_of_lumos(lumos, option, meant):
    assert f"No such option: {option} (Possible options: {meant})" in " ".join(lumos("whatif", EXAMPLE, option, "8").err.split())


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_a_pattern_that_matches_only_a_range_hints_at_what_is_in_it(lumos, trace, category):
    path = trace()
    recorded = json.loads(path.read_text())
    common = {"ph": "X", "pid": 1, "tid": 1}
    loads = {**common, "cat": category, "name": "enumerate(DataLoader)", "ts": 700, "dur": 100}
    inside = {**common, "cat": "cpu_op", "name": "aten::stack", "ts": 701, "dur": 98}
    recorded["traceEvents"] += [loads, inside]
    path.write_text(json.dumps(recorded))
    done = lumos("whatif", path, "--drop", "*DataLoader*", "--force")
    assert "'operator:*DataLoader*'" in " ".join((done.out + done.err).split())
    assert done.status == (0 if category == "cpu_op" else 1)  # an operator has 2 µs of its own, beside the 98 µs of what is in it
    for pattern in ("operator:*DataLoader*", "aten::stack"):
        assert "operator-meant" not in lumos("whatif", path, "--drop", pattern, "--force", "--json").out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--scale", "*=1e30"), "longer than a century"),
        (("--scale", "*=1e300"), "longer than a century"),
        (("--rank-slowdown", "0=0"), "a factor above 0"),
    ],
)
def test_an_impossible_factor_is_wrong_usage(lumos, words, reason):
    done = lumos("whatif", EXAMPLE, *words)
    assert (done.status, done.out) == (2, "")
    assert reason in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--set", "layres=8"), "did you mean 'layers'"),
        (("--set", "layers=nan"), "not a whole number"),
        (("--set", "zero=7"), "at most 3"),
        (("--set", "cuda_graphs=full"), "valid are on, off"),
        (("--set", "precision=fp9"), "did you mean 'fp8'"),
        (("--grid", "schedule=1f1b,1f2b"), "did you mean '1f1b'"),
    ],
)
def test_a_setting_that_no_job_could_take_is_wrong_usage(lumos, words, reason):
    done = lumos("whatif", "/nowhere", *words)  # refused before a file is looked for
    assert (done.status, done.out) == (2, "")
    assert reason in done.err and "Traceback" not in done.err


def test_a_launch_bound_job_on_another_machine_is_as_uncertain_as_its_host(lumos, trace):
    path = trace(steps=5)  # the CPU launches a kernel of 6 µs every 10 µs and sets the pace

    def asked(*words):
        done = lumos("whatif", path, "--cluster", *words, "--json", "--force")
        assert done.status == 0, done.err
        answer = done.json
        ratios = [answer[key] / answer["base"]["step_time_s"] for key in ("step_time_low_s", "step_time_s", "step_time_high_s")]
        return ratios, {d["code"] for d in answer["diagnostics"]}

    (low, step, high), codes = asked("b200")
    assert step == pytest.approx(1, abs=0.02) and low < 0.87 and high > 1.13 and "host-unknown" in codes
    (low, step, high), codes = asked("b200", "--host-factor", "1.2")
    assert step == pytest.approx(1.2, abs=0.02) and low > 1.1 and high < 1.3 and "host-unknown" not in codes
    assert asked("h100")[0][1] == pytest.approx(1) and "host-unknown" not in asked("h100")[1]  # where it was recorded
    assert asked("h100", "--host-factor", "1.2")[0][1] == pytest.approx(1.2, abs=0.02)  # the same device beside another host


def test_other_links_of_a_job_that_exchanges_nothing_are_no_answer(lumos, trace):
    path = trace(steps=5)
    done = lumos("whatif", path, "--network", "bandwidth=x2", "--force")
    assert (done.status, done.out) == (1, "") and "network bandwidth=x2: nothing changes" in done.err
    assert lumos("whatif", path, "--network", "bandwidth=x1", "--force").status == 0  # the measured value again


@pytest.mark.parametrize("words", [("--host-factor", "1.2"), ("--cluster", "h100", "--host-factor", "0")])
def test_a_host_factor_needs_a_cluster_and_is_above_zero(lumos, words):
    done = lumos("whatif", "/nowhere", *words)
    assert (done.status, done.out) == (2, "") and "--host-factor" in done.err


def test_a_question_lists_its_candidates_and_base_settles_it(lumos, tmp_path):
    two_lengths(tmp_path)
    asked = lumos("whatif", tmp_path, "--set", "seq=96", "--force", "--json")
    assert asked.status == 1 and "--base seq=48@attention.0" in asked.err
    assert [(each["name"], each["value"]) for each in asked.json["candidates"]] == [("48@attention.0", 48), ("32@attention.0", 32)]
    settled = lumos("whatif", tmp_path, "--set", "seq=96", "--base", "seq=32", "--force", "--json")
    assert settled.status == 0 and settled.json["changes"] == ["seq = 96 (measured: 32)"]


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["--after", "python3 train.py"], 1, "--after needs the command that made the recording"),
        (["--before", "recorded", "--after", "python3 train.py"], 1, "does not say with which command"),
        (["--before", "python3 train.py"], 2, "give the changed one with --after"),
        (["--before", "python3 train.py", "--after", "python3 train.py", "--base", "seq=8"], 2, "--base: a changed script is"),
        (["--ranks", "4"], 2, "--ranks says how many ranks --after has"),
        (["--before", "python3 a.py", "--after", "python3 a.py {mbs}", "--grid", "seq=1"], 2, "has no values"),
        (["--before", "python3 a.py", "--after", "no-such-program"], 2, "no such command"),
    ],
)
def test_a_changed_script_without_what_it_needs_runs_nothing(lumos, monkeypatch, words, status, why):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr("lumos.scripted.script.records", never)
    done = lumos("whatif", EXAMPLE, *words)
    assert done.status == status and why in done.err and not done.out
