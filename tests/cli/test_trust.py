"""Every verb that answers from a trace says how far its answer can be trusted; some refuse where it cannot be."""

import json

import pytest

#: Every verb, with what it needs beside the paths.
VERBS = {
    "replay": (),
    "breakdown": (),
    "critical-path": (),
    "stragglers": (),
    "diagnose": (),
    "whatif": ("--scale", "gemm_kernel=0.5"),
    "report": ("-o", "{folder}/page.html"),
}
#: Those that draw conclusions from what was not measured.
CONCLUDING = ("diagnose", "stragglers", "whatif")


@pytest.fixture
def two_ranks(trace, tmp_path):
    """A job of two ranks, three steps each."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        trace(f"job/rank{rank}.json", rank, 2, steps=3)
    return folder


@pytest.fixture
def without_kernels(two_ranks):
    """The same, without every tenth kernel of rank 1: 18 of 180."""
    path = two_ranks / "rank1.json"
    recorded = json.loads(path.read_text())
    kernels = [row for row in recorded["traceEvents"] if row["cat"] == "kernel" and row["name"] == "gemm_kernel"][::10]
    recorded["traceEvents"] = [row for row in recorded["traceEvents"] if row not in kernels]
    path.write_text(json.dumps(recorded))
    return two_ranks


def asked(lumos, verb, folder, tmp_path, *more):
    return lumos(verb, folder, *(word.format(folder=tmp_path) for word in VERBS[verb]), *more)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_how_far_its_answer_can_be_trusted(lumos, verb, two_ranks, tmp_path):
    answer = asked(lumos, verb, two_ranks, tmp_path, "--json").json
    assert answer["trust"] == {"grade": "sound", "reasons": [], "unknown": 0.0}
    lines = asked(lumos, verb, two_ranks, tmp_path).out.splitlines()
    assert sum(line.startswith("  trust: sound") for line in lines) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_lost_kernels_are_named_by_every_verb(lumos, verb, without_kernels, tmp_path):
    forced = ("--force",) if verb in CONCLUDING else ()
    answer = asked(lumos, verb, without_kernels, tmp_path, *forced, "--json").json
    assert answer["trust"]["grade"] == "unsound"
    assert answer["trust"]["reasons"][0]["code"] == "kernels-lost"
    assert "rank 1: 18 of 180 launches" in answer["trust"]["reasons"][0]["message"]
    out = asked(lumos, verb, without_kernels, tmp_path, *forced).out
    assert "  trust: unsound: rank 1: 18 of 180 launches" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.lstrip().startswith("/") and "%" not in line)


@pytest.mark.parametrize("verb", CONCLUDING)
def test_no_conclusions_from_unsound_evidence(lumos, verb, without_kernels, tmp_path):
    done = asked(lumos, verb, without_kernels, tmp_path, "--json")
    assert (done.status, done.out) == (1, "")
    assert "18 of 180 launches have no kernel" in done.err and "--force" in done.err


def test_compare_says_it_of_each_side(lumos, two_ranks, trace, tmp_path):
    trace("alone.json", 0, 2, steps=3)
    answer = lumos("compare", two_ranks, tmp_path / "alone.json", "--json").json
    assert [answer[side]["trust"]["grade"] for side in "ab"] == ["sound", "limited"]
    out = lumos("compare", two_ranks, tmp_path / "alone.json").out
    assert "  trust in A: sound\n" in out and "  trust in B: limited: 1 of 2 ranks given" in out


def test_a_rank_that_is_absent_widens_the_interval(lumos, trace, tmp_path):
    """Of each period of 1000 µs nothing but the all-reduce runs for 6 µs: too little to limit more, but with 60 of them it would."""
    trace("alone.json", 0, 2, steps=3)
    answer = lumos("whatif", tmp_path / "alone.json", "--scale", "gemm_kernel=0.5", "--json").json
    assert [r["code"] for r in answer["trust"]["reasons"]] == ["ranks-absent", "waiting-unknown"]
    assert answer["trust"]["unknown"] == pytest.approx(0.006)
    recorded = json.loads((tmp_path / "alone.json").read_text().replace("gemm_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"))
    (tmp_path / "alone.json").write_text(json.dumps(recorded))
    narrow = lumos("whatif", tmp_path / "alone.json", "--scale", "aten::mm=1", "--json").json
    wide = lumos("whatif", tmp_path / "alone.json", "--scale", "aten::mm=1.5", "--json").json
    assert narrow["trust"]["unknown"] == pytest.approx(0.36)  # 60 x 6 of 1000 µs
    assert width(narrow) == pytest.approx(0.001 * 2 * narrow["base"]["step_time_s"])  # two equal steps: the narrowest there is
    margin = (width(wide) - 0.001 * 2 * wide["step_time_s"]) / wide["base"]["step_time_s"]
    assert margin == pytest.approx(2 * 0.36)
    assert "interval-widened" in {d["code"] for d in wide["diagnostics"]}


def width(answer):
    return answer["step_time_high_s"] - answer["step_time_low_s"]
