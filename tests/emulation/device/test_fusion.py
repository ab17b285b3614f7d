"""Kernels of compiled ranges: what is fused, and the bytes that a fused kernel reads and writes."""

import pytest
from msgspec.structs import replace

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.fusion import launched
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.record import Tensor

#: Bytes of every tensor here: 1,000 elements of four bytes.
SIZE = 4000


def tensor(storage):
    return Tensor((10, 100), "float32", (100, 1), storage, "cuda")


def square(storage):
    return Tensor((100, 100), "float32", (100, 1), storage, "cuda")


def op(drawn, name, inputs, output, *, lost=False, **more):
    """A function that adds an operator which reads and writes storages. lost: its result never takes memory."""

    def add():
        drawn.operator(f"aten::{name}", inputs=[tensor(each) for each in inputs], outputs=[tensor(output)], **more)
        if not lost:
            drawn.allocate(SIZE, output)

    return add


def inside(drawn, region, *add):
    """Let what functions add be of a region."""
    before = len(drawn.operators)
    for each in add:
        each()
    drawn.operators[before:] = [replace(each, region=region) for each in drawn.operators[before:]]


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
    inside(
        draw, 0,
        op(draw, "mul", [1], 2, lost=True),
        op(draw, "add", [2, 1], 3),
        op(draw, "silu", [7], 8, lost=True),  # nobody needs it before the end
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
    inside(draw, 0, op(draw, "mul", [1], 2), op(draw, "exp", [2], 3, lost=True), multiply(draw, 2, 4))
    inside(draw, 1, op(draw, "mul", [9, 3], 10, thread=1), multiply(draw, 10, 11, thread=1))
    forward, backward = launches(draw)
    assert forward[1][0] == ("triton_poi_fused_mul", 2 * SIZE)
    # It reads the gradient (9) and what `exp` was made from (1, through 2, which the multiplication has in memory), and writes 10.
    assert backward[0] == "aten::mm" and backward[1][0] == ("triton_poi_fused_mul", 3 * SIZE)


def test_a_collective_needs_what_it_sends(drawn):
    draw = drawn()
    inside(
        draw, 0,
        op(draw, "mul", [1], 2, lost=True),
        op(draw, "add", [2, 7], 3),
        lambda: draw.exchange(storages=[3, 4]),
        lambda: draw.allocate(-SIZE, 3),
        op(draw, "exp", [4], 5),
        multiply(draw, 5, 6),
    )
    (at, kernels), (last, rest) = launches(draw)
    # The sum is in memory before the collective begins, so with the operator before it.
    assert (at, kernels) == ("aten::add", [("triton_poi_fused_mul_add", 3 * SIZE)])
    assert last == "aten::mm" and rest[0] == ("triton_poi_fused_exp", 2 * SIZE)


@pytest.mark.parametrize(
    ("first", "kernels"),
    [
        # Storage 2 is never written: `add` reads storage 1 in its place.
        ("silu", [("triton_poi_fused_silu_mul", 3 * SIZE), ("triton_poi_fused_add", 3 * SIZE)]),
        # Read 1 and 3, write 4 and the sum; then read the sum and 5, write 6.
        ("sum", [("triton_red_fused_sum_mul", 4 * SIZE), ("triton_poi_fused_add", 3 * SIZE)]),
    ],
)
def test_what_never_took_memory_is_made_again_and_what_did_is_read(drawn, first, kernels):
    draw = drawn()
    made = op(draw, first, [1], 2, lost=first == "silu")
    inside(draw, 0, made, op(draw, "mul", [2, 3], 4), multiply(draw, 4, 5), op(draw, "add", [2, 5], 6))
    found = launches(draw)
    assert found[0][1][0] == kernels[0] and kernels[1] in found[-1][1]


def test_what_is_made_of_more_than_four_is_written(drawn):
    draw = drawn()
    inside(draw, 0, *(op(draw, "add", [i, i + 10], i + 1, lost=True) for i in range(1, 7)), multiply(draw, 7, 8))
    assert launches(draw)[0][1][0] == ("triton_poi_fused_add", 8 * SIZE), "seven are read, and the fourth sum is written"
