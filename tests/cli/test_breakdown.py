from __future__ import annotations

import pytest


@pytest.mark.parametrize("of", ["measured", "replayed"])
def test_the_parts_and_the_idle_time(lumos, trace, of):
    answer = lumos("breakdown", trace(), "--of", of, "--json").json
    step = answer["steps"][0]
    assert (answer["of"], answer["by"], len(answer["steps"])) == (of, "kernel", 2)
    assert sum(step["breakdown"].values()) == step["duration_ns"] == 601_000
    assert sum(step["idle"].values()) == step["breakdown"]["other_ns"]
    assert {row["name"]: row["tasks"] for row in answer["rows"]} == {"gemm_kernel": 118, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 2}


@pytest.mark.parametrize(
    ("by", "first"),
    [
        ("operator", {"name": "aten::mm", "device_tasks": 120, "device_ns": 720_000}),
        ("stream", {"rank": 0, "name": "stream 7", "tasks": 120, "busy_ns": 720_000}),
        ("rank", {"rank": 0, "steps": 2, "duration_ns": 1_202_000}),
    ],
)
def test_by(lumos, trace, by, first):
    (row, *_) = lumos("breakdown", trace(), "--by", by, "--json").json["rows"]
    assert {key: row[key] for key in first} == first


def test_by_module_says_what_to_record(lumos, trace):
    done = lumos("breakdown", trace(), "--by", "module")
    assert done.status == 1 and "with_modules=True" in done.err


def test_achieved_and_queue_and_variability(lumos, trace):
    answer = lumos("breakdown", trace(), "--json").json
    (mm,) = answer["achieved_flops"]
    assert (mm["operator"], mm["calls"], mm["flops"]) == ("aten::mm", 120, 128)
    assert answer["queue"][0]["maximum"] == 1
    assert answer["variability"][0]["variation"] == 0


@pytest.mark.parametrize("by", ["kernel", "operator", "stream", "rank"])
def test_text_fits_80_columns(lumos, trace, by):
    done = lumos("breakdown", trace(), "--by", by)
    assert done.out.startswith("rank 0: 2 steps, 601.0 µs a step as measured; 59 % is compute alone\n")
    assert max(map(len, done.out.splitlines())) <= 80
    assert f"By {by}" in done.out
