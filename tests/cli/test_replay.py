import subprocess
import sys

STEP_KEYS = {
    "rank", "name", "basis", "measured_ns", "replayed_ns", "latency_ns", "counts", "error", "breakdown", "utilization_error",
    "kernel_start_error", "kept_wait", "unexplained_idle", "prefix", "scored",
}  # fmt: skip
PARTS = {"exposed_compute_ns", "overlapped_ns", "exposed_communication_ns", "other_ns"}


def test_json_has_the_contracted_keys(lumos, trace):
    done = lumos("replay", trace(), "--json")
    assert (done.status, done.err) == (0, "")
    answer = done.json
    assert (answer["ranks"], len(answer["steps"])) == (1, 2)
    assert {"step_time_ns", "latency_ns", "basis", "replayed_step_time_ns"} <= answer.keys()
    assert {"tasks", "dependencies", "mean_abs_error", "max_abs_error", "exposed_communication_error", "constants"} <= answer.keys()
    assert {"diagnostics", "read_s", "build_s", "simulate_s"} <= answer.keys()
    assert "probes" not in answer
    for step in answer["steps"]:
        assert step.keys() >= STEP_KEYS
        for run in ("measured", "replayed"):
            assert step["breakdown"][run].keys() == PARTS
            assert sum(step["breakdown"][run].values()) == step[f"{run}_ns"]


def test_the_figures_of_a_job_by_hand(lumos, trace):
    """Step 1 begins at 1000 µs and is complete at 1601, with its last kernel; its period is counted from 601, the completion of step 0. A
    stream runs one kernel at a time, so kernels queue: 60 kernels of 6 µs with gaps of 4."""
    answer = lumos("replay", trace(), "--json").json
    assert (answer["step_time_ns"], answer["replayed_step_time_ns"]) == (1_000_000, 1_000_000)
    assert (answer["latency_ns"], answer["basis"]) == (601_000, "period")
    step = answer["steps"][1]
    assert (step["name"], step["basis"], step["latency_ns"]) == ("ProfilerStep#1", "period", 601_000)
    assert (step["measured_ns"], step["replayed_ns"]) == (1_000_000, 1_000_000)
    assert step["breakdown"]["measured"] == {
        "exposed_compute_ns": 59 * 6000,
        "overlapped_ns": 0,
        "exposed_communication_ns": 6000,
        "other_ns": 1_000_000 - 60 * 6000,
    }
    assert step["scored"] and answer["mean_abs_error"] == 0
    assert answer["constants"]["launch_latency_ns"] == [1000]


def test_the_first_step_is_listed_by_its_latency_and_not_scored(lumos, trace):
    first = lumos("replay", trace(), "--json").json["steps"][0]
    assert (first["basis"], first["measured_ns"], first["replayed_ns"], first["latency_ns"]) == ("latency", 601_000, 601_000, 601_000)
    assert (first["scored"], first["unscored_reason"]) == (False, "no period: the step before it was not recorded")
    out = lumos("replay", trace()).out
    assert "ProfilerStep#0 * " in out and "rank 0 ProfilerStep#0: no period: the step before it was not recorded" in out


def test_an_ignored_kind_is_ignored_and_named(lumos, trace):
    path = trace()
    answer = lumos("replay", path, "--ignore", "launch", "--ignore", "stream-order", "--json").json
    assert answer["ignored"] == ["launch", "stream-order"]
    assert answer["steps"][0]["kernel_start_error"]["median"] > 0.1
    assert "Ignored dependencies: launch, stream-order" in lumos("replay", path, "--ignore", "launch", "--ignore", "stream-order").out


def test_several_ranks_are_one_job(lumos, trace, tmp_path):
    trace("rank0.json", 0, 2)
    trace("rank1.json", 1, 2)
    answer = lumos("replay", tmp_path, "--probes", "--json").json
    assert (answer["ranks"], answer["rank_numbers"]) == (2, [0, 1])
    assert [s["rank"] for s in answer["steps"]] == [0, 0, 1, 1]
    assert len(answer["constants"]["launch_latency_ns"]) == 2
    assert len(answer["probes"]["slow_rank"]) == 2


def test_text_says_the_answer_first_and_fits_80_columns(lumos, trace):
    done = lumos("replay", trace(), "--probes")
    assert done.out.startswith("rank 0: 2 steps, 1.00 ms a step (period; latency 601.0 µs), 1.00 ms replayed,\n+0.00 %\n")
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out
    for part in ("Steps", "Where the time goes", "Constants", "launch latency", "Probes"):
        assert part in done.out


def test_a_recording_of_pytorch_is_replayed_without_loading_what_chakra_needs(trace):
    """In a process of its own, which begins with nothing loaded."""
    program = "import sys; from lumos.cli import main\ntry:\n    main()\nfinally:\n    print('lumos.chakra.build' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, "replay", str(trace())], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
