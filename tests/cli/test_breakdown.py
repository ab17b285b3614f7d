import pytest


@pytest.mark.parametrize("of", ["measured", "replayed"])
def test_the_parts_and_the_idle_time(lumos, trace, of):
    """Step 0 is complete at 601 µs, step 1 at 1601: its period is 1000. In that, 60 kernels run 6 µs each, 4 µs apart, from 1005 on. The
    thread pauses until 1000, and works from there on."""
    answer = lumos("breakdown", trace(), "--of", of, "--json").json
    first, second = answer["steps"]
    assert (answer["of"], answer["by"]) == (of, "kernel")
    assert (answer["step_time_ns"], answer["latency_ns"], answer["basis"]) == (1_000_000, 601_000, "period")
    assert (first["basis"], first["duration_ns"], second["basis"], second["duration_ns"]) == ("latency", 601_000, "period", 1_000_000)
    for step in (first, second):
        assert sum(step["breakdown"].values()) == sum(step["parts"].values()) == step["duration_ns"]
        assert sum(step["idle"].values()) == step["breakdown"]["other_ns"]
    assert (answer["steps_counted"], answer["median_ns"], answer["parts"]) == (1, 1_000_000, second["parts"])
    assert {key: ns for key, ns in second["parts"].items() if ns} == {
        "compute_ns": 354_000,
        "communication_ns": 6_000,
        "host_between_operators_ns": 399_000,
        "host_ns": 5_000 + 59 * 4_000,
    }
    assert {row["name"]: row["tasks"] for row in answer["rows"]} == {"gemm_kernel": 59, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 1}


@pytest.mark.parametrize(
    ("by", "first"),
    [
        ("operator", {"name": "aten::mm", "device_tasks": 120, "device_ns": 720_000}),
        ("stream", {"rank": 0, "name": "stream 7", "tasks": 120, "busy_ns": 720_000}),
        ("stream", {"queue": {"mean": 0.42, "maximum": 1}}),
        ("rank", {"rank": 0, "steps": 2, "duration_ns": 2_000_000}),
    ],
)
def test_by(lumos, trace, by, first):
    (row, *_) = lumos("breakdown", trace(steps=3), "--by", by, "--json").json["rows"]
    assert {key: row[key] for key in first} == first


def test_modules_by_the_script_are_asked_for_by_module(lumos, trace):
    done = lumos("breakdown", trace(), "--before", "python train.py")
    assert done.status == 2 and "--by module" in done.err


def test_by_module_says_what_to_record(lumos, trace):
    done = lumos("breakdown", trace(), "--by", "module")
    assert done.status == 1 and "with_modules=True" in done.err


def test_achieved_and_queue_and_variability(lumos, trace):
    """Three steps, of which the last two count."""
    answer = lumos("breakdown", trace(steps=3), "--json").json
    (mm,) = answer["achieved_flops"]
    assert (mm["operator"], mm["calls"], mm["flops"]) == ("aten::mm", 120, 128)
    assert answer["queue"][0]["maximum"] == 1
    assert answer["variability"][0]["variation"] == 0


@pytest.mark.parametrize("by", ["kernel", "operator", "pattern", "stream", "rank"])
def test_text_fits_80_columns(lumos, trace, by):
    done = lumos("breakdown", trace(), "--by", by)
    said = "rank 0: 2 steps, 1.00 ms a step (period; latency 601.0 µs) as measured; 40 % is host between operators"
    assert " ".join(done.out.split()).startswith(said)
    assert "Where the step goes\n" in done.out
    assert "ProfilerStep#0 *" in done.out and "* latency, as the recording lacks the step before it" in done.out
    assert "data loading" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert f"By {by}" in done.out


def test_the_layers_of_a_model_repeat(lumos):
    """GPT-2 of six layers, of which two steps count: each layer's forward and backward pass are run twelve times."""
    done = lumos("breakdown", "examples/foreign/GPT-2__fp32__host-bound", "--by", "pattern")
    shown = done.out.split("By pattern")[1].splitlines()
    assert [line.split()[-9:-5] for line in shown if " ms " in line] == [["11", "31", "12", "8.78"], ["gemm,", "18", "12", "4.28"]]
    assert max(map(len, done.out.splitlines())) <= 80
