import base64
import gzip
from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_graph

from lumos.analyze.loop.steps import members
from lumos.errors import GraphError
from lumos.graph.table import Kind, Processor, Step
from lumos.reports.page import timeline_lanes
from lumos.reports.page.html import column, differences
from lumos.reports.page.timeline_lanes import NO_CLASS, one_of_each_kind, ranks_alike
from lumos.reports.page.timeline_levels import Limits, Pieces, drawing, levels, window_of
from lumos.simulation.timeline import measured


def values(column):
    raw = np.frombuffer(gzip.decompress(base64.b64decode(column["gzip"])), np.uint8)
    dtype = np.dtype(column["dtype"]).newbyteorder("<")
    found = np.ascontiguousarray(raw.reshape(dtype.itemsize, -1).T).view(dtype).reshape(-1)
    return np.cumsum(found, dtype=np.int64) if "differences" in column else found


@pytest.fixture
def job():
    """A step of two ranks from 0 to 1000 ns. Each rank has an operator from 0 to 400 and an all-reduce from 100 (rank 0) or 300
    (rank 1) to 500; rank 0 also has a kernel from 600 to 1000."""
    mm, reduce, gemm = (Kind.OPERATOR, "aten::mm"), (Kind.COLLECTIVE, "all_reduce"), (Kind.KERNEL, "void gemm")
    return drawn_graph(
        [p for r in (0, 1) for p in (Processor(r, False, f"thread {r}"), Processor(r, True, "stream 7", 0, 7))],
        [(0, *mm, 400), (1, *reduce, 200), (1, *gemm, 400), (2, *mm, 400), (3, *reduce, 200)],
        sets=[(1, 4)],
        measured_start=np.array([0, 100, 600, 0, 300], np.int64),
        measured_end=np.array([400, 500, 1000, 400, 500], np.int64),
        steps=(Step(0, "step", 0, 1001), Step(1, "step", 0, 1001)),
    )


def draw(graph, **options):
    return drawing({"measured": measured(graph)}, members(graph), "step", {}, None, **options)


def test_one_rank_of_each_kind_is_drawn_whole_the_largest_kinds_first(job, monkeypatch):
    """Both ranks have two lanes. Rank 1 stands for three ranks, rank 0 for itself."""
    groups, tasks = [[0], [1, 2, 3]], {0: 4, 1: 2}
    assert one_of_each_kind(job, groups, tasks, 6) == {0, 1}
    assert one_of_each_kind(job, groups, tasks, 5) == {1}
    assert one_of_each_kind(job, groups, {0: 4, 1: 9}, 6) == {0}
    monkeypatch.setattr(timeline_lanes, "MOST_LANES", 3)
    assert one_of_each_kind(job, groups, tasks, 6) == {1}


def test_of_many_lanes_the_ranks_drawn_whole_have_tasks_and_the_others_levels(job, monkeypatch):
    """There is room for the two lanes of one rank: rank 0, which is not like rank 1."""
    monkeypatch.setattr(timeline_lanes, "MOST_LANES", 3)
    found = draw(job, limits=Limits(tasks=4))
    assert [(lane["rank"], lane["kind"]) for lane in found["lanes"]] == [(0, "thread"), (0, "stream"), (1, "cpu"), (1, "device")]
    assert found["groups"] == [[0], [1]]
    (run,) = found["runs"]
    assert values(run["tasks"]["offset"]).tolist() == [0, 1, 4, 4, 4]
    assert values(run["tasks"]["task"]).tolist() == [0, 1, 1, 2]
    assert run["pieces"] == 6
    level = run["levels"][-1]
    busy = values(level["busy"]).reshape(4, level["bins"]).sum(axis=1) / 255 * level["bin_ns"]
    assert busy == pytest.approx([400, 800, 400, 200], abs=2 * level["bin_ns"])
    assert draw(job, limits=Limits(tasks=0))["runs"][0]["tasks"] is None


def test_tasks_carry_exact_times_and_waiting_apart_from_transfer(job):
    found = draw(job)
    tasks = found["runs"][0]["tasks"]
    offset, label = values(tasks["offset"]).tolist(), values(tasks["label"])
    assert offset == [0, 1, 4, 5, 6]  # the all-reduce of rank 1 came last: no waiting
    assert values(tasks["pause"]).tolist() == [0, 100, 0, 100, 0, 300]  # since the end of the piece before on the lane
    assert values(tasks["duration"]).tolist() == [400, 200, 200, 400, 400, 200]
    assert [found["labels"][i] for i in label[1:4]] == ["waiting", "collective", "gemm"]
    assert [found["names"][i] for i in values(tasks["name"])] == ["aten::mm", "all_reduce", "all_reduce", "gemm", "aten::mm", "all_reduce"]


def test_a_cell_shows_the_class_that_took_most_of_it():
    found = Pieces(
        np.zeros(3, np.int32), np.array([0, 30, 400]), np.array([30, 100, 500]), np.array([0, 1, 2], np.int32), np.arange(3)
    )  # of the first 100 ns class 1 takes 70
    (*_, coarsest) = levels(found, 1, 3, 256 * 100, 256)
    assert coarsest.bin_ns == 100
    assert coarsest.label[0, :6].tolist() == [1, NO_CLASS, NO_CLASS, NO_CLASS, 2, NO_CLASS]
    assert coarsest.busy[0, :6].tolist() == [255, 0, 0, 0, 255, 0]


def test_a_replay_is_drawn_where_it_looks_different(job):
    """A bin of the finest level is 1000 / 16384 of the step: of 10^8 ns, 6103 ns."""

    def runs(off):
        wide = replace(job, measured_start=job.measured_start * 10**5, measured_end=job.measured_end * 10**5)
        wide = replace(wide, steps=tuple(replace(s, end=100_000_001) for s in job.steps))
        truth = measured(wide)
        end = truth.end - np.array([0, 0, 0, off, 0])
        found = drawing({"measured": truth, "replayed": replace(truth, end=end, source="replayed")}, members(wide), "step", {})
        return [run["source"] for run in found["runs"]]

    assert runs(6000) == ["measured"]
    assert runs(6200) == ["measured", "replayed"]


def test_columns_take_the_least_bytes_that_hold_them():
    for numbers, dtype in (([0, 255], "uint8"), ([0, 256], "uint16"), ([-1, 5], "int32"), ([-(2**40), 1], "float64"), ([], "uint8")):
        found = column(np.array(numbers, np.int64))
        assert (found["dtype"], values(found).tolist()) == (dtype, numbers)
    assert values(differences(np.array([5, 3, 3, 90_000]))).tolist() == [5, 3, 3, 90_000]


def test_a_step_that_is_not_there_is_named(job):
    with pytest.raises(GraphError, match=r"no step 'other'.*step"):
        window_of(measured(job), members(job), "other")


def test_ranks_that_do_the_same_are_one_group():
    """Ranks 0, 1 and 3 run class 0 in all of 20 cells; in rank 2 class 1 takes 5 of them, in rank 3 two: a quarter and a tenth."""
    label = np.zeros((4, 20), np.uint8)
    label[2, :5] = label[3, :2] = 1
    lanes = [(rank, "device") for rank in range(4)]
    assert ranks_alike(lanes, label, np.full((4, 20), 200, np.uint8)) == [[0, 1, 3], [2]]
