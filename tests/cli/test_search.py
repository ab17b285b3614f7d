"""`lumos search` and `lumos explain`: the JSON keys that scripts rely on, files, and refusals."""

from __future__ import annotations

import gzip
import json

import pytest

SMALL = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 8, "--global-batch", 16, "--seq", 4096)
FEW = (*SMALL, "--micro-batch", "1", "--cp", "1", "--zero", "1", "--refine", 2)


def test_promised_keys(lumos):
    found = lumos("search", *FEW, "--json").json
    assert {"evaluated", "infeasible", "pruned", "seconds_s", "best"} <= found.keys()
    assert len(found["best"]) == 2
    assert found["best"][0]["step_time_s"] <= found["best"][1]["step_time_s"]
    assert {"tp", "pp", "vpp", "cp", "ep", "dp", "zero", "micro_batch", "recompute", "schedule", "memory", "breakdown"} <= found["best"][
        0
    ].keys()


def test_the_text_names_the_fastest_plan_and_what_was_searched(lumos):
    done = lumos("search", *FEW)
    assert done.status == 0
    assert "fastest: " in done.out and "proved slower" in done.out


def test_equal_plans_are_named_with_what_would_tell_them_apart(lumos):
    words = (*SMALL, "--micro-batch", "1", "--cp", "1", "--zero", "1", "--refine", 3)
    found = lumos("search", *words, "--json").json
    first, second, _ = found["best"]
    assert first["against_first"] is None
    against = second["against_first"]
    assert against["equal"] is (second["step_time_low_s"] <= first["step_time_high_s"]) is True
    assert against["difference_s"] == pytest.approx(second["step_time_s"] - first["step_time_s"])
    assert found["safest"] in range(3)
    assert "Equal as far as is known" in lumos("search", *words).out


def test_limits_that_people_have(lumos):
    found = lumos("search", *FEW, "--reserve-gb", 30, "--proved", "--tp", "1..4", "--mixed-with", "a100-80gb", "--json").json
    assert found["cluster"] == "h100+a100-80gb"
    for best in found["best"]:
        assert best["memory"]["peak_bytes"] <= 50e9 and best["schedule"] in ("1f1b", "interleaved") and best["tp"] <= 4
        assert "mixed-nodes" in [note["code"] for note in best["diagnostics"]]
    for plan in found["pareto"]:
        assert plan["peak_bytes"] <= 50e9


def test_money_energy_and_goodput_of_a_cluster_file(lumos, tmp_path):
    path = tmp_path / "mine.toml"
    lines = ("price_per_hour = 2.5", "power_w = 1300", "mtbf_hours = 50000", "checkpoint_s = 30", "restart_s = 600")
    path.write_text("\n".join(('based_on = "h100"', "[operation]", *lines)))
    words = ("--cluster", path, *SMALL[:2], *SMALL[4:], *FEW[len(SMALL) :])
    operating = lumos("search", *words, "--json").json["best"][0]["operating"]
    assert 0.9 < operating["goodput"] < 1 and operating["dollars_per_trillion_tokens"] > operating["kwh_per_trillion_tokens"]
    printed = " ".join(lumos("search", *words).out.split())
    assert "goodput" in printed and "dollars" in printed and "with host, network and cooling" in printed


def test_a_sweep_has_a_row_for_every_value(lumos):
    found = lumos("search", *FEW, "--sweep", "gpus=8..16", "--json").json
    assert found["sweep"] == "gpus"
    assert [row["gpus"] for row in found["rows"]] == [8, 16]
    assert found["best_value"] == 16
    assert "best of all: 16" in lumos("search", *FEW, "--sweep", "gpus=8,16").out


def test_the_plan_is_the_one_that_predict_predicts(lumos):
    best = lumos("search", *FEW, "--json").json["best"][0]
    sizes = [word for key in ("tp", "pp", "vpp", "cp", "dp", "zero") for word in (f"--{key}", best[key])]
    sequence = "--sequence-parallel" if best["sequence_parallel"] else "--no-sequence-parallel"
    words = (*SMALL, *sizes, sequence, "--recompute", best["recompute"], "--schedule", best["schedule"], "--blocks", "--json")
    assert lumos("predict", *words).json["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)


def test_a_measured_job_is_searched_with_its_own_blocks(lumos, tmp_path):
    plan = (*SMALL[:-2], "--seq", 2048, "--tp", 2, "--pp", 2, "--zero", 1)
    assert lumos("predict", *plan, "--kineto", tmp_path / "job", "--json").status == 0
    words = ("--tp", "2", "--pp", "2", "--micro-batch", "1", "--cp", "1", "--refine", 60)
    found = lumos("search", tmp_path / "job", "--cluster", "h100", *words, "--json")
    assert found.status == 0, found.err
    assert found.json["model"] == "llama3-8b"
    assert (found.json["gpus"], found.json["global_batch"], found.json["seq"]) == (8, 16, 2048)
    choices = ("zero", "vpp", "recompute", "schedule", "sequence_parallel")
    same = [b for b in found.json["best"] if tuple(b[c] for c in choices) == (1, 1, "none", "1f1b", True)]
    predicted = lumos("predict", *plan, "--json").json["step_time_s"]
    assert [b["step_time_s"] for b in same] == pytest.approx([predicted], rel=0.02)


@pytest.fixture
def measured(lumos, tmp_path):
    """A job of two ranks, written as the profiler's files."""
    words = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 2, "--global-batch", 4, "--seq", 1024, "--tp", 2)
    assert lumos("predict", *words, "--kineto", tmp_path / "job", "--json").status == 0
    return tmp_path / "job"


def searched(lumos, job, *more):
    return lumos("search", job, "--cluster", "h100", "--tp", 2, "--cp", 1, "--zero", 1, "--micro-batch", 1, "--refine", 1, *more)


def test_a_search_says_how_far_its_recording_can_be_trusted(lumos, measured):
    assert searched(lumos, measured, "--json").json["trust"] == {"grade": "sound", "reasons": [], "unknown": 0.0}
    assert "\n  trust: sound\n" in searched(lumos, measured).out
    assert "trust" not in lumos("search", *FEW, "--json").json  # nothing was recorded


def test_a_search_of_a_recording_with_lost_kernels_says_so(lumos, measured):
    """Every fourth elementwise kernel of rank 1 is lost. The plans are listed, of one size or of several, with the reason to doubt them."""
    path = measured / "rank1.json.gz"
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    elementwise = [i for i, row in enumerate(recorded["traceEvents"]) if row["name"].startswith("elementwise") and row["cat"] == "kernel"]
    for i in reversed(elementwise[::4]):
        del recorded["traceEvents"][i]
    path.write_bytes(gzip.compress(json.dumps(recorded).encode(), 1))
    found = searched(lumos, measured, "--json").json["trust"]
    assert (found["grade"], found["reasons"][0]["code"]) == ("unsound", "kernels-lost")
    for more in ((), ("--sweep", "global_batch=4,8")):
        assert "\n  trust: unsound: rank 1: " in searched(lumos, measured, *more).out


def test_tables_and_plots(lumos, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra `arrow`)")
    found = lumos("search", *FEW, "--parquet", tmp_path / "plans.parquet", "--json").json
    table = parquet.read_table(tmp_path / "plans.parquet")
    assert table.num_rows == found["evaluated"]
    assert table["step_time_s"].to_pylist() == sorted(table["step_time_s"].to_pylist())
    swept = lumos("search", *FEW, "--sweep", "gpus=8,16", "--parquet", tmp_path / "sweep.parquet", "--json").json
    rows = parquet.read_table(tmp_path / "sweep.parquet")["gpus"].to_pylist()
    assert [rows.count(gpus) for gpus in (8, 16)] == [row["evaluated"] for row in swept["rows"]]
    pytest.importorskip("plotly", reason="plotly is not installed (extra `report`)")
    assert lumos("search", *FEW, "--plot", tmp_path / "front.html").status == 0
    assert lumos("search", *FEW, "--sweep", "gpus=8,16", "--plot", tmp_path / "sweep.html").status == 0
    front = (tmp_path / "front.html").read_text()
    assert all(word in front for word in ("front", "memory: 80 GB", "simulated in full", "%{text}"))
    assert "best plan over gpus" in (tmp_path / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ((*FEW, "--require", "memory.peak < 1"), 2, "key 'memory.peak' is not known"),
        ((*FEW, "--require", "exit()"), 2, "not allowed"),
        ((*FEW, "--schedule", "1f1d"), 2, "did you mean '1f1b'"),
        ((*FEW, "--tp", "4..2"), 2, "4 is more than 2"),
        ((*FEW, "--proved", "--schedule", "dualpipe"), 2, "leave out --proved"),
        ((*FEW, "--reserve-gb", "90"), 2, "less than there is"),
        ((*FEW, "--tp", "two"), 2, "not a whole number"),
        ((*FEW, "--objective", "speed"), 2, "objective"),
        ((*FEW, "--engine", "dask"), 2, "local, ray"),
        (SMALL[2:], 2, "--model is needed"),
    ],
)
def test_refusals(lumos, words, status, reason):
    done = lumos("search", *words)
    assert done.status == status
    assert reason in done.err and "Traceback" not in done.err


def test_explain_splits_the_difference(lumos):
    found = lumos("explain", *SMALL, "tp=2,pp=2", "tp=8", "--json").json
    difference = found["b"]["step_time_s"] - found["a"]["step_time_s"]
    assert sum(found["difference_s"].values()) == pytest.approx(difference, rel=1e-6)
    assert found["against_faster"]["difference_s"] == pytest.approx(abs(difference))
    printed = lumos("explain", *SMALL, "tp=2,pp=2,zero=2", "tp=8").out
    assert "is faster by" in printed and "peak memory: A " in printed and "A only: zero 2 keeps a part" in printed


def test_explain_refuses_an_unknown_key(lumos):
    done = lumos("explain", *SMALL, "tpp=2", "tp=8")
    assert done.status == 2 and "did you mean 'tp'" in done.err
