"""What the rows of one rank say against trusting it: sound drawings, and one thing spoilt in each."""

import json

import pytest

from lumos.graph.build import build
from lumos.trace import read
from lumos.trace.table import Job
from lumos.vocabulary import Grade

KERNELS = 20


def loop(draw, kernels=KERNELS):
    """So many operators of 100 µs; each launches, from 10 to 20 µs after its begin, a kernel that runs from 30 to 90."""
    drawing = draw()
    for i in range(kernels):
        begin = 100 * i
        drawing.op("aten::mul", begin, 95, **{"External id": i + 1})
        drawing.launch((begin + 10, 10), (begin + 30, 60), **{"External id": i + 1})
        drawing.rows[-2]["args"]["External id"] = i + 1
    return drawing


def rows(drawing, category):
    return [row for row in drawing.rows if row["cat"] == category]


def codes(trace, drawing):
    return {found.code: found.grade for found in build(Job((trace(drawing),))).evidence}


def test_a_whole_recording_gives_no_evidence(draw, trace):
    assert codes(trace, loop(draw)) == {}


def test_a_launch_without_its_kernel(draw, trace):
    drawing = loop(draw)
    drawing.rows.remove(rows(drawing, "kernel")[7])
    graph = build(Job((trace(drawing),)))
    (found,) = graph.evidence
    assert (found.code, found.grade) == ("kernels-lost", Grade.UNSOUND)
    assert "1 of 20 launches" in found.message
    assert "5.0%" in found.message


@pytest.mark.parametrize(
    "name",
    ["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel", "cudaGraphLaunch"],
)
def test_calls_of_all_runtimes_launch(draw, trace, name):
    assert codes(trace, loop(draw).call(name, 2000, 5)) == {"kernels-lost": Grade.UNSOUND}


@pytest.mark.parametrize(("ends", "lost"), [(2030, False), (2009, True)])
def test_launches_of_a_capture_run_nothing(draw, trace, ends, lost):
    drawing = loop(draw).call("cudaStreamBeginCapture", 2000, 5).call("cudaLaunchKernel", 2010, 5).call("cudaStreamEndCapture", ends, 1)
    assert codes(trace, drawing) == ({"kernels-lost": Grade.UNSOUND} if lost else {})


def test_a_kernel_without_its_launch(draw, trace):
    drawing = loop(draw)
    drawing.rows.remove(rows(drawing, "cuda_runtime")[7])
    assert codes(trace, drawing) == {"launches-lost": Grade.UNSOUND}


def test_device_work_without_any_launch(draw, trace):
    drawing = loop(draw)
    drawing.rows = [row for row in drawing.rows if row["cat"] != "cuda_runtime"]
    assert codes(trace, drawing) == {"no-launches": Grade.LIMITED}


def test_all_ids_equal(draw, trace):
    drawing = loop(draw)
    for row in drawing.rows:
        if "correlation" in row["args"]:
            row["args"]["correlation"] = 7
    assert codes(trace, drawing)["ids-shared"] is Grade.UNSOUND


def test_all_kernels_of_a_graph_share_its_launch(draw, trace):
    drawing = loop(draw).call("cudaGraphLaunch", 2000, 10, correlation=99)
    for i in range(5):
        drawing.work("kernel", "captured", 2020 + 10 * i, 9, 7, 99)
    assert codes(trace, drawing) == {}


def test_a_graph_with_two_branches(draw, trace):
    drawing = loop(draw).call("cudaGraphLaunch", 2000, 10, correlation=99)
    for stream in (7, 8):
        drawing.work("kernel", "captured", 2020, 600, stream, 99)
    graph = build(Job((trace(drawing),)))
    (found,) = graph.evidence
    assert (found.code, found.grade) == ("graph-branches", Grade.LIMITED)
    assert "50% of the device work" in found.message  # 2 x 600 of 20 x 60 + 2 x 600 µs


# Kernels begin 20 µs after their calls do. From 2 ms on, all kernels have ended before the first call.
@pytest.mark.parametrize(("behind", "named"), [(1, False), (20, False), (21, True), (100, True), (2_000, True), (10_000, True)])
def test_a_device_clock_that_is_behind(draw, trace, behind, named):
    drawing = loop(draw)
    for row in rows(drawing, "kernel"):
        row["ts"] -= behind
    assert codes(trace, drawing) == ({"work-before-launch": Grade.UNSOUND} if named else {})
    rows(drawing, "kernel")[0]["ts"] -= 8_000  # that one kernel says by how much
    assert max(found.share for found in build(Job((trace(drawing),))).evidence if found.code == "work-before-launch") > 0.7


# The last kernel ends at 1,990, and the wait for the device at 2,000.
@pytest.mark.parametrize(("ahead", "named"), [(1, False), (10, False), (14, True), (100, True), (10_000, True)])
def test_a_device_clock_that_is_ahead(draw, trace, ahead, named):
    drawing = loop(draw).call("cudaDeviceSynchronize", 1996, 4)
    for row in rows(drawing, "kernel"):
        row["ts"] += ahead
    assert codes(trace, drawing).get("returns-early") is (Grade.UNSOUND if named else None)


def marked_loop(draw):
    """The loop in four steps of five operators."""
    drawing = loop(draw)
    for number in range(4):
        drawing.step(number, 500 * number, 499)
    return drawing


def test_kernels_that_are_lost_with_their_launches(draw, trace):
    drawing = marked_loop(draw)
    assert codes(trace, drawing) == {}
    for lost in (rows(drawing, "kernel")[7], rows(drawing, "cuda_runtime")[7]):
        drawing.rows.remove(lost)
    (found,) = build(Job((trace(drawing),))).evidence
    assert (found.code, found.grade, found.share) == ("repetitions-unequal", Grade.LIMITED, 1 / 19)
    assert "launch 1 of 19 pieces" in found.message


@pytest.mark.parametrize(("types", "dims", "share"), [("float", "[2,2]", 0.2), ("TensorList", "[2,2]", None), ("float", "[4,4]", None)])
def test_kernels_of_one_step_that_are_lost_with_their_launches(draw, trace, types, dims, share):
    """Three operators of one name, of which two launch two kernels and the last one; that has the same arguments as the others, or others,
    or ones that are not recorded."""
    drawing = draw()
    for i in range(3):
        arguments = {"Input Dims": f"[{'[2,2]' if i < 2 else dims}]", "Input type": f'["{types}"]', "Concrete Inputs": '[""]'}
        drawing.op("aten::mm", 100 * i, 50, **arguments)
        for k in range(2 if i < 2 else 1):
            drawing.launch((100 * i + 10 * k + 5, 5), (100 * i + 20 * k + 11, 10))
    assert [(e.code, e.share) for e in build(Job((trace(drawing),))).evidence] == ([("repetitions-unequal", share)] if share else [])


def test_kernels_that_name_the_operator_of_another_launch(draw, trace):
    drawing = loop(draw)
    kernels = rows(drawing, "kernel")
    ids = [row["args"]["correlation"] for row in kernels]
    # Every kernel takes the launch two before its own, and so begins 220 instead of 20 µs after it; the first two have none.
    for row, earlier in zip(kernels[2:], ids, strict=False):
        row["args"]["correlation"] = earlier
    assert codes(trace, drawing)["ids-disagree"] is Grade.UNSOUND


def test_a_stream_that_runs_two_kernels_at_once(draw, trace):
    drawing = loop(draw)
    for row in rows(drawing, "kernel"):
        row["dur"] = 150  # for 50 of every 100 µs
    (found,) = build(Job((trace(drawing),))).evidence
    assert (found.code, found.grade) == ("stream-overlap", Grade.SOUND)
    # Two run at once from 130 to 180, …, from 1930 to 1980: 19 x 50 of 20 x 150 µs.
    assert found.share == pytest.approx(950 / 3000)


@pytest.mark.parametrize(
    ("category", "duration", "expected"),
    [
        pytest.param("kernel", 250, {"stream-overlap": Grade.UNSOUND}, id="a stream cannot run three kernels at once"),
        pytest.param("kernel", 101, {}, id="kernels touch within the rounding of their times"),
        pytest.param("cpu_op", 150, {"thread-overlap": Grade.UNSOUND}, id="operators end after the one around them"),
    ],
)
def test_rows_that_overlap(draw, trace, category, duration, expected):
    drawing = loop(draw)
    for row in rows(drawing, category):
        row["dur"] = duration
    assert codes(trace, drawing) == expected


def test_operators_that_their_kernels_name_are_missing(draw, trace):
    drawing = loop(draw)
    named = rows(drawing, "cpu_op")[::4]
    for row in named:
        row["cat"] = "user_annotation"
    assert "operators-lost" not in codes(trace, drawing)  # a range is named by the kernel of messages that are sent together
    for row in named:
        drawing.rows.remove(row)
    assert codes(trace, drawing) == {"operators-lost": Grade.LIMITED}


def test_gaps_in_the_numbers_of_rows(draw, trace):
    drawing = loop(draw)
    for number, row in enumerate(rows(drawing, "cpu_op")):
        row["args"]["Ev Idx"] = 7 + number
    assert codes(trace, drawing) == {}
    drawing.op("aten::last", 1996, 1, **{"Ev Idx": 10_000})  # another counter
    assert codes(trace, drawing) == {}
    rows(drawing, "cpu_op")[9]["args"]["Ev Idx"] = 5  # so that 16 is missing
    rows(drawing, "cpu_op")[0]["args"]["Ev Idx"] = 6  # and 7
    (found,) = build(Job((trace(drawing),))).evidence
    assert (found.code, found.grade) == ("rows-lost", Grade.LIMITED)
    assert "2 of 23 numbered rows" in found.message


def test_waits_without_a_known_source_matter_where_two_streams_work(draw, trace):
    drawing = loop(draw)
    for i in range(4):  # work on another stream, launched before the waits, goes on when the work behind them starts
        drawing.call("cudaStreamWaitEvent", 2010 + 10 * i, 2)
    assert codes(trace, drawing) == {}
    drawing.launch((1990, 5), (0, 2000), stream=8)
    drawing.rows[-1]["ts"] = 1996
    drawing.launch((2060, 5), (2070, 10))
    found = {each.code: each for each in build(Job((trace(drawing),))).evidence}
    assert found["waits-unresolved"].share == pytest.approx(0.305, abs=0.001)


def test_what_the_reader_could_not_read(draw, tmp_path):
    drawing = loop(draw)
    del rows(drawing, "kernel")[3]["dur"]
    path = drawing.write(tmp_path)
    assert {each.code for each in build(read(path)).evidence} == {"missing-duration"}
    text = json.dumps({**drawing.header, "traceEvents": drawing.rows})
    path.write_text(text[: text.rindex("}, {")])
    assert "truncated" in {each.code for each in build(read(path, repair=True)).evidence}


@pytest.mark.parametrize(("iterator", "expected"), [("_MultiProcessing", {"loader-waits": Grade.SOUND}), ("_SingleProcess", {})])
def test_waiting_for_a_loader_in_other_processes(draw, trace, iterator, expected):
    """The last 5 µs of the loop are 2 s later, after a range of the loader from 2,000 to 1,999,990 µs. A loader without processes works."""
    drawing = loop(draw).row("user_annotation", f"enumerate(DataLoader)#{iterator}DataLoaderIter.__next__", 2000, 1_997_990)
    drawing.op("aten::mul", 2_000_000, 5)
    assert codes(trace, drawing) == expected
