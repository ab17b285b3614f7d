"""A step of a profiler's file as a program."""

from pathlib import Path
from typing import Any

import pytest
from tests.proxy.conftest import Write, annotation, mm, operator

from lumos.errors import TraceError, UsageError
from lumos.proxy.generation import from_job, generate_program
from lumos.proxy.program import RankProgram, RecordedOperator
from lumos.trace import read


def program(path: Path, **options: Any) -> RankProgram:
    return from_job(read(path), **options)[0].ranks[0]


def names(operators: list[RecordedOperator]) -> list[Any]:
    return [(o.name, names(o.children)) if o.children else o.name for o in operators]


def test_operators_are_nested_as_they_called_each_other_and_start_from_the_step(kineto: Write) -> None:
    path = kineto(annotation("ProfilerStep#3", 100, 50), operator("aten::linear", 110, 20), mm(115, 10), mm(135, 5))
    rank = program(path)
    assert names(rank.operators) == [("aten::linear", ["aten::mm"]), "aten::mm"]
    assert [(o.start_ns, o.duration_ns) for o in rank.walk()] == [(10_000, 20_000), (15_000, 10_000), (35_000, 5_000)]
    assert (rank.step, rank.recorded_ns) == ("ProfilerStep#3", 30_000)


def test_the_typical_step_is_taken_unless_another_is_named(kineto: Write) -> None:
    """The steps are complete at 160, 220 and 330 µs: the second takes 60 µs, of which 50 lie before its operator, and the third 110."""
    path = kineto(*(annotation(f"ProfilerStep#{n}", 100 * n, 90) for n in (1, 2, 3)), mm(110, 50), mm(210, 10), mm(310, 20))
    typical, first = program(path), program(path, step="1")
    assert (typical.step, typical.recorded_ns, typical.before_ns) == ("ProfilerStep#2", 60_000, 50_000)
    assert (first.recorded_ns, first.before_ns) == (50_000, 0)
    assert program(path, step="3").before_ns == 50_000  # the least of those behind another step
    with pytest.raises(UsageError, match=r"--step 9: no such step; the trace has ProfilerStep#1, ProfilerStep#2"):
        program(path, step="9")


def test_a_wait_for_a_transfer_is_no_time_between_operators(kineto: Write) -> None:
    dims = [("TensorList", [[64]], "")]
    path = kineto(
        operator("c10d::allreduce_", 0, 5, inputs=dims),
        mm(10, 10),
        operator("gloo:all_reduce", 6, 194, tid=2, **{"Input Dims": [[[64]]], "Input type": ["TensorList"]}) | {"cat": "user_annotation"},
        mm(210, 10),
        distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2},
    )
    rank = program(path)
    reduce, _, after = rank.operators
    assert reduce.collective is not None
    assert (reduce.collective.kind, reduce.collective.elements_in, reduce.collective.end_ns) == ("all-reduce", 64, 200_000)
    assert after.after == [0]


def test_blocks_keep_what_runs_inside_a_range_and_its_backward(kineto: Write) -> None:
    path = kineto(
        annotation("layer 1", 0, 15), mm(0, 10, **{"Sequence number": 5}), mm(20, 10), mm(40, 10),
        operator("MmBackward0", 60, 30, **{"Sequence number": 5}), mm(65, 10),
    )  # fmt: skip
    rank = program(path, blocks=["layer *"])
    assert names(rank.operators) == ["aten::mm", ("MmBackward0", ["aten::mm"])]
    assert rank.operators[0].backward == 1
    assert rank.recorded_ns == -1
    with pytest.raises(UsageError, match="no range of the step"):
        program(path, blocks=["head"])


def test_device_work_belongs_to_the_operator_that_launched_it_and_waits_follow_streams(kineto: Write) -> None:
    def call(name: str, start: float, correlation: int) -> dict[str, Any]:
        args = {"correlation": correlation}
        return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 7, "tid": 1, "ts": start, "dur": 1, "args": args}

    def kernel(start: float, duration: float, correlation: int, stream: int) -> dict[str, Any]:
        args = {"correlation": correlation, "stream": stream, "device": 0}
        return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": stream, "ts": start, "dur": duration, "args": args}

    path = kineto(
        mm(0, 10), call("cudaLaunchKernel", 2, 1), mm(20, 10), call("cudaLaunchKernel", 22, 2), call("cudaLaunchKernel", 40, 3),
        kernel(5, 20, 1, 7), kernel(30, 10, 2, 20), kernel(45, 15, 3, 7),
    )  # fmt: skip
    rank = program(path)
    assert [(o.name, o.stream, o.device_ns) for o in rank.operators] == [
        ("aten::mm", 7, 20_000), ("aten::mm", 20, 10_000), ("gemm", 7, 15_000),
    ]  # fmt: skip
    assert rank.on_accelerator
    assert rank.operators[2].kernel


def test_a_step_without_operators_cannot_be_run(kineto: Write, tmp_path: Path) -> None:
    path = kineto({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 5, "args": {"stream": 7, "device": 0}})
    with pytest.raises(TraceError, match="holds no operators"):
        generate_program([str(path)], tmp_path / "out")


def test_threads_of_the_recording_and_its_allocator_are_taken_over_as_numbers_only(kineto: Write) -> None:
    malloc = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1; rm", "PATH": "1"}
    rank = program(kineto(mm(0, 10), lumos_collect={"threads": 2, "malloc": malloc}))
    assert (rank.threads, rank.malloc) == (2, {"MALLOC_MMAP_THRESHOLD_": "65536"})


def test_objects_that_ranks_exchange_have_the_type_that_the_moving_thread_says(kineto: Write) -> None:
    """A list of tensors is printed without its type; 38 bytes of a pickled object would count as 38 floats."""
    broadcast = operator("c10d::broadcast_", 0, 20, inputs=[("TensorList", [[38]], ""), ("", [], ""), ("Scalar", [], "0")])
    gather = operator("c10d::allgather_", 30, 20, inputs=[("", [], ""), ("TensorList", [[1]], ""), ("", [], "")])
    moved = {"cat": "user_annotation"}
    path = kineto(
        broadcast,
        operator("gloo:broadcast", 5, 10, tid=2, inputs=[("unsigned char", [38], "")]) | moved,
        gather,
        operator("gloo:all_gather", 35, 40, tid=2, inputs=[("long int", [1], "")]) | moved,
        mm(90, 5),
        distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2},
    )
    found = [o.collective for o in program(path).walk() if o.collective is not None]
    assert [(c.kind, c.dtype, c.elements_in, c.end_ns) for c in found] == [
        ("broadcast", "uint8", 38, 15_000),
        ("all-gather", "int64", 1, 75_000),
    ]
