"""Device work, the calls that launched it, and the constants between them."""

import pytest

from lumos.errors import GraphError
from lumos.graph.build import build
from lumos.graph.constants import CUDA_GAP
from lumos.graph.launches import device_work
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Dependency
from lumos.simulation import simulate
from lumos.trace.table import Job

US = 1000


def test_a_kernel_starts_a_latency_after_its_call_and_a_gap_after_its_predecessor(draw, trace):
    # idle launches: call ends 10, kernel at 12, twice: latency 2. Then three launched early, 1 us apart: gap 1.
    drawing = draw().launch((0, 10), (12, 5)).launch((50, 10), (62, 100))
    drawing.launch((70, 5), (163, 10)).launch((76, 5), (174, 10)).launch((82, 5), (185, 10))
    graph = rank_graph(trace(drawing))
    assert graph.lag[0, Dependency.LAUNCH] == 2 * US
    assert graph.lag[0, Dependency.STREAM_ORDER] == 1 * US
    assert (simulate(graph).start == graph.measured_start - graph.measured_start.min() + graph.release_time.min()).all()


def never_queued(draw, pause):
    """Three kernels of 5 µs, `pause` µs apart; each is launched when the one before has ended, or just before."""
    drawing, at = draw(), 0
    for _ in range(3):
        drawing.launch((at, 5), (at + 4 + pause - 1, 5))
        at += 5 + pause
    return drawing


def test_a_gap_without_a_sample_is_the_usual_one_but_no_longer_than_any_pause(draw, trace):
    graph = rank_graph(trace(never_queued(draw, 20)))
    assert graph.lag[0, Dependency.STREAM_ORDER] == CUDA_GAP[1]
    assert graph.gap_range.tolist() == [[CUDA_GAP[0], CUDA_GAP[2]]]
    assert (simulate(graph).start == graph.measured_start - graph.measured_start.min()).all()
    close = rank_graph(trace(never_queued(draw, 1)))
    assert close.lag[0, Dependency.STREAM_ORDER] == 1 * US
    assert close.gap_range.tolist() == [[CUDA_GAP[0], 1 * US]]


def test_an_id_used_twice_belongs_to_the_latest_call_before_the_work(draw, trace):
    drawing = draw().call("cudaLaunchKernel", 0, 5, correlation=9).work("kernel", "first", 10, 5, 7, 9)
    drawing.call("cudaLaunchKernel", 50, 5, correlation=9).work("kernel", "second", 60, 5, 7, 9)
    work = device_work(trace(drawing))
    assert work.issued.tolist() == [trace(drawing).start[0], trace(drawing).start[2]]


def test_work_launched_before_the_window_keeps_its_start_and_says_so(draw, trace):
    drawing = draw().work("kernel", "early", 0, 30, 7, 99).launch((10, 5), (31, 10))
    graph = rank_graph(trace(drawing))
    early = [graph.names[i] for i in graph.name].index("early")
    assert early in graph.release_task.tolist()
    assert any(d.code == "launch-missing" and "1 of 2" in d.message for d in graph.diagnostics)


def test_an_orphan_after_launched_work_follows_its_stream(draw, trace):
    drawing = draw().launch((0, 5), (6, 10)).work("kernel", "orphan", 17, 10, 7, 99)
    graph = rank_graph(trace(drawing))
    orphan = [graph.names[i] for i in graph.name].index("orphan")
    assert orphan not in graph.release_task.tolist()
    before = graph.duration.copy()
    before[orphan - 1] += 40 * US
    assert simulate(graph, before).start[orphan] - simulate(graph).start[orphan] == 40 * US


def test_a_timeline_of_another_tool_is_named_as_one(draw, trace):
    drawing = draw().row("forward", "layer 1", 0, 10).row("backward", "layer 1", 20, 10)
    with pytest.raises(GraphError, match=r"not the profiler's: 2 rows of unknown categories \('forward', 'backward'\)"):
        build(Job((trace(drawing),)))
    with pytest.raises(GraphError, match="neither operators nor device work; record with CPU and CUDA activities on"):
        build(Job((trace(draw().row("user_annotation", "note", 0, 10)),)))
