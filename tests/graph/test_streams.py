"""Waits between streams: exact, inferred from call order, and by the frameworks' rule where nothing was recorded."""

import pytest

from lumos.graph.launches import classify, device_work
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Dependency
from lumos.graph.waits.streams import stream_waits


def pairs(trace):
    """Names of (waiting work, awaited work)."""
    work = device_work(trace)
    waits = stream_waits(trace, classify(trace), work)
    name = [trace.strings[i] for i in trace.name[work.row]]
    return [(name[a], name[b]) for a, b in zip(waits.work, waits.source, strict=True)], waits


def test_a_note_gives_the_pair_exactly(draw, trace):
    # the event was recorded after "first"; "second" follows on the same stream and is not awaited
    drawing = draw().launch((0, 5), (6, 50), 8, "first").call("cudaEventRecord", 10, 1, correlation=90)
    drawing.launch((12, 5), (57, 40), 8, "second").call("cudaStreamWaitEvent", 20, 1, correlation=91)
    drawing.row("cuda_sync", "Stream Wait Event", 20, 1, 9, 0, stream=9, device=0, correlation=91,
                wait_on_stream=8, wait_on_cuda_event_record_corr_id=90)  # fmt: skip
    drawing.launch((25, 5), (58, 10), 9, "waiting")
    found, waits = pairs(trace(drawing))
    assert found == [("waiting", "first")]
    assert (waits.exact, waits.inferred) == (1, 0)


def test_call_order_gives_the_pair_where_there_are_no_notes(draw, trace):
    drawing = draw().launch((0, 5), (6, 50), 8, "compute").call("cudaStreamWaitEvent", 10, 1)
    drawing.launch((15, 5), (57, 10), 9, "waiting").launch((25, 5), (70, 10), 9, "next")
    found, waits = pairs(trace(drawing))
    assert found == [("waiting", "compute")]
    assert (waits.exact, waits.inferred) == (0, 1)


def test_a_wait_whose_source_measured_times_refute_is_unresolved(draw, trace):
    # the last work before the wait ended after the waiting work began; nothing says that an event was recorded before it
    drawing = draw().launch((0, 5), (6, 20), 8, "earlier").launch((7, 2), (27, 100), 8, "later")
    drawing.call("cudaStreamWaitEvent", 10, 1).launch((15, 5), (30, 10), 9, "waiting")
    found, waits = pairs(trace(drawing))
    assert found == [] and (waits.inferred, waits.unresolved) == (0, 1)


def test_an_event_that_was_recorded_before_may_be_awaited(draw, trace):
    drawing = draw().launch((0, 5), (6, 20), 8, "earlier").call("cudaEventRecord", 6, 0.5).launch((7, 2), (27, 100), 8, "later")
    drawing.call("cudaStreamWaitEvent", 10, 1).launch((15, 5), (30, 10), 9, "waiting")
    found, waits = pairs(trace(drawing))
    assert found == [("waiting", "earlier")] and waits.inferred == 1


def prefetch(draw):
    """Three steps, each of which copies the data of the next step, lets the compute stream wait for its own, and computes.

    The copy of step 1 had ended when its kernel started (136, 140), that of step 2 had not (316, 236).
    """
    drawing = draw()
    for n, (copied, computed) in enumerate(((20, 36), (20, 140), (100, 236))):
        at = 100 * n
        drawing.step(n, at, 99).copy((at + 10, 5), (at + 16, copied), "Memcpy HtoD (Pinned -> Device)", 1 << 20, stream=20)
        drawing.call("cudaStreamWaitEvent", at + 20, 1).launch((at + 30, 5), (computed, 50), 7)
    return drawing


def test_a_wait_in_the_code_has_one_source_in_every_step(draw, trace):
    # the last copy is refuted in step 2, so in all of them; the kernel of step 0 waits for a copy from before the recording
    found = trace(prefetch(draw))
    work = device_work(found)
    waits = stream_waits(found, classify(found), work)
    first = found.start.min()
    assert [(work.start[a] - first, work.start[b] - first) for a, b in zip(waits.work, waits.source, strict=True)] == [
        (140_000, 16_000),
        (236_000, 116_000),
    ]


def test_of_several_streams_the_one_that_was_launched_to_last_is_awaited(draw, trace):
    drawing = draw().launch((0, 5), (6, 20), 8, "earlier").launch((8, 5), (14, 10), 10, "later")
    drawing.call("cudaStreamWaitEvent", 15, 1).launch((17, 5), (30, 10), 9, "waiting")
    assert pairs(trace(drawing))[0] == [("waiting", "later")]


def test_waits_that_follow_one_another_have_sources_of_their_own(draw, trace):
    """Three all-reduces of 100 us, then three copies, each of which waits for its own and starts 3 us after it; in each of two steps."""
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    drawing = draw()
    for at in (0, 1000):
        drawing.step(at // 1000, at, 990)
        for i in range(3):
            drawing.launch((at + 2 * i, 1), (at + 10 + 100 * i, 100), 20, nccl)
        for i in range(3):
            drawing.call("cudaStreamWaitEvent", at + 6 + 3 * i, 1).launch((at + 7 + 3 * i, 1), (at + 113 + 100 * i, 5), 7, "copy")
    found = trace(drawing)
    work = device_work(found)
    waits = stream_waits(found, classify(found), work)
    assert (work.start[waits.work] - work.end[waits.source]).tolist() == [3_000] * 6
    assert rank_graph(found).lag[0, Dependency.STREAM_WAIT] == 3_000


def test_a_wait_that_never_held_anything_up_is_not_for_what_its_stream_waits_for_anyhow(draw, trace):
    """Each step fills a buffer that the copy of the step before has left long ago, copies it, and waits for an all-reduce."""
    nccl, copy = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "Memcpy DtoH (Device -> Pinned)"
    drawing = draw()
    for at in (0, 1000, 2000):
        drawing.step(at // 1000, at, 990).call("cudaStreamWaitEvent", at + 1, 1).launch((at + 3, 2), (at + 10, 100), 7, "gemm")
        drawing.call("cudaStreamWaitEvent", at + 6, 1).copy((at + 8, 2), (at + 113, 20), copy, 1 << 20, stream=13)
        drawing.call("cudaStreamWaitEvent", at + 12, 1).launch((at + 14, 2), (at + 113, 80), 21, nccl)
        drawing.call("cudaStreamWaitEvent", at + 18, 1).launch((at + 20, 2), (at + 196, 10), 7, "update")
    found = pairs(trace(drawing))[0]
    assert found.count(("gemm", copy)) == 2 and ("gemm", nccl) not in found and found.count(("update", nccl)) == 3


def test_of_two_waits_at_one_place_one_holds_back_the_stream_that_is_launched_to_later(draw, trace):
    """A copy lets the stream of compute wait for it, and itself waits for compute; the copy is launched next, then a kernel."""
    drawing = draw()
    for at in (0, 100, 200):
        drawing.step(at // 100, at, 99).call("cudaStreamWaitEvent", at + 10, 1).call("cudaStreamWaitEvent", at + 12, 1)
        drawing.copy((at + 14, 5), (at + 30, 50), "Memcpy HtoD (Pinned -> Device)", 1 << 20, stream=20).call("cudaEventRecord", at + 20, 1)
        drawing.launch((at + 22, 5), (at + 28, 40), 7, "compute").call("cudaEventRecord", at + 28, 1)
    copy = "Memcpy HtoD (Pinned -> Device)"
    assert pairs(trace(drawing))[0] == [("compute", copy), ("compute", copy), (copy, "compute"), (copy, "compute")]


def test_a_wait_that_the_next_launch_does_not_obey_holds_back_the_work_that_it_explains(draw, trace):
    """Compute waits for an exchange, but what is launched next is a copy that waits for nothing, and for which compute waits too: the
    exchange ends last in two steps, the copy in the third."""
    drawing = draw()
    for at, exchange, copy in ((0, 100, 30), (500, 100, 30), (1000, 40, 160)):
        drawing.step(at // 500, at, 490)
        drawing.call("cudaStreamWaitEvent", at + 1, 1).launch((at + 3, 2), (at + 60, 20), 7, "begin")
        drawing.call("cudaEventRecord", at + 6, 1).call("cudaStreamWaitEvent", at + 8, 1)
        drawing.launch((at + 10, 2), (at + 81, exchange), 21, "exchange")
        drawing.call("cudaEventRecord", at + 13, 1).call("cudaStreamWaitEvent", at + 15, 1)
        drawing.copy((at + 17, 2), (at + 20, copy), "copy", 1 << 20, stream=13).call("cudaEventRecord", at + 20, 1)
        drawing.call("cudaStreamWaitEvent", at + 22, 1).launch((at + 24, 2), (at + 182, 20), 7, "compute")
    found = pairs(trace(drawing))[0]
    assert found.count(("compute", "exchange")) == found.count(("compute", "copy")) == found.count(("exchange", "begin")) == 3


def test_the_delay_of_a_wait_is_the_shortest_of_its_repetitions(draw, trace, loop_time):
    # each step's second kernel, launched long before, starts 3 us after the first on the other stream, once 9 us after it
    drawing = draw()
    for n, delay in enumerate((3, 3, 3, 9)):
        at = 200 * n
        drawing.step(n, at, 200).launch((at + 1, 5), (at + 10, 100), 7, "first").call("cudaStreamWaitEvent", at + 20, 1)
        drawing.launch((at + 30, 5), (at + 110 + delay, 50), 9, "second").call("cudaStreamSynchronize", at + 40, 125 + delay)
    found = trace(drawing)
    assert rank_graph(found).lag[0, Dependency.STREAM_WAIT] == 3_000
    # 1 + 5 + latency 4, the kernels of 100 and 50, the wait's 3, and 5 us until the call returns; it returns, and 32 us follow
    assert loop_time(found, 1) - loop_time(found, 0.5) == 75


def test_notes_without_a_source_name_the_waiting_stream_alone(draw, trace):
    # CUDA 12.9 and later: the note names only the waiting stream; the next launch goes to another stream
    drawing = draw().launch((0, 5), (6, 20), 8, "awaited").call("cudaStreamWaitEvent", 10, 1, correlation=71)
    drawing.row("cuda_sync", "Stream Wait Event", 10, 1, 9, 0, stream=9, device=0, correlation=71,
                wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1)  # fmt: skip
    drawing.launch((15, 5), (21, 10), 10, "elsewhere").launch((22, 5), (29, 10), 9, "waiting")
    assert pairs(trace(drawing))[0] == [("waiting", "awaited")]


def test_a_recording_of_collectives_without_any_wait_does_not_tell_what_they_wait_for(draw, trace):
    found = trace(draw().launch((0, 5), (10, 55), 0, "backward").launch((6, 5), (65, 100), 4, "ncclDevKernel_Generic()"))
    assert pairs(found)[0] == []
    (evidence,) = [each for each in rank_graph(found).evidence if each.code == "waits-unresolved"]
    assert evidence.share == pytest.approx(55 / 155) and "no waits between streams, although it communicates" in evidence.message
