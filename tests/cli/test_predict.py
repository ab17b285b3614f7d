"""`lumos predict`, `validate` and `models`: the JSON keys that scripts rely on, files of settings, and refusals."""

import pytest

PREDICT = ["predict", "--model", "llama3-8b", "--cluster", "h100", "--gpus", "8", "--global-batch", "16", "--seq", "4096"]


def test_promised_keys(lumos):
    answer = lumos(*PREDICT, "--tp", "2", "--pp", "2", "--json").json
    assert answer["step_time_low_s"] < answer["step_time_s"] < answer["step_time_high_s"]
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["step_time_s"])
    assert set(answer["breakdown"]) == {"exposed_compute_s", "overlapped_s", "exposed_communication_s", "other_s"}
    assert answer["tokens_per_s_per_gpu"] == pytest.approx(16 * 4096 / 8 / answer["step_time_s"])
    assert 0.2 < answer["model_flops_utilization"] < 0.7
    assert {"parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "peak_bytes", "fits"} == set(answer["memory"])
    assert sum(answer["critical_path"].values()) == pytest.approx(1.0, abs=0.02)


def test_settings_of_a_file_and_options_over_them(lumos, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'model = "llama3-8b"\ncluster = "h100"\ngpus = 8\nglobal-batch = 16\nseq = 4096\ntp = 2\n[switches]\ntp_overlap = true\n'
    )
    steps = [lumos("predict", path, *more, "--json").json["step_time_s"] for more in ((), ("--tp", 4), ("--switch", "tp_overlap=off"))]
    assert steps[1] != steps[0] < steps[2]


@pytest.mark.parametrize(
    ("args", "status", "word"),
    [
        (["predict"], 2, "--model is needed"),
        ([*PREDICT, "--tp", "3"], 2, "multiple of tp"),
        ([*PREDICT, "--precision", "fp9"], 2, "did you mean 'fp8'"),
        ([*PREDICT, "--framework", "nemmo"], 2, "nemo"),
        ([*PREDICT, "--set", "compile=on"], 2, "did you mean 'framework'"),
        ([*PREDICT, "--switch", "tp_overlp=on"], 2, "tp_overlap"),
        ([*PREDICT[:2], "lama3-8b", *PREDICT[3:]], 1, "llama3-8b"),
        ([*PREDICT[:4], "h10", *PREDICT[5:]], 1, "nearest: h100"),
        ([*PREDICT, "--pp", "2", "--schedule", "interleaved"], 2, "interleaved schedule needs vpp above 1"),
        ([*PREDICT, "--pp", "2", "--schedule", "1f1b", "--vpp", "4"], 2, "vpp (4) makes the schedule interleaved"),
        ([*PREDICT, "--recompute", "full", "--recompute-layers", "99"], 2, "at most the 32 layers of a stage"),
        ([*PREDICT, "--recompute", "full", "--recompute-layers", "-1"], 2, "--recompute-layers"),
        ([*PREDICT, "--recompute", "none", "--recompute-layers", "4"], 2, "needs recompute full"),
        ([*PREDICT, "--ranks", "stages"], 2, "give --kineto DIR"),
        (["predict", "/nowhere/job.toml"], 1, "cannot be read"),
        (["validate", "/nowhere/runs.csv"], 1, "cannot be read"),
    ],
)
def test_refusals_name_the_remedy(lumos, args, status, word):
    done = lumos(*args)
    assert (done.status, done.out) == (status, "")
    assert word in done.err and "Traceback" not in done.err


def test_text_for_people(lumos):
    done = lumos(*PREDICT)
    assert done.status == 0 and "tokens/s per device" in done.out
    assert " a step (80 % interval " in done.out.splitlines()[0] and ", MFU " in done.out.splitlines()[0]
    assert "─" in done.out and "┃" not in done.out


def test_validate_writes_rows_and_figures(lumos, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        "id,source,model,gpu,n_gpus,seq_len,global_batch,tp,precision,framework,step_time_s\n"
        "r1,here,llama3-8b,H100,8,4096,16,2,bf16,Megatron-LM,1.0\nr2,here,llama3-8b,Abacus,8,4096,16,2,bf16,Megatron-LM,1.0\n"
    )
    answer = lumos("validate", path, "--json").json
    assert [set(r) >= {"id", "predicted_s"} for r in answer["rows"]] == [True, False]
    assert "Abacus" in answer["rows"][1]["skipped"] and answer["scored"] == 1
    text = lumos("validate", path)
    assert text.status == 0 and "skipped 1" in text.out and "┃" not in text.out
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("r1")))
    text = lumos("validate", path)
    assert text.out.startswith("none of 1 row could be scored\n") and "By source" not in text.out
