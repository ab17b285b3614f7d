import json

import pytest


def test_the_path_of_a_job_by_hand(lumos, trace):
    """Step 0 starts with its first operator (0) and is complete with its last kernel (601 µs): the path is every operator of the thread
    with the pauses between, then the 60th launch (592–594), 1 µs of latency, and its kernel. Step 1 is complete at 1601: before its
    operators, the path is the pause of the thread from 601 to 1000."""
    answer = lumos("critical-path", trace(), "--json").json
    assert (answer["ranks"], answer["of"], [s["name"] for s in answer["steps"]]) == (1, "measured", ["ProfilerStep#0", "ProfilerStep#1"])
    assert (answer["step_time_ns"], answer["latency_ns"], answer["basis"]) == (1_000_000, 601_000, "period")
    for step, basis, time in zip(answer["steps"], ("latency", "period"), (601_000, 1_000_000), strict=True):
        assert (step["basis"], step["duration_ns"]) == (basis, time)
        assert sum(step["by_class"].values()) == sum(step["by_group"].values()) == time
        assert step["by_class"]["gemm"] == 6000 and step["by_class"]["launch latency"] == 1000
        last = step["links"][-1]
        assert (last["name"], last["class"], last["cause"], last["processor"]) == ("gemm_kernel", "gemm", "launch", "stream 7")
        assert last["end_ns"] - last["start_ns"] == 6000
    assert answer["steps"][1]["links"][0]["name"] == "(between operators)" and answer["steps"][1]["start_ns"] == 601_000
    assert answer["slack_by_class"]["launch calls"]["tasks"] == 60  # of step 1, which counts


def test_one_step_by_name_or_number(lumos, trace):
    path = trace()
    for name in ("ProfilerStep#1", "1"):
        assert [s["name"] for s in lumos("critical-path", path, "--step", name, "--json").json["steps"]] == ["ProfilerStep#1"]
    done = lumos("critical-path", path, "--step", "ProfilerStep#2")
    assert (done.status, done.out) == (2, "") and "did you mean" in done.err


@pytest.mark.parametrize("of", ["measured", "replayed"])
def test_text_says_what_bounds_the_step_and_fits_80_columns(lumos, trace, of):
    done = lumos("critical-path", trace(), "--of", of)
    said = f"rank 0: 2 steps, 1.00 ms a step (period; latency 601.0 µs) as {of}, bound by CPU work (99 %)"
    assert " ".join(done.out.split()).startswith(said)
    assert "ProfilerStep#0 *" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    for part in ("Steps", "Along the critical path", "launch latency", "Most of it, by name", "Slack"):
        assert part in done.out
    one = lumos("critical-path", trace(), "--step", "0").out
    assert "; ProfilerStep#0, 601.0 µs (latency), is bound by CPU work (99 %)" in " ".join(one.split())
    assert "Longest links" in one and "Along the critical path (ProfilerStep#0)" in one


def test_ranks_that_wait(lumos, trace, tmp_path):
    trace("rank0.json", 0, 2)
    trace("rank1.json", 1, 2)
    done = lumos("critical-path", tmp_path)
    assert "2 ranks: 2 steps" in done.out and "others waited for it" in done.out
    (first, _) = lumos("critical-path", tmp_path, "--json").json["steps"]
    assert [share["rank"] for share in first["by_rank"]] == [0, 1]


def test_perfetto_shows_the_path(lumos, trace, tmp_path):
    out = tmp_path / "path.json"
    assert lumos("critical-path", trace(), "--step", "0", "--perfetto", out).status == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0 measured", "critical path measured"}
    assert any(e["ph"] == "s" and e["cat"] == "critical path" for e in events)
