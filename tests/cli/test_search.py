"""`lumos search` and `lumos explain`: the JSON keys that scripts rely on, files, and refusals."""

from __future__ import annotations

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
    assert "front" in (tmp_path / "front.html").read_text()
    assert "best plan over gpus" in (tmp_path / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ((*FEW, "--require", "memory.peak < 1"), 2, "key 'memory.peak' is not known"),
        ((*FEW, "--require", "exit()"), 2, "not allowed"),
        ((*FEW, "--schedule", "1f1d"), 2, "did you mean '1f1b'"),
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
    assert "is faster by" in lumos("explain", *SMALL, "tp=2,pp=2", "tp=8").out


def test_explain_refuses_an_unknown_key(lumos):
    done = lumos("explain", *SMALL, "tpp=2", "tp=8")
    assert done.status == 2 and "did you mean 'tp'" in done.err
