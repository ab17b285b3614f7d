"""Waits between streams: exact, inferred from call order, and by the frameworks' rule where nothing was recorded."""

from __future__ import annotations

import numpy as np

from lumos.graph.build import rank_graph
from lumos.graph.calls import classify
from lumos.graph.launches import device_work
from lumos.graph.streams import stream_waits


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


def test_measured_times_refute_a_pair(draw, trace):
    # the last work before the wait ended after the waiting work began, so the awaited work is the one before it
    drawing = draw().launch((0, 5), (6, 20), 8, "earlier").launch((7, 2), (27, 100), 8, "later")
    drawing.call("cudaStreamWaitEvent", 10, 1).launch((15, 5), (30, 10), 9, "waiting")
    assert pairs(trace(drawing))[0] == [("waiting", "earlier")]


def test_a_wait_without_any_awaited_work_leads_nowhere(draw, trace):
    drawing = draw().call("cudaStreamWaitEvent", 10, 1).launch((15, 5), (30, 10), 9, "alone")
    found, waits = pairs(trace(drawing))
    assert found == [] and waits.unresolved == 1


def test_kineto_leaves_out_waits_of_streams_without_work(draw, trace):
    # one wait has a note, the other has none: its stream has no work, so nothing is inferred for it
    drawing = draw().launch((0, 5), (6, 50), 8, "awaited").call("cudaStreamWaitEvent", 10, 1, correlation=70)
    drawing.call("cudaStreamWaitEvent", 12, 1, correlation=71)
    drawing.row("cuda_sync", "Stream Wait Event", 12, 1, 9, 0, stream=9, device=0, correlation=71,
                wait_on_stream=8, wait_on_cuda_event_record_corr_id=-1)  # fmt: skip
    drawing.launch((15, 5), (58, 10), 9, "waiting")
    found, waits = pairs(trace(drawing))
    assert found == [("waiting", "awaited")] and waits.unresolved == 0


def test_notes_without_a_source_name_the_waiting_stream_alone(draw, trace):
    # CUDA 12.9 and later: the note names only the waiting stream; the next launch goes to another stream
    drawing = draw().launch((0, 5), (6, 20), 8, "awaited").call("cudaStreamWaitEvent", 10, 1, correlation=71)
    drawing.row("cuda_sync", "Stream Wait Event", 10, 1, 9, 0, stream=9, device=0, correlation=71,
                wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1)  # fmt: skip
    drawing.launch((15, 5), (21, 10), 10, "elsewhere").launch((22, 5), (29, 10), 9, "waiting")
    assert pairs(trace(drawing))[0] == [("waiting", "awaited")]


def test_where_nothing_is_recorded_collectives_wait_for_what_was_issued_before(draw, trace):
    nccl = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    drawing = draw().launch((0, 5), (10, 50), 0, "backward").launch((6, 5), (61, 100), 4, nccl)
    drawing.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 20, 30).launch((25, 5), (162, 5), 0, "copy")
    found, waits = pairs(trace(drawing))
    assert sorted(found) == [("copy", nccl), (nccl, "backward")]
    assert waits.inferred == 2


def test_the_share_of_a_devices_processors(draw, trace):
    # 108 SMs; 256 threads of 32 registers: 8 blocks an SM by threads. 432 blocks fill half; 8,640 make 10 waves.
    properties = [
        {"id": 0, "numSms": 108, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936}
    ]
    shape = {"block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
    drawing = draw().launch((0, 5), (6, 100), 7, "half", grid=[432, 1, 1], **shape)
    drawing.launch((10, 5), (16, 100), 8, "waves", grid=[8640, 1, 1], **shape)
    drawing.header["deviceProperties"] = properties
    graph = rank_graph(trace(drawing))
    assert graph.occupancy is not None
    assert np.allclose(graph.occupancy.share, [0.5, 1.0])
    assert graph.occupancy.hold.tolist() == [100_000, 85_000]  # ten waves less the last one and a half


def test_one_stream_shares_with_no_one(draw, trace):
    drawing = draw().launch((0, 5), (6, 100), 7, "k", grid=[1000, 1, 1], block=[256, 1, 1], **{"registers per thread": 32})
    assert rank_graph(trace(drawing)).occupancy is None


def test_a_stream_of_higher_priority_waits_for_no_slots(draw, trace):
    shape = {"grid": [8640, 1, 1], "block": [256, 1, 1], "registers per thread": 32}
    drawing = draw().launch((0, 5), (6, 100), 7, "usual", priority=0, **shape).launch((10, 5), (16, 100), 8, "urgent", priority=-5, **shape)
    drawing.header["deviceProperties"] = [{"id": 0, "numSms": 108}]
    graph = rank_graph(trace(drawing))
    assert [graph.names[i] for i in graph.name[graph.occupancy.task]] == ["usual"]
