"""What the gradients of one microbatch take to be added to those of the ones before it."""

import json

import pytest
from tests.changes.layout.test_replicated import job_of
from tests.drawn_rank import DrawnRank

from lumos.changes.changes import Changes
from lumos.changes.layout.accumulate import accumulation, accumulation_ns
from lumos.changes.layout.change import microbatches
from lumos.changes.layout.measured_layout import Extra, measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.memory_bound_model import moved
from lumos.graph.build import build
from lumos.segment.rank import recordings_of
from lumos.segment.segment import segment
from lumos.trace import read

#: Rows of one step, each 20 us after the one before: name, thread, shapes, type, autograd's number, and whether it launches a kernel.
ROWS = (
    ("aten::linear", 1, [[16, 1024], [1024, 1024]], "c10::BFloat16", 5, True),
    ("autograd::engine::evaluate_function: MmBackward0", 2, [], "", 5, True),
    ("torch::autograd::AccumulateGrad", 2, [[1024, 1024]], "c10::BFloat16", -1, False),
)


def layout_of_events(tmp_path, device, events):
    """events: category, name, thread, begin, duration, arguments."""
    names = ("cat", "name", "tid", "ts", "dur", "args")
    rows = [{"ph": "X", "pid": event[2] // 7, **dict(zip(names, event, strict=True))} for event in events]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": device}], "traceEvents": rows}))
    job = read(str(path))
    return measured_layout(segment(build(job), job)), job


def step_of(tmp_path, *more, inner=()):
    """An operator takes 8 us, of which its launch call takes 3; a kernel takes 5 us. more: further rows. inner: events inside of these."""
    events = [*inner]
    for i, (name, thread, dims, dtype, number, launches) in enumerate((*ROWS, *more), 1):
        known = {"Input Dims": dims, "Input type": [dtype] * len(dims)} if dims else {}
        number_of = {"Sequence number": number} if number >= 0 else {}
        events.append(("cpu_op", name, thread, 20 * i, 8, {"External id": i, **known, **number_of}))
        if launches:
            events.append(("cuda_runtime", "cudaLaunchKernel", thread, 20 * i + 2, 3, {"External id": i, "correlation": i}))
            events.append(("kernel", "gemm", 7, 20 * i + 6, 5, {"External id": i, "correlation": i, "device": 0, "stream": 7}))
    return layout_of_events(tmp_path, "NVIDIA H100 80GB HBM3", events)


def test_a_gradient_is_read_twice_and_written_once_in_its_own_type(tmp_path):
    layout, job = step_of(tmp_path)
    h100 = load_cluster("h100").accelerator
    kernel = int(moved(3 * 2 * 1024 * 1024, h100, "pointwise").time)
    added = accumulation(recordings_of(layout.segmentation, job)[0], h100)
    assert added == {-1: Extra(pytest.approx(8_000, abs=10), kernel)}
    assert accumulation_ns(layout) == 0
    assert accumulation_ns(microbatches(layout, job, h100, 4)) == pytest.approx(3 * (8_000 + kernel), abs=100)


def test_an_addition_detaches_nothing(tmp_path):
    """What keeps the first gradient of a weight takes 3 us to detach it."""
    layout, job = step_of(tmp_path, inner=[("cpu_op", "aten::detach", 2, 61, 3, {"External id": 9})])
    rank = recordings_of(layout.segmentation, job)[0]
    assert accumulation(rank, load_cluster("h100").accelerator)[-1].cpu == pytest.approx(5_000, abs=10)


@pytest.mark.parametrize("exchanging", ["torch.distributed.ddp.reducer::copy", "FSDP::post_backward_reduce (layers.0)"])
def test_gradients_are_added_also_by_a_microbatch_that_leaves_out_its_last_kernel(tmp_path, exchanging):
    """The copy into the bucket of an exchange comes last in the backward pass, and only in that of the last microbatch."""
    layout, job = step_of(tmp_path, (exchanging, 2, [], "", -1, True))
    h100 = load_cluster("h100").accelerator
    kernel = accumulation(recordings_of(layout.segmentation, job)[0], h100)[-1].device
    graph = assemble_pieces(microbatches(layout, job, h100, 3)).graph
    assert int(graph.duration[graph.on_device].sum()) == (3 + 3 + 1) * 5_000 + 2 * kernel


def test_on_a_cpu_a_gradient_is_added_at_the_rate_of_the_steps_work_in_place(tmp_path):
    """A scaling reads and writes 32,768 elements in 32 us; an average reads two tensors and writes one, once in 48 us, and once, held up by
    another program, in 128 us: 8 · 32,768 accesses in 208 us, so that three for each of 65,536 elements take 156 us."""
    big, gradient = [256, 128], [512, 128]
    operators = (
        ("aten::linear", [[16, 128], gradient], 5, 8),
        ("autograd::engine::evaluate_function: MmBackward0", [], 5, 8),
        ("torch::autograd::AccumulateGrad", [gradient], -1, 8),
        ("aten::mul_", [big, []], -1, 32),
        ("aten::lerp_", [big, big, []], -1, 48),
        ("aten::lerp_", [big, big, []], -1, 128),
    )
    drawn, at = DrawnRank(), 0
    for name, dims, number, us in operators:
        args = {"Input Dims": dims, "Input type": ["float"] * len(dims), **({"Sequence number": number} if number >= 0 else {})}
        drawn.operator(name, at, us, **args)
        at += us + 1
    job = read(str(drawn.write(tmp_path / "rank0.json")))
    layout = measured_layout(segment(build(job), job))
    assert accumulation(recordings_of(layout.segmentation, job)[0], None) == {-1: Extra(cpu=156_000)}


def test_wider_layers_add_wider_gradients(tmp_path):
    """A step of one pass over two layers and an update that takes 4 × 0.5 ms for the four times as many weights: a second pass adds to it
    what the pass takes and the additions of gradients of the new size."""
    found = job_of(tmp_path, (2048, 2048), (2048, 2048))
    steps = [
        1e9 * answer_changes(*found, Changes(parse_settings(words)), force=True).outcome.step_time_s
        for words in (["hidden=4096"], ["hidden=4096", "microbatches=2"])
    ]
    time = int(moved(3 * 4 * (4096 * 4096 + 4096), load_cluster("h100").accelerator, "pointwise").time)
    assert steps[1] == pytest.approx(2 * steps[0] - 2_000_000 + 2 * time, abs=5_000)
