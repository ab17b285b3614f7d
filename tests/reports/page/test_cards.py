"""How well a job uses its devices, of a rank written by hand."""

import json

import pytest

import lumos
from lumos.reports.page.document import ReportedJob
from lumos.reports.page.steps import device_use

#: Of a step of 100 µs: 20 in a product in bf16 on half of the warps, 10 in an elementwise kernel of less than a warp a multiprocessor.
KERNELS = (("ampere_bf16_s16816gemm", 30, 20, 50, 8.0), ("vectorized_elementwise_kernel", 60, 10, 0, 0.1))


@pytest.fixture
def use(tmp_path):
    """The figures of a step with those kernels: name, start, time, estimated occupancy in percent, warps on each multiprocessor."""

    def of(kernels, device="NVIDIA A100-SXM4-80GB"):
        own = {"ph": "X", "pid": 1, "tid": 1}
        rows = [{**own, "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 100}]
        for i, (name, at, time, percent, warps) in enumerate(kernels, 1):
            shapes = {"Input Dims": [[1000, 1000]] * 2, "Input type": ["c10::BFloat16"] * 2, "External id": i}
            rows.append({**own, "cat": "cpu_op", "name": "aten::mm" if i == 1 else "aten::add", "ts": at - 20, "dur": 10, "args": shapes})
            rows.append({**own, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at - 18, "dur": 5, "args": {"correlation": i}})
            args = {"correlation": i, "stream": 7, "est. achieved occupancy %": percent, "warps per SM": warps}
            rows.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": time, "args": args})
        (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows, "deviceProperties": [{"id": 0, "name": device}]}))
        job = ReportedJob.of(lumos.read(tmp_path / "rank0.json"))
        return device_use(job.measured, job.membership, job.job, job.times.tasks_counted(), 100_000)

    return of


def test_operations_matrix_units_and_occupancy_are_means_over_time(use):
    assert use(KERNELS) == pytest.approx((2e9 / 100e-6, 312e12, 20 / 30, 0.5 * 20 / 30))  # an occupancy rounded down to 0 in the other


def test_what_the_recording_does_not_say_is_none(use):  # no type, no occupancy, no known device
    assert use([*KERNELS, ("ampere_bf16_s16816gemm", 75, 20, 50, 8.0)]).flops_per_s is None  # half of the products are launched by others
    assert use([("a_gemm_kernel", 30, 20, 0, 8.0)], "an accelerator")[1:] == (None, None, None)
