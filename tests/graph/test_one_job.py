"""Recordings that are, and are not, the ranks of one job."""

import json

import pytest

from lumos.analyze.trust import trust
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
OPERATORS = [f"aten::op{i}" for i in range(10)]


def rank(draw, number, ranks=3, world=3, operators=OPERATORS, steps=(4, 5)):
    """Each step: ten operators of 10 + `number` µs, and an all-reduce of all ranks that ends at 200 µs."""
    drawing = draw(number, world)
    for i, step in enumerate(steps):
        begin = 1000 * i
        drawing.row("user_annotation", f"ProfilerStep#{step}", begin, 900)
        for j, name in enumerate(operators):
            drawing.op(name, begin + (10 + number) * j, 10 + number)
        last = begin + (10 + number) * len(operators)
        facts = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Group size": ranks, "Process Group Name": "0"}
        members = json.dumps(list(range(ranks)))
        drawing.launch((last, 5), (last + 7, begin + 200 - last - 7), 9, NCCL, **facts, **{"Seq": i, "Process Group Ranks": members})
    return drawing


def evidence(job, *drawings):
    return {found.code: found for found in build(job(*drawings)).evidence}


def test_the_ranks_of_one_job_give_no_evidence(draw, job):
    assert evidence(job, *(rank(draw, number) for number in range(3))) == {}


def test_a_rank_that_was_not_given(draw, job):
    found = evidence(job, rank(draw, 0), rank(draw, 2))
    assert found["ranks-absent"].grade is Grade.LIMITED
    assert "2 of 3 ranks given" in found["ranks-absent"].message


def test_ranks_of_jobs_of_two_sizes(draw, job):
    assert evidence(job, rank(draw, 0), rank(draw, 1), rank(draw, 2, world=4))["world-sizes-differ"].grade is Grade.UNSOUND


def test_a_rank_beyond_the_size_of_the_job(draw, job):
    found = evidence(job, *(rank(draw, number) for number in range(4)))
    assert found["rank-beyond-world"].grade is Grade.UNSOUND
    assert found["rank-beyond-world"].message == "rank 3 cannot be of a job of 3 ranks"


def irregular(drawing):
    """The drawing with twenty rows between the steps that last 0, 0.5, … 9.5 µs."""
    for i in range(20):
        drawing.op("aten::item", 300 + 20 * i, i / 2)
    return drawing


def test_one_recording_under_two_ranks(draw, tmp_path):
    for number in range(3):
        irregular(rank(draw, number)).write(tmp_path)
    document = json.loads((tmp_path / "rank1.json").read_text())
    document["distributedInfo"]["rank"] = 2
    (tmp_path / "rank2.json").write_text(json.dumps(document))
    (found,) = build(read(tmp_path)).evidence
    assert (found.code, found.grade) == ("ranks-identical", Grade.UNSOUND)
    assert "ranks 1 and 2" in found.message


@pytest.mark.parametrize("header", [{"lumos": {"origin": "predicted", "grade": "unsound", "within": [2, "1"]}}, {"lumos": [1]}, {}])
def test_ranks_of_regular_times_may_be_identical(draw, tmp_path, header):
    for number in range(3):
        drawing = irregular(rank(draw, 1)) if header else rank(draw, 1)
        document = json.loads(drawing.write(tmp_path).read_text())
        document |= {**header, "distributedInfo": {"backend": "nccl", "rank": number, "world_size": 3}}
        (tmp_path / f"rank{number}.json").write_text(json.dumps(document))
    grades = [(each.code, each.grade) for each in build(read(tmp_path)).evidence]
    assert grades == [("durations-modelled", Grade.UNSOUND if "origin" in header.get("lumos", ()) else Grade.LIMITED)] * bool(header)


@pytest.mark.parametrize(
    ("key", "values", "code"),
    [
        ("deviceProperties", ([{"id": 0, "name": "A100"}], [{"id": 0, "name": "H100"}]), "ranks-unlike-devices"),
        ("cuda_runtime_version", (12040, 11080), "ranks-unlike-software"),
    ],
)
def test_ranks_on_unlike_machines(draw, job, key, values, code):
    drawings = [rank(draw, number) for number in range(3)]
    for drawing in drawings:
        drawing.header[key] = values[drawing.rank == 2]
    found = evidence(job, *drawings)
    assert list(found) == [code]
    assert found[code].grade is Grade.LIMITED
    assert found[code].message.startswith("rank 2 ran")


def test_a_rank_of_another_model(draw, job):
    other = rank(draw, 2, operators=[*OPERATORS[:3], *(f"aten::other{i}" for i in range(7))])
    found = evidence(job, rank(draw, 0), rank(draw, 1), other)
    assert list(found) == ["ranks-unlike-models"]  # 3 names in common of 17
    assert found["ranks-unlike-models"].grade is Grade.UNSOUND


def test_a_rank_that_recorded_other_steps(draw, job):
    found = evidence(job, rank(draw, 0), rank(draw, 1), rank(draw, 2, steps=(8, 9)))
    assert found["ranks-share-no-step"].grade is Grade.UNSOUND
    found = evidence(job, rank(draw, 0), rank(draw, 1), rank(draw, 2, steps=(4, 6)))
    assert found["ranks-record-other-steps"].grade is Grade.LIMITED


def reasons(job, *drawings):
    return {reason.code: reason.message for reason in trust(build(job(*drawings))).reasons}


def test_collectives_that_no_peer_joins(draw, job):
    cut = rank(draw, 2)
    cut.rows = [row for row in cut.rows if row["name"] != NCCL and "Launch" not in row["name"]]
    found = reasons(job, rank(draw, 0), rank(draw, 1), cut)
    assert found["ranks-do-not-meet"].startswith("2 of 2 collectives")
