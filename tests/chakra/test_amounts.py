"""What kernels compute and move, from a profiler's shapes, from predicted work and from a set, is written into every form of a set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chakra.conftest import write_nodes

import lumos
from lumos.blocks.work import Attention, Gemm, Traffic
from lumos.chakra.recorded import _call, amounts_of, predicted_work
from lumos.chakra.workload import Amounts
from lumos.trace.chakra.et import stream
from lumos.trace.chakra.schema import Attribute, ChakraNode, IOInfo, NodeType
from lumos.vocabulary import AttentionKernel, Direction, DType

#: A product of [8, 4] by [4, 2] in two kernels of 30 and 10 us, a sum of two tensors of 64 floats, and an operator without shapes.
CALLS = (
    ("aten::mm", [[8, 4], [4, 2]], (30, 10)),
    ("aten::add", [[64], [64]], (5,)),
    ("aten::secret", None, (7,)),
)


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    """A profiler's file of one device with these calls, each of 20 us on the CPU."""
    events: list[dict[str, Any]] = []
    number = clock = 0
    for place, (name, shapes, kernels) in enumerate(CALLS):
        args = {} if shapes is None else {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
        events.append({"cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 100 * place, "dur": 20, "args": args})
        for i, length in enumerate(kernels):
            number += 1
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 100 * place + 2 + 8 * i, "dur": 5}
            start = max(clock, 100 * place + 10 + 8 * i)
            clock = start + length
            work = {"cat": "kernel", "name": f"kernel {number}", "pid": 0, "tid": 7, "ts": start, "dur": length}
            events += ({**call, "args": {"correlation": number}}, {**work, "args": {"correlation": number, "stream": 7, "device": 0}})
    file = tmp_path / "trace.0.json"
    file.write_text(
        json.dumps({"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "traceEvents": [{"ph": "X", **e} for e in events]})
    )
    return file


def by_name(graph: lumos.Graph, amounts: Amounts) -> dict[str, tuple[int, int]]:
    device = np.flatnonzero(graph.on_device)
    return {graph.names[graph.name[t]]: (int(amounts.operations[t]), int(amounts.bytes[t])) for t in device}


def test_kernels_share_the_work_of_their_operator_by_time(profiled: Path) -> None:
    job = lumos.read(profiled)
    graph = lumos.build(job)
    amounts = amounts_of(graph, job)
    # 2 * 8 * 4 * 2 = 128 operations on (32 + 8 + 16) * 4 = 224 bytes, three quarters of them in the kernel of 30 us
    assert by_name(graph, amounts) == {"kernel 1": (96, 168), "kernel 2": (32, 56), "kernel 3": (-1, 768), "kernel 4": (-1, -1)}
    assert amounts.dtype is DType.FP32
    product = amounts.table[amounts.detail[[graph.names[n] for n in graph.name].index("kernel 1")]]
    assert product.inputs is not None and product.outputs is not None
    assert (product.inputs.shapes, product.outputs.shapes) == ("[[8,4],[4,2]]", "[[8, 2]]")


def nodes_of(file: Path) -> dict[str, Any]:
    return {node.name.removeprefix("COMP_NODE_"): node for node in stream(file)[1]}


def test_a_set_has_them_and_keeps_them(profiled: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    written = lumos.chakra.export(profiled, first)
    assert (written.work, written.compute) == (3, 4)
    assert lumos.chakra.export(first, second).work == 3  # a set says it itself
    for folder in (first, second):
        node = nodes_of(folder / "job.0.et")["kernel 1"]
        assert (node.value("num_ops"), node.value("tensor_size"), node.inputs.shapes) == (96, 168, "[[8,4],[4,2]]")
        assert (nodes_of(folder / "job.0.et")["kernel 3"].value("num_ops"), node.duration_micros >= 30) == (1, True)


def test_a_set_is_exported_with_all_that_its_nodes_say(tmp_path: Path) -> None:
    """Attributes that no column of a workload holds, of compute and of communication, tensors, and a field that the schema lacks."""
    unknown = b"\x80\x01\x07"  # field 16
    shapes = IOInfo("[]", "[[2, 3]]", "['Tensor(float)']")
    compute = ChakraNode(1, "k", duration_micros=2, inputs=shapes, outputs=shapes, unknown=unknown)
    compute.attrs = (Attribute("num_ops", "int64", 96), Attribute("tensor_size", "uint64", 24), Attribute("layer", "string", "mlp", "doc"))
    ring = ChakraNode(2, "ring", NodeType.COLL, data_deps=(1,), duration_micros=3, outputs=shapes)
    facts = (("comm_type", "int64", 0), ("comm_size", "int64", 64), ("comm_priority", "int32", 1), ("num_ops", "int64", 5))
    ring.attrs = (*(Attribute(*fact) for fact in facts), Attribute("involved_dim", "bool_list", (True,)))
    sent = (("comm_size", "int64", 8), ("comm_tag", "int64", 77), ("comm_dst", "int64", 1), ("comm_src", "int64", 0))
    sides = [ChakraNode(3, "m", kind, (), (2,), attrs=tuple(Attribute(*fact) for fact in sent)) for kind in (NodeType.SEND, NodeType.RECV)]
    for rank in range(2):
        write_nodes(tmp_path / f"set.{rank}.et", [compute, ring, sides[rank]])
    lumos.chakra.export(tmp_path, tmp_path / "b")
    for rank in range(2):
        again = {name.rpartition("_")[2]: node for name, node in nodes_of(tmp_path / "b" / f"job.{rank}.et").items()}
        for node in (compute, ring, sides[rank]):
            found = again[node.name]
            assert (found.inputs, found.outputs, found.unknown) == (node.inputs, node.outputs, node.unknown)
            assert {*node.attrs} <= {*found.attrs}
            assert len({a.name for a in found.attrs}) == len(found.attrs)


def test_predicted_work_by_hand() -> None:
    bf16, flash = DType.BF16, AttentionKernel.FLASH
    attention = Attention(1, 16, 16, 2, 1, 8, 8, True, Direction.FORWARD, flash)
    amounts = predicted_work([None, Gemm(4, 6, 8, bf16, batch=3), attention, Traffic(1000)])
    # 3 products of 2*4*6*8; 2*heads*pairs*(8 + 8) with half of 16*16 pairs
    assert amounts.operations.tolist() == [-1, 1152, 2 * 2 * 128 * 16, -1]
    # 3 * (32 + 48 + 24) elements of two bytes; query and output of 256 elements, key and value of 128
    assert amounts.bytes.tolist() == [-1, 624, 2 * (2 * 256 + 2 * 128), 1000]
    product = amounts.table[amounts.detail[1]]
    assert product.outputs is not None
    assert (product.outputs.shapes, product.outputs.types) == ("[[3, 4, 6]]", '["Tensor(bfloat16)"]')
    assert amounts.taken(np.array([3, -1, 1])).bytes.tolist() == [1000, -1, 624]


def test_answers_are_written_with_what_their_kernels_compute(profiled: Path, tmp_path: Path) -> None:
    answer = lumos.whatif(profiled, scale={"kernel 1": 0.5}, force=True)
    lumos.export(answer, chakra=tmp_path / "changed")
    assert nodes_of(tmp_path / "changed" / "job.0.et")["kernel 1"].value("num_ops") == 96
    prediction = lumos.predict(model="gpt3-1.3b", cluster="h100", gpus=2, global_batch=2, seq=128, tp=2, blocks=False)
    lumos.export(prediction, chakra=tmp_path / "predicted")
    found = lumos.chakra.export(tmp_path / "predicted", tmp_path / "again")
    assert found.work > 0.9 * found.compute


@pytest.mark.parametrize(
    ("shapes", "nbytes"),
    [("[[8,4],[3,4,2],[3]]", 2 * (32 + 24) + 12 + 2 * 16), ("[[4,8],[8,2],[3]]", 2 * (32 + 16) + 12 + 2 * 3 * 4 * 2)],
)
def test_experts_read_their_matrices_once_and_write_a_row_for_each_token(shapes: str, nbytes: int) -> None:
    """Eight tokens for three experts in 16 bits, with the ends of the groups in 32; and the gradients of the three matrices."""
    types = json.dumps(["c10::BFloat16", "c10::BFloat16", "int"])
    assert _call("aten::_grouped_mm", (shapes, types, "[]"), {})[1] == nbytes
