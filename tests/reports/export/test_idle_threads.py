"""A thread that waits for another thread's work, in the files of a changed job."""

import json

import numpy as np

import lumos
from lumos.simulation import simulate

#: Steps, and what one takes, us.
STEPS, PERIOD = 4, 1000


def recorded(folder):
    """Steps of two threads. The first works for 100 us; 50 us later the second works for 100 us and ends with a call of 2 us that lets a
    stream wait; 48 us later the first works for 100 us again. Both launch a kernel of 50 us each time."""
    events, number = [], 0
    for step in range(STEPS):
        begin = 1000 + PERIOD * step
        events.append(("user_annotation", f"ProfilerStep#{step}", 1, begin, PERIOD - 0.5, {}))
        for name, thread, at in (("forward", 1, begin), ("backward", 2, begin + 150), ("update", 1, begin + 300)):
            number += 1
            call = {"correlation": number}
            events.append(("cpu_op", f"aten::{name}", thread, at, 100, {"External id": number}))
            events.append(("cuda_runtime", "cudaLaunchKernel", thread, at + 40, 5, call))
            events.append(("kernel", f"{name}_kernel", 7, at + 46, 50, {**call, "device": 0, "stream": 7}))
        number += 1
        events.append(("cuda_runtime", "cudaStreamWaitEvent", 2, begin + 250, 2, {"correlation": number}))
    rows = [
        {"ph": "X", "cat": cat, "name": name, "pid": thread // 7, "tid": thread, "ts": at, "dur": length, "args": args}
        for cat, name, thread, at, length, args in events
    ]
    folder.mkdir()
    (folder / "rank0.json").write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": rows}))
    return folder


def test_a_call_ends_before_its_thread_waits_for_another(tmp_path):
    """Not when the first thread hands work to it again, which is 898 us later."""
    answer = lumos.whatif(recorded(tmp_path / "recorded"), scale={"cpu:aten::forward": 2.0}, force=True)
    lumos.export(answer, kineto=tmp_path / "changed")
    trace = lumos.read(str(tmp_path / "changed")).traces[0]
    calls = np.flatnonzero(trace.name == trace.strings.index("cudaStreamWaitEvent"))
    assert len(calls) >= STEPS
    assert set(trace.duration[calls].tolist()) == {2_000}
    graph = lumos.build(lumos.read(str(tmp_path / "changed")))
    assert lumos.replay(graph, simulate(graph)).replayed_step_time_ns == round(1e9 * answer.outcome.step_time_s)
