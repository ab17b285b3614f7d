"""`lumos diagnose`."""

import json
from pathlib import Path

import pytest

FAULTS = Path(__file__).resolve().parents[2] / "examples" / "faults"
PLACE = {"ranks", "step", "start_ns", "task", "script"}
FINDING = {"code", "title", "where", "worth_s", "worth_low_s", "worth_high_s", "worth_after_s", "grade", "evidence", "fix", "command"}


def test_the_keys_of_json(lumos, trace):
    answer = lumos("diagnose", trace(), "--json").json
    assert answer.keys() >= {"step_time_s", "latency_s", "basis", "trust", "findings", "lacks", "diagnostics"}
    assert (answer["step_time_s"], answer["basis"]) == (pytest.approx(1e-3), "period")
    assert all(found.keys() == FINDING and found["where"].keys() == PLACE for found in answer["findings"])


def test_the_text_says_the_answer_first_and_fits_80_columns(lumos, monkeypatch):
    monkeypatch.chdir(FAULTS.parents[1])
    out = lumos("diagnose", "examples/faults/extra-work").out
    assert out.startswith("3 ranks: 86.75 ms a step (period; latency 87.18 ms); 1 thing to fix\n  trust: sound; not recorded: no-device")
    assert "\n1. rank 1 does work that its peers do not: aten::bmm\n" in out
    assert "  show   lumos whatif examples/faults/extra-work --scale 'rank1:*=peers'\n" in out
    assert max(map(len, out.splitlines())) <= 80 and len(out.splitlines()) <= 9


@pytest.mark.parametrize("fault", ["large-exchange", "slow-process"])
def test_two_findings_take_fifteen_lines(lumos, monkeypatch, fault):
    monkeypatch.chdir(FAULTS.parents[1])
    out = lumos("diagnose", f"examples/faults/{fault}").out
    assert "2 things to fix" in out and len(out.splitlines()) <= 15


def test_a_long_command_goes_on_in_the_next_line(lumos, tmp_path):
    """So that it can be copied as it stands."""
    folder = tmp_path / "a folder whose name is so long that no terminal has room for it"
    folder.symlink_to(FAULTS / "large-exchange")
    out = lumos("diagnose", folder).out
    shown = out[out.index("  show   ") :].removeprefix("  show   ").split("\n2.")[0]
    first = json.loads(lumos("diagnose", folder, "--json").out)["findings"][0]
    assert " ".join(shown.replace("\\\n", "").split()) == " ".join(first["command"].split())
    assert f"'{folder}'" in first["command"]


def test_a_job_in_which_nothing_is_found_says_so(lumos, trace):
    """Its 60 kernels of 16 µs keep the device busy all the time."""
    path = trace(steps=3)
    document = json.loads(path.read_text())
    for row in document["traceEvents"]:
        row["dur"] = 9 if row["cat"] == "kernel" else row["dur"]
        row["name"] = "gemm_kernel" if row["cat"] == "kernel" else row["name"]
        zero, within = divmod(row["ts"], 1000)
        row["ts"] = 600 * zero + within
        row["dur"] = 600 if row["cat"] == "user_annotation" else row["dur"]
    path.write_text(json.dumps(document))
    out = lumos("diagnose", path).out
    assert "nothing found that is worth 2 % of it" in " ".join(out.split())
