"""A profiler's file of a rank whose steps are alike, small enough to check by hand."""

import json


def rows(steps=2, per_step=60, long=None, operator="aten::mm", kernel="gemm_kernel"):
    """Rows of a rank: every step (1000 µs) has equally many operators, launches and kernels, and one all-reduce.

    Before the step `long`, if any, the loop pauses for 2000 µs. A step is complete 601 µs after it began, with its last kernel: operator i
    of a step runs 10i–10i+8 µs and launches at 10i+2–10i+4; its kernel runs 10i+5–10i+11 on stream 7, so that each waits for the one
    before it by 1 µs.
    """
    result, on_thread = [], {"ph": "X", "pid": 1, "tid": 1}
    for step in range(steps):
        zero = 1000 * step + (2000 if long is not None and step >= long else 0)
        result.append({**on_thread, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": zero, "dur": 1000})
        for i in range(per_step):
            number, at = 1 + step * per_step + i, zero + 10 * i
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if i == 3 else kernel
            shapes, call = {"External id": number, "Input Dims": [[8, 4], [4, 2]]}, {"correlation": number, "External id": number}
            device = {"pid": 0, "tid": 7, "args": {**call, "device": 0, "stream": 7}}
            result += [
                {**on_thread, "cat": "cpu_op", "name": operator, "ts": at, "dur": 8, "args": shapes},
                {**on_thread, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 2, "args": call},
                {"ph": "X", "cat": "kernel", "name": name, "ts": at + 5, "dur": 6, **device},
            ]
    return result


def write_rank(folder, file="rank0.json", rank=0, world=1, **shape):
    """Write the file of a rank. shape: of its `rows`."""
    info = {"rank": rank, "world_size": world}
    header = {"schemaVersion": 1, "distributedInfo": info, "deviceProperties": [{"id": 0, "name": "H100"}]}
    (folder / file).write_text(json.dumps({**header, "traceEvents": rows(**shape)}))
    return folder / file
