"""The peak of a process's memory, and what kernels may take beyond it."""

from __future__ import annotations

import msgspec

from lumos.emulation.peak import Peak, peak
from lumos.emulation.record import Allocation, Operator, Process, Tensor


def tensor(elements):
    return Tensor((elements,), "float32", (1,), -1, "cpu")


def process(operators, allocations):
    changes = [Allocation(position, size, 1) for position, size in allocations]
    return Process(rank=0, world=1, accelerator="cpu", torch="", threads=["main"], operators=operators, allocations=changes)


def operator(name, begin, *elements):
    return Operator(name=name, thread=0, begin=begin, end=begin + 5, inputs=[tensor(each) for each in elements], leaf=True)


def test_the_peak_is_the_highest_sum_from_a_moment_on():
    found = process([operator("aten::mm", 10, 100)], [(1, 5000), (12, 400), (13, 600), (20, -600), (30, 100)])
    assert peak(found) == Peak(6000, 6000, ())
    assert peak(found, 10) == Peak(1000, 1000, ())


def test_recurrent_layers_may_take_as_much_again_until_their_backward_pass_is_done():
    """By hand: layers of 400 and 800 bytes keep as much; the backward pass of the second takes 1,200 for a moment, and then both go."""
    forward, backward = "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"
    operators = [operator(forward, 10, 100), operator(forward, 20, 200), operator(backward, 30, 300), operator(backward, 40, 100)]
    found = peak(process(operators, [(5, 1000), (50, 1500)]))
    assert found == Peak(2500, 1000 + 400 + 800 + 1200, (forward, backward))


def test_what_was_measured_of_a_recurrent_layer_is_not_added_again():
    """By hand: the record has 300 bytes that the first layer took for itself and gave back; only the second, of 800, may take more."""
    forward = "aten::mkldnn_rnn_layer"
    found = process([operator(forward, 10, 100), operator(forward, 20, 200)], [(5, 1000)])
    lent = [Allocation(12, 300, 0), Allocation(13, -300, 0)]
    assert peak(msgspec.structs.replace(found, allocations=[*found.allocations, *lent])) == Peak(1300, 1000 + 800, (forward,))
