"""`lumos search` and `lumos explain`: the JSON keys that scripts rely on, files, and refusals."""

import pytest

SMALL = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 8, "--global-batch", 16, "--seq", 4096)
FEW = (*SMALL, "--micro-batch", "1", "--cp", "1", "--zero", "1", "--refine", 2)


def test_promised_keys(lumos):
    answer = lumos("search", *FEW, "--json").json
    assert {"evaluated", "infeasible", "pruned", "seconds_s", "best"} <= answer.keys()
    assert len(answer["best"]) == 2
    assert answer["best"][0]["step_time_s"] <= answer["best"][1]["step_time_s"]
    plan = "tp pp vpp cp ep dp zero micro_batch recompute schedule memory breakdown"
    assert set(plan.split()) <= answer["best"][0].keys()
    printed = lumos("search", *FEW).out
    assert "fastest: " in printed and "proved slower" in " ".join(printed.split())


def test_equal_plans_are_named_with_what_would_tell_them_apart(lumos):
    words = (*SMALL, "--micro-batch", "1", "--cp", "1", "--zero", "1", "--refine", 3)
    answer = lumos("search", *words, "--json").json
    first, second, _ = answer["best"]
    assert first["against_first"] is None
    against = second["against_first"]
    assert against["equal"] is (second["step_time_low_s"] <= first["step_time_high_s"]) is True
    assert against["difference_s"] == pytest.approx(second["step_time_s"] - first["step_time_s"])
    assert answer["safest"] in range(3)
    assert "Equal as far as is known" in lumos("search", *words).out


def described(folder, mtbf_hours):
    """A file of a cluster, with what it costs and how often it fails."""
    (folder / "mine.toml").write_text(
        'based_on = "h100"\n[operation]\nprice_per_hour = 2.5\npower_w = 1300\ncheckpoint_s = 30\nrestart_s = 600\n'
        f"mtbf_hours = {mtbf_hours}\n"
    )
    return folder / "mine.toml"


def test_money_energy_and_goodput_of_a_cluster_file(lumos, tmp_path):
    words = ("--cluster", described(tmp_path, mtbf_hours=50_000), *SMALL[:2], *SMALL[4:], *FEW[len(SMALL) :])
    operating = lumos("search", *words, "--json").json["best"][0]["operating"]
    assert 0.9 < operating["goodput"] < 1 and operating["dollars_per_trillion_tokens"] > operating["kwh_per_trillion_tokens"]
    printed = " ".join(lumos("search", *words).out.split())
    assert "goodput" in printed and "dollars" in printed and "with host, network and cooling" in printed


def words_of(done):
    """What was printed, without line breaks."""
    return " ".join(done.out.split())


def test_a_search_without_an_answer_says_what_was_tried(lumos):
    """Without room, the least that is needed is named; and always what limits the plans."""
    assert "need more than 54.4 GB (30 GB are reserved)" in words_of(lumos("search", *FEW, "--reserve-gb", 30))
    small = lumos("search", *FEW, "--reserve-gb", 79, "--json").json
    assert small["infeasible"] == small["plans"] and small["least_bytes"] > 1e9
    assert f"needs least takes {small['least_bytes'] / 1e9:.1f} GB" in words_of(lumos("search", *FEW, "--reserve-gb", 79))


def test_a_sweep_shows_what_each_value_costs(lumos, tmp_path):
    job = (*SMALL[:2], "--cluster", described(tmp_path, mtbf_hours=500), *SMALL[4:], *FEW[len(SMALL) :])
    words = (*job, "--sweep", "gpus=8,16")
    answer = lumos("search", *words, "--json").json
    assert answer["sweep"] == "gpus"
    dollars = {row["gpus"]: row["best"][0]["operating"]["dollars_per_trillion_tokens"] for row in answer["rows"]}
    assert list(dollars) == [8, 16]
    printed = lumos("search", *words).out
    assert all(word in printed for word in ("goodput", "dollars", "kWh", f"{dollars[8]:,.0f}"))


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
    answer = lumos("search", tmp_path / "job", "--cluster", "h100", *words, "--json")
    assert answer.status == 0, answer.err
    assert answer.json["model"] == "llama3-8b"
    assert (answer.json["gpus"], answer.json["global_batch"], answer.json["seq"]) == (8, 16, 2048)
    choices = ("zero", "vpp", "recompute", "schedule", "sequence_parallel")
    same = [b for b in answer.json["best"] if tuple(b[c] for c in choices) == (1, 1, "none", "1f1b", True)]
    predicted = lumos("predict", *plan, "--json").json["step_time_s"]
    assert [b["step_time_s"] for b in same] == pytest.approx([predicted], rel=0.02)


def test_tables(lumos, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra `arrow`)")
    answer = lumos("search", *FEW, "--parquet", tmp_path / "plans.parquet", "--json").json
    table = parquet.read_table(tmp_path / "plans.parquet")
    assert table.num_rows == answer["evaluated"]
    assert table["step_time_s"].to_pylist() == sorted(table["step_time_s"].to_pylist())
    swept = lumos("search", *FEW, "--sweep", "gpus=8,16", "--parquet", tmp_path / "sweep.parquet", "--json").json
    rows = parquet.read_table(tmp_path / "sweep.parquet")["gpus"].to_pylist()
    assert [rows.count(gpus) for gpus in (8, 16)] == [row["evaluated"] for row in swept["rows"]]


def test_explain_splits_the_difference(lumos):
    answer = lumos("explain", *SMALL, "tp=2,pp=2", "tp=8", "--json").json
    difference = answer["b"]["step_time_s"] - answer["a"]["step_time_s"]
    assert sum(answer["difference_s"].values()) == pytest.approx(difference, rel=1e-6)
    assert answer["against_faster"]["difference_s"] == pytest.approx(abs(difference))
    printed = lumos("explain", *SMALL, "tp=2,pp=2,zero=2", "tp=8").out
    assert "is faster by" in printed and "peak memory: A " in printed and "A only: zero 2 keeps a part" in printed
    assert ": does not fit: " in lumos("explain", *SMALL, "tp=1", "tp=8", "--model", "llama3-70b").out.partition("is faster by")[0]


PIPELINE = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 16, "--global-batch", 32, "--seq", 4096)


def test_a_switch_holds_for_both_plans_or_for_the_one_that_names_it(lumos):
    """ZeRO 2 in a pipeline reduces gradients once a step instead of after every microbatch; plan B has ZeRO 1, where nothing changes."""
    plans = "tp=2,pp=2,zero=2", "tp=2,pp=2,zero=1"
    plain = lumos("explain", *PIPELINE, *plans, "--json").json
    switched = lumos("explain", *PIPELINE, *plans, "--switch", "grad-reduce=step", "--json").json
    in_the_plan = lumos("explain", *PIPELINE, f"{plans[0]},grad_reduce=step", plans[1], "--json").json
    assert switched["a"]["step_time_s"] < plain["a"]["step_time_s"]
    assert switched["b"]["step_time_s"] == plain["b"]["step_time_s"]
    assert in_the_plan["a"]["step_time_s"] == switched["a"]["step_time_s"]
    predicted = lumos("predict", *PIPELINE, *("--tp", 2, "--pp", 2, "--zero", 2), "--switch", "grad_reduce=step", "--blocks", "--json").json
    assert predicted["step_time_s"] == switched["a"]["step_time_s"]


def test_a_search_asks_what_its_framework_leaves_open(lumos):
    """Intervals cover the other answers, as those of a prediction do, except where the answer was given."""
    words = (*PIPELINE, "--tp", 2, "--pp", 1, "--zero", 1, "--cp", 1, "--micro-batch", 1, "--refine", 1, "--framework", "generic", "--json")
    best = lumos("search", *words).json["best"][0]
    assert "unknown-attention" in [u["code"] for u in best["unknowns"]]
    answered = lumos("search", *words, "--switch", "attention=fa2").json["best"][0]
    assert "unknown-attention" not in [u["code"] for u in answered["unknowns"]]
    assert answered["step_time_low_s"] > best["step_time_low_s"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("search", *FEW, "--schedule", "1f1d"), "did you mean '1f1b'"),
        (("search", *FEW, "--tp", "4..2"), "4 is more than 2"),
        (("search", *FEW, "--reserve-gb", "90"), "less than there is"),
        (("search", *FEW, "--tp", "two"), "not a whole number"),
        (("search", *FEW, "--engine", "dask"), "local, ray"),
        (("search", *SMALL[2:]), "--model is needed"),
        (("explain", *SMALL, "tpp=2", "tp=8"), "did you mean 'tp'"),
        (("explain", *SMALL, "tp=two", "tp=8"), "tp = 'two' must be a whole number"),
        (("explain", *PIPELINE, "tp=2", "tp=4", "--switch", "grad_reduce"), "is not KEY=VALUE"),
        (("explain", *PIPELINE, "tp=2", "tp=4", "--switch", "grad_reduse=step"), "did you mean 'grad_reduce'"),
        (("explain", *PIPELINE, "tp=2,grad_reduce=daily", "tp=4"), "daily"),
        (("search", *PIPELINE, "--switch", "zero=2"), "give the values to search as --zero"),
    ],
)
def test_refusals_name_the_remedy(lumos, words, reason):
    done = lumos(*words)
    assert done.status == 2
    assert reason in " ".join(done.err.split()) and "Traceback" not in done.err


@pytest.mark.parametrize("words", [("--framework", "nemo"), ("--precision", "fp8"), ("--model", "llama3-8b")])
def test_what_the_files_of_a_prediction_say_cannot_be_given_too(lumos, tmp_path, words):
    job = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", 2, "--global-batch", 4, "--seq", 1024, "--tp", 2)
    assert lumos("predict", *job, "--kineto", tmp_path / "job", "--json").status == 0
    done = lumos("search", tmp_path / "job", *words)
    assert done.status == 2 and f"leave out {words[0]}" in " ".join(done.err.split())
