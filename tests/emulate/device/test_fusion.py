"""Kernels of compiled ranges: what is fused, and the bytes that a fused kernel reads and writes."""

from __future__ import annotations

import pytest

from lumos.cost.cluster import load_cluster
from lumos.emulate.device.fusion import Region, compiled, launched
from lumos.emulate.device.kernels import Kernels
from lumos.emulate.record import REGION_PREFIX, Tensor
from lumos.graph.table import Kind

#: Bytes of every tensor here: 1,000 elements of four bytes.
SIZE = 4000


def tensor(storage):
    return Tensor((10, 100), "float32", (100, 1), storage, "cuda")


def square(storage):
    return Tensor((100, 100), "float32", (100, 1), storage, "cuda")


def op(drawn, name, inputs, output, **more):
    """A function that adds an operator which reads and writes storages."""
    return lambda: drawn.operator(f"aten::{name}", inputs=[tensor(each) for each in inputs], outputs=[tensor(output)], **more)


def multiply(drawn, given, output, **more):
    return lambda: drawn.operator("aten::mm", inputs=[tensor(given), square(99)], outputs=[tensor(output)], **more)


def launches(drawn):
    """The kernels of each operator that launches any: their names and bytes."""
    process = drawn.process()
    found, _ = launched(process, Kernels(load_cluster("h100").accelerator))
    order = sorted(range(len(found)), key=lambda i: process.operators[i].begin)
    return [(process.operators[i].name, [(each.name, getattr(each.work, "bytes", None)) for each in found[i]]) for i in order if found[i]]


def test_chains_become_part_of_the_kernel_that_is_first_needed(drawn):
    draw = drawn()
    draw.mark(
        f"{REGION_PREFIX}0/0",
        op(draw, "mul", [1], 2),
        op(draw, "add", [2, 1], 3),
        op(draw, "silu", [7], 8),  # nobody needs it before the end
        multiply(draw, 3, 4),
        op(draw, "add", [4, 8], 5),
    )
    op(draw, "neg", [5], 6)()
    (first, kernels), (last, rest), (outside, alone) = launches(draw)
    assert first == "aten::mm"
    # `mul` and `add` read storage 1 once and write storage 3; storage 2 never reaches memory.
    assert kernels[0] == ("triton_poi_fused_mul_add", 2 * SIZE) and kernels[1][1] is None and len(kernels) == 2
    assert (last, rest) == ("aten::add", [("triton_poi_fused_silu_add", 3 * SIZE)])
    assert (outside, alone) == ("aten::neg", [("elementwise_kernel [neg]", 2 * SIZE)])


def test_the_backward_pass_makes_intermediate_values_again(drawn):
    draw = drawn()
    draw.mark(
        f"{REGION_PREFIX}0/0",
        op(draw, "mul", [1], 2, sequence=5),
        op(draw, "exp", [2], 3, sequence=6),  # read by the backward pass alone
        multiply(draw, 2, 4, sequence=7),
    )
    back = {"thread": 1}
    draw.operator(
        "ExpBackward0", thread=1, leaf=False, sequence=6, forward_thread=0,
        inside=(op(draw, "mul", [9, 3], 10, **back), multiply(draw, 10, 11, **back)),
    )  # fmt: skip
    forward, backward = launches(draw)
    assert forward[1][0] == ("triton_poi_fused_mul", 2 * SIZE)
    # It reads the gradient (9) and what `exp` was made from (1, through 2, which the multiplication has in memory), and writes 10.
    assert backward[0] == "aten::mm" and backward[1][0] == ("triton_poi_fused_mul", 3 * SIZE)


def test_what_nobody_reads_is_a_result_and_ranges_are_not_fused_with_each_other(drawn):
    draw = drawn()
    draw.mark(f"{REGION_PREFIX}0/0", op(draw, "mul", [1], 2))
    draw.mark(f"{REGION_PREFIX}1/0", op(draw, "exp", [2], 3))
    assert launches(draw) == [
        ("aten::mul", [("triton_poi_fused_mul", 2 * SIZE)]),
        ("aten::exp", [("triton_poi_fused_exp", 2 * SIZE)]),
    ]
    assert compiled(draw.process()) == {0: Region(0, False), 1: Region(1, False)}


@pytest.mark.parametrize("ranged", [True, False])
def test_compiled_code_spends_host_time_on_launches_alone(drawn, ranged):
    draw = drawn()
    chain = (op(draw, "mul", [1], 2), op(draw, "exp", [2], 3))
    if ranged:
        draw.mark(f"{REGION_PREFIX}0/0", *chain)
    else:
        for each in chain:
            each()
    tasks = draw.program().tasks
    host = sum(task.ns for task in tasks if not task.on_device)
    # Compiled: one leaf and one launch. Otherwise Python, a leaf and a launch for each of two operators.
    assert host == (10_000 + 3_000 if ranged else 2 * (12_000 + 10_000 + 3_000))
    assert sum(task.kind == Kind.KERNEL for task in tasks) == (1 if ranged else 2)
