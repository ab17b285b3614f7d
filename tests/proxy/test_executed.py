"""Operators from execution traces: identity of tensors, values in range, and exact arguments for profiled operators."""

from pathlib import Path
from typing import Any

import pytest
from tests.proxy.conftest import Write, annotation, mm, node, tensor

from lumos.errors import UsageError
from lumos.proxy.executed import executed_rank
from lumos.proxy.generation import from_execution_traces, from_job, generate_program
from lumos.proxy.program import NON_NEGATIVE, RankProgram
from lumos.trace import execution_trace, read

A, B, C = tensor(10, 20, [4, 4]), tensor(11, 21, [4, 4]), tensor(12, 22, [4, 4])
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"


def program(path: Path, **options: Any) -> RankProgram:
    return from_execution_traces({0: execution_trace.read(path)}, **options)[0].ranks[0]


def test_the_same_tensor_is_the_same_wherever_it_appears(executed: Write) -> None:
    rank = program(
        executed(node(3, "aten::mm", inputs=(A, B), outputs=(C,), op_schema=MM), node(4, "aten::relu", inputs=(C,), outputs=(B,)))
    )
    first, second = rank.operators
    assert first.outputs is not None
    assert second.inputs == [{"tensor": first.outputs[0]}]
    assert second.outputs == [first.inputs[1]["tensor"]] if first.inputs else False
    assert first.schema == MM


def test_plain_arguments_lists_and_devices(executed: Write) -> None:
    inputs = (
        ([A[0], B[0]], [A[1], B[1]], "GenericList[Tensor(float),Tensor(float)]"), (3, [], "Int"), (True, [], "Bool"),
        ([1, 2], [[], []], "GenericList[Int,Int]"), ("tanh", [], "String"), ("cuda:3", [], "Device"), ("<None>", [], "None"),
        ([0, 0, 0, 0, 0, ""], [], "Tensor(nullptr (uninitialized))"),
    )  # fmt: skip
    [operator] = program(executed(node(3, "aten::any", inputs=inputs))).operators
    assert operator.inputs == [[{"tensor": 0}, {"tensor": 1}], 3, True, [1, 2], "tanh", "accelerator", None, None]


def test_index_values_are_bounded_through_views_and_copies_of_them(executed: Write) -> None:
    ids, copy = tensor(30, 40, [8], "long int"), tensor(31, 41, [2, 4], "long int")
    table, out = tensor(32, 42, [100, 4]), tensor(33, 43, [2, 4, 4])
    rank = program(
        executed(
            node(3, "aten::clone", inputs=(ids,), outputs=(copy,)),
            node(4, "aten::embedding", inputs=(table, copy, (-1, [], "Int")), outputs=(out,)),
        )
    )
    [clone, _] = rank.operators
    assert clone.inputs is not None
    assert rank.storages[rank.tensors[clone.inputs[0]["tensor"]].storage].bound == 100


def test_what_a_root_is_taken_of_is_not_negative(executed: Write) -> None:
    rank = program(executed(node(3, "aten::sqrt", inputs=(A,), outputs=(B,)), node(4, "aten::relu", inputs=(C,))))
    bounds = [rank.storages[rank.tensors[o.inputs[0]["tensor"]].storage].bound for o in rank.operators if o.inputs]
    assert bounds == [NON_NEGATIVE, 1]


def test_one_step_of_several_is_taken(executed: Write) -> None:
    path = executed(
        node(3, "ProfilerStep#1"), node(4, "aten::mm", 3, (A, B)), node(5, "ProfilerStep#2"), node(6, "aten::relu", 5, (A,)),
    )  # fmt: skip
    assert [o.name for o in program(path).walk()] == ["aten::mm"]
    assert [o.name for o in program(path, step="2").walk()] == ["aten::relu"]
    with pytest.raises(UsageError, match="--step 7: no such step; the execution trace has ProfilerStep#1, ProfilerStep#2"):
        program(path, step="7")


def test_collectives_say_what_they_transfer(executed: Write) -> None:
    comms = node(4, "record_param_comms", 3, (A,), collective_name="allreduce", dtype="Float", in_msg_nelems=16, out_msg_nelems=16)
    [operator] = program(executed(node(3, "c10d::allreduce_", inputs=(A,)), comms)).operators
    assert operator.collective is not None
    assert (operator.collective.kind, operator.collective.elements_in) == ("all-reduce", 16)
    assert operator.children[0].collective is None


def test_the_profiler_lends_its_times_to_the_same_operators(kineto: Write, executed: Write) -> None:
    profile = kineto(annotation("ProfilerStep#4", 0, 100), mm(10, 5), mm(30, 5))
    trace = execution_trace.read(executed(node(3, "aten::mm", inputs=(A, B), outputs=(C,)), node(4, "aten::mm", inputs=(C, B))))
    made, _ = from_job(read(profile), execution_traces={0: trace})
    first, second = made.ranks[0].operators
    assert (first.start_ns, second.start_ns) == (10_000, 30_000)
    assert first.outputs is not None
    assert second.inputs is not None
    assert second.inputs[0] == {"tensor": first.outputs[0]}
    assert made.ranks[0].tensors[first.outputs[0]].shape == (4, 4)


def test_operators_that_only_the_profiler_saw_keep_its_arguments_with_a_diagnostic(kineto: Write, executed: Write) -> None:
    profile = kineto(mm(10, 5), mm(30, 5))
    made, notes = from_job(read(profile), execution_traces={0: execution_trace.read(executed(node(3, "aten::mm", inputs=(A, B))))})
    assert all(o.inputs for o in made.ranks[0].operators)
    assert "50.0% of its operators" in {note.code: note.message for note in notes}["execution-trace-differs"]


def test_a_folder_brings_its_execution_traces_with_it(kineto: Write, executed: Write, tmp_path: Path) -> None:
    executed(node(3, "aten::mm", inputs=(A, B), outputs=(C,)))
    kineto(mm(10, 5))
    made, notes = generate_program([str(tmp_path)], tmp_path / "out")
    assert made.source == "execution trace"
    assert "execution-trace-set-aside" not in [note.code for note in notes]
    assert made.ranks[0].operators[0].outputs is not None


def test_execution_traces_of_the_wrong_number_and_blocks_without_ranges_are_refused(kineto: Write, executed: Write, tmp_path: Path) -> None:
    profile, trace = str(kineto(mm(10, 5))), str(executed(node(3, "aten::mm", inputs=(A, B))))
    with pytest.raises(UsageError, match="2 execution traces for 1 ranks"):
        generate_program([profile], tmp_path / "out", execution_traces=[trace, trace])
    with pytest.raises(UsageError, match="--blocks needs a profiler's trace"):
        generate_program([trace], tmp_path / "out", blocks=["layer"])


def test_a_send_a_receive_and_a_root_name_their_peer(executed: Write) -> None:
    """Each takes its tensors, the process group, and then the rank in the group: dst or src and a tag, or a root."""
    sent = ([tensor(10, 20, [4])[0]], [[4]], "GenericList[Tensor(float)]")
    group = ("", [], "Object")
    calls = [
        node(3, "c10d::send", inputs=(sent, group, (1, [], "Int"), (7, [], "Int"))),
        node(4, "c10d::recv_", inputs=(sent, group, (2, [], "Int"), (7, [], "Int"))),
        node(5, "c10d::broadcast_", inputs=(sent, group, (3, [], "Int"), (0, [], "Int"))),
        node(6, "c10d::allreduce_", inputs=(sent, group, (5, [], "Int"))),
    ]
    program = executed_rank(execution_trace.read(executed(*calls)), 0, {})
    found = [o.collective for o in program.walk() if o.collective is not None]
    assert [one.peer for one in found] == [1, 2, 3, -1]


def test_execution_traces_of_all_ranks_are_one_job(executed: Write, tmp_path: Path) -> None:
    """Two ranks that send each other parts of unequal size: each keeps what it sends and receives. The names give the ranks."""

    def exchange(sends: list[int], receives: list[int]) -> dict[str, Any]:
        buffers = [tensor(10 + i, 20 + i, [sum(parts)]) for i, parts in enumerate((receives, sends))]
        splits = [(parts, [[]] * 2, "GenericList[Int]") for parts in (receives, sends)]
        return node(3, "c10d::alltoall_base_", inputs=(*buffers, ("", [], "Object"), *splits, (-1, [], "Int")))

    second = executed(exchange([2, 2], [3, 2]), name="job-rank1.et.json")
    first = executed(exchange([1, 3], [1, 2]), name="job-rank0.et.json")
    for given in ([str(tmp_path)], [str(second), str(first)]):
        made, notes = generate_program(given, tmp_path / ".proxy")
        assert (made.world_size, [rank.rank for rank in made.ranks]) == (2, [0, 1])
        parts = [(o.collective.splits_in, o.collective.splits_out) for rank in made.ranks for o in rank.walk() if o.collective]
        assert parts == [((1, 3), (1, 2)), ((2, 2), (3, 2))]
        assert "splits-filled" not in [note.code for note in notes]
    alone, notes = generate_program([str(first)], tmp_path / ".proxy")
    assert (alone.world_size, len(alone.ranks)) == (2, 1)  # an all-to-all has as many parts as its group has ranks
    assert [o.collective.splits_in for o in alone.ranks[0].walk() if o.collective] == [(1, 3)]
    assert "splits-filled" not in [note.code for note in notes]
