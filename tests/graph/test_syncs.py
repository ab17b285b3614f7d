"""Synchronisations and blocking copies: calls that wait for the device."""

import pytest

from lumos.graph.launches import Call, classify
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Dependency, Kind
from lumos.simulation import simulate

US = 1000


def longer(graph, name, by):
    """The graph's durations with the tasks called `name` longer by `by` us."""
    durations = graph.duration.copy()
    durations[[graph.names[i] == name for i in graph.name]] += by * US
    return durations


def task(graph, name, kind=None):
    found = [i for i in range(len(graph)) if graph.names[graph.name[i]] == name and (kind is None or graph.kind[i] == kind)]
    return found[-1]


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipDeviceSynchronize", "cudaEventSynchronize"])
def test_a_synchronisation_ends_with_the_work_it_waits_for(draw, trace, name):
    # kernel 12..112; the call runs 20..115: 3 us after the kernel; an idle call of 2 us shows its own cost
    drawing = draw().launch((0, 10), (12, 100)).call(name, 20, 95).op("after", 115, 10).call(name, 200, 2)
    graph = rank_graph(trace(drawing))
    assert graph.lag[0, Dependency.SYNC] == 3 * US
    assert graph.duration[graph.kind == Kind.SYNC].tolist() == [2 * US, 2 * US]
    base, later = simulate(graph), simulate(graph, longer(graph, "kernel", 50))
    after = task(graph, "after")
    assert base.start[after] - base.start[0] == 115 * US
    assert later.start[after] - base.start[after] == 50 * US
    faster = simulate(graph, longer(graph, "kernel", -100))
    assert faster.start[after] - base.start[0] == 22 * US  # nothing to wait for: the call's own 2 us


def test_a_note_names_the_stream(draw, trace):
    # two streams busy; the note says stream 8, though 9 ends closer to the return
    drawing = draw().launch((0, 5), (6, 50), 8, "awaited").launch((10, 5), (16, 60), 9, "other")
    drawing.call("cudaStreamSynchronize", 20, 60, correlation=77)
    drawing.row("cuda_sync", "Stream Sync", 20, 60, 1_000_008, 0, stream=8, device=0, correlation=77)
    drawing.op("after", 80, 5)
    graph = rank_graph(trace(drawing))
    after = task(graph, "after")
    base = simulate(graph).start[after]
    assert simulate(graph, longer(graph, "awaited", 500)).start[after] > base
    assert simulate(graph, longer(graph, "other", 500)).start[after] == base


def test_an_event_is_awaited_up_to_its_record(draw, trace):
    drawing = draw().launch((0, 5), (6, 50), 8, "before").call("cudaEventRecord", 10, 1, correlation=50)
    drawing.launch((12, 5), (57, 40), 8, "behind").call("cudaEventSynchronize", 20, 40, correlation=51)
    drawing.row("cuda_sync", "Event Sync", 20, 40, -1, 0, stream=-1, device=0, correlation=51,
                wait_on_stream=8, wait_on_cuda_event_record_corr_id=50)  # fmt: skip
    drawing.op("after", 60, 5)
    graph = rank_graph(trace(drawing))
    after = task(graph, "after")
    base = simulate(graph).start[after]
    assert simulate(graph, longer(graph, "behind", 500)).start[after] == base
    assert simulate(graph, longer(graph, "before", 500)).start[after] == base + 500 * US


def test_a_pageable_copy_blocks_its_call(draw, trace):
    # the copy waits for the kernel, the call for the copy and 7 us more
    drawing = draw().launch((0, 10), (12, 100)).copy((20, 100), (112, 1), "Memcpy DtoH (Device -> Pageable)", 8)
    drawing.op("after", 120, 5)
    graph = rank_graph(trace(drawing))
    assert graph.lag[0, Dependency.COPY] == 7 * US
    after = task(graph, "after")
    assert simulate(graph, longer(graph, "kernel", 30)).start[after] - simulate(graph).start[after] == 30 * US


@pytest.mark.parametrize(
    ("name", "nbytes", "blocks"),
    [
        ("Memcpy HtoD (Pageable -> Device)", 1024, False),  # small enough that the runtime stages it without waiting
        ("Memcpy HtoD (Pageable -> Device)", 1 << 20, True),
        ("Memcpy HtoD (Pinned -> Device)", 1 << 20, False),
        ("Memcpy DtoD (Device -> Device)", 1 << 20, False),
        ("Memcpy DtoH (Device -> Pageable)", 4, True),
    ],
)
def test_which_copies_block(draw, trace, name, nbytes, blocks):
    graph = rank_graph(trace(draw().copy((0, 30), (5, 20), name, nbytes)))
    assert (graph.pred_kind == Dependency.COPY).any() == blocks


def test_a_long_call_with_nothing_to_wait_for_is_kept_and_reported(draw, trace):
    drawing = draw().launch((0, 5), (6, 5))
    for at in (100, 200, 300):
        drawing.call("cudaStreamSynchronize", at, 3)
    drawing.call("cudaStreamSynchronize", 400, 503)
    graph = rank_graph(trace(drawing))
    assert graph.unclaimed_wait_time.tolist() == [500 * US]


def limiter(draw, *, records):
    """Six steps of one kernel of 100 us, each of which first waits for the kernel of two steps before.

    Kernel n runs from 110 + 100 n for 100 us, without a pause. Step n calls the synchronisation at 100 n - 70 and returns 5 us after
    kernel n - 2 has ended, at 100 n + 15. The launch takes 5 us, and the event is recorded 1 us later. Steps 0 and 1 have nothing to
    wait for: the call takes 2 us. A step takes the CPU 17 us: the call 2, the launch 5, recording 1, and 9 between them.
    """
    drawing = draw()
    for n in range(6):
        called, returned = ((94, 96), (112, 114))[n] if n < 2 else (100 * n - 70, 100 * n + 15)
        drawing.step(n, called - 1, 17).call("cudaEventSynchronize", called, returned - called)
        drawing.launch((returned, 5), (110 + 100 * n, 100))
        if records:
            drawing.call("cudaEventRecord", returned + 6, 1)
        drawing.op("end of step", returned + 8, 2)
    return drawing


@pytest.mark.parametrize("records", [True, False])
def test_an_event_of_two_steps_before_is_awaited_in_every_step(draw, trace, loop_time, records):
    # kernels of 50 us: 50 us a step; of 20 us: 20, as the CPU needs 17, and 5 + 5 + 8 us from one kernel to the next but one
    found = trace(limiter(draw, records=records))
    graph = rank_graph(found)
    assert graph.lag[0, Dependency.SYNC] == 5 * US
    assert not len(graph.unclaimed_wait_time)
    assert [loop_time(found, f) for f in (1, 0.5, 0.2)] == [100, 50, 20]


def test_as_many_calls_as_events_wait_for_them_in_turn(draw, trace):
    """In every step three copies end at 110, 210 and 310 us. The first call returns just after the first; when the second is called,
    all have ended, so that its time does not tell which it awaits."""
    drawing = draw()
    for n in range(3):
        at = 1000 * n
        drawing.step(n, at, 990)
        for i, name in enumerate(("first", "second", "third")):
            drawing.launch((at + 4 * i, 2), (at + 10 + 100 * i, 100), name=name).call("cudaEventRecord", at + 4 * i + 2, 1)
        for begin, time in ((20, 95), (320, 3), (330, 3)):
            drawing.call("cudaEventSynchronize", at + begin, time)
    graph = rank_graph(trace(drawing))
    source = graph.pred[graph.pred_kind == Dependency.SYNC]
    assert [graph.names[i] for i in graph.name[source]] == ["first", "second", "third"] * 3


def test_of_two_streams_the_one_whose_end_let_the_call_return_is_awaited(draw, trace):
    # the work on stream 9 was issued last, but a call that waited for it would have returned at 30
    drawing = draw().launch((0, 5), (6, 90), 8, "awaited").call("cudaEventRecord", 6, 1)
    drawing.launch((10, 5), (16, 10), 9, "other").call("cudaEventRecord", 16, 1).call("cudaEventSynchronize", 20, 80)
    graph = rank_graph(trace(drawing))
    source = graph.pred[graph.pred_kind == Dependency.SYNC]
    assert [graph.names[i] for i in graph.name[source]] == ["awaited"]


def test_names_of_calls(draw, trace):
    drawing = draw()
    wanted = {
        "cudaStreamWaitEvent": Call.STREAM_WAIT,
        "hipStreamWaitEvent": Call.STREAM_WAIT,
        "cudaEventRecordWithFlags": Call.EVENT_RECORD,
        "hipMemcpyWithStream": Call.BLOCKING_COPY,
        "cudaMemcpyAsync": Call.OTHER,
        "cuStreamSynchronize": Call.STREAM_SYNC,
        "cudaEventQuery": Call.QUERY,
        "cudaLaunchKernel": Call.LAUNCH,
        "hipExtModuleLaunchKernel": Call.LAUNCH,
        "cudaGraphLaunch": Call.GRAPH_LAUNCH,
    }
    for i, name in enumerate(wanted):
        drawing.call(name, 10 * i, 5)
    assert classify(trace(drawing)).tolist() == list(wanted.values())


def test_a_call_that_synchronises_an_unused_device_waits_for_nothing(draw, trace):
    drawing = draw().call("cudaStreamSynchronize", 10, 5).call("cudaEventSynchronize", 20, 5).call("cudaDeviceSynchronize", 30, 5)
    drawing.call("cudaStreamWaitEvent", 40, 5, correlation=91)
    drawing.row("cuda_sync", "Stream Wait Event", 40, 5, 9, 0, stream=9, device=0, correlation=91, wait_on_stream=8)
    assert not (rank_graph(trace(drawing)).pred_kind == Dependency.SYNC).any()


@pytest.mark.parametrize(("records", "known"), [(True, [0, 100, 200, 300]), (False, [0, 100, 200])])
def test_an_event_may_stand_for_work_from_before_the_recording(draw, trace, loop_time, records, known):
    """The recording begins in step 2: the launches and the records of steps 0 and 1 are missing, but not their kernels. What the first
    call is part of is then cut off, so that without rows of record calls it is on its own, and its wait of 85 us is kept."""
    drawing = limiter(draw, records=records)
    drawing.rows = [row for row in drawing.rows if row["ts"] >= 129 or (row["cat"] == "kernel" and row["ts"] >= 110)]
    found = trace(drawing)
    graph = rank_graph(found)
    ended = graph.measured_end[graph.pred[graph.pred_kind == Dependency.SYNC]] // US
    assert (ended - ended[0]).tolist() == known
    assert graph.unclaimed_wait_time.tolist() == ([] if records else [85 * US])
    assert [loop_time(found, f) for f in (1, 0.2)] == [100, 20]
