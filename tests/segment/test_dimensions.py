"""Shapes of a resized model in which two sizes are equal, and how the time of its CPU work changes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lumos.changes.layout.rescale import Core, operator_work, touched
from lumos.segment.dimensions import Sizes, shapes_of, sizes
from lumos.segment.products import ShapedOperator, product
from lumos.segment.resized import Resize
from lumos.trace import read
from lumos.trace.table import ABSENT, Category, Column, Lane, Trace

#: The sequence is as long as a head is wide, and a micro-batch has as many tokens as the model is wide.
EQUAL = Sizes(micro_batch=4, seq=64, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=1024, vocab=1000)
LONGER = Resize(EQUAL, EQUAL._replace(seq=128))
ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def op(name, *shapes):
    return ShapedOperator(name, shapes, ("float",) * len(shapes))


def test_a_longer_sequence_does_not_widen_heads_of_its_length():
    queries = (4, 4, 64, 64)
    longer = LONGER.operator(op(ATTENTION, queries, queries, queries), True)
    assert longer.shapes == ((4, 4, 128, 64),) * 3
    assert operator_work(longer) == 4 * operator_work(op(ATTENTION, queries, queries, queries))
    assert LONGER.operator(op("aten::copy_", (4, 64, 3, 4, 64)), True).shapes == ((4, 128, 3, 4, 64),)


def test_scores_grow_with_both_of_their_sequences():
    assert LONGER.operator(op("aten::_softmax", (4, 4, 64, 64)), True).shapes == ((4, 4, 128, 128),)


@pytest.mark.parametrize("lead", [(3, 64, 4), (2, 4, 64), (4, 64, 2), (64, 4, 3)])
def test_queries_keys_and_values_in_one_tensor_have_the_sequence_beside_the_batch(lead):
    longer = tuple(128 if x == 64 else x for x in lead)
    assert LONGER.operator(op("aten::clone", (*lead, 256)), True).shapes == ((*longer, 256),)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::addmm", ((1024,), (256, 256), (256, 1024))),  # forward: tokens × hidden, hidden × ffn
        ("aten::mm", ((1024, 256), (256, 256))),  # gradient of the weights: ffn × tokens, tokens × hidden
        ("aten::mm", ((256, 1024), (1024, 256))),  # gradient of the input
        ("aten::linear", ((4, 64, 256), (1024, 256))),
    ],
)
def test_twice_the_tokens_are_twice_the_arithmetic_where_tokens_equal_the_width(name, shapes):
    before, after = op(name, *shapes), LONGER.operator(op(name, *shapes), True)
    assert operator_work(after) == 2 * operator_work(before)
    assert product(after) is not None


def test_an_optimizer_does_not_grow_with_the_tokens():
    update = op("aten::mul_", (256, 1024))
    assert LONGER.operator(update, True, of_weights=True) == update


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::addmm", ((128,), (32, 128), (128, 128))),
        ("aten::mm", ((128, 32), (32, 128))),
        ("aten::linear", ((4, 8, 128), (128, 128))),
    ],
)
def test_a_square_matrix_is_of_the_feed_forward_part_where_attention_has_none(name, shapes):
    """Half of the heads on each of two ranks, and half of a feed-forward part twice as wide as the model: on a rank it is as wide."""
    part = Sizes(micro_batch=4, seq=8, hidden=128, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=1000)
    wider = Resize(part, part._replace(ffn=256))
    after = wider.operator(op(name, *shapes), True)
    assert operator_work(after) == 2 * operator_work(op(name, *shapes))
    assert sorted(wider.weight((128, 128), True)) == [128, 256]
    assert wider.operator(op("aten::mm", (32, 128), (128, 64)), True).shapes == ((32, 128), (128, 64))


#: A sequence as long as the model is wide; each token goes to two of eight experts, but not every expert gets equally many.
ROUTED = Sizes(micro_batch=2, seq=512, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=1024, vocab=1000)


@pytest.mark.parametrize(
    ("name", "shapes", "after"),
    [
        ("aten::_grouped_mm", ((2040, 512), (8, 512, 1024), (8,)), ((4080, 512), (8, 512, 1024), (8,))),
        ("aten::_grouped_mm", ((512, 2040), (2040, 1024), (8,)), ((512, 4080), (4080, 1024), (8,))),
        ("aten::mul", ((2040, 1024), (2040, 1)), ((4080, 1024), (4080, 1))),
        ("aten::index", ((1024, 512), ()), ((2048, 512), ())),
    ],
)
def test_tokens_that_experts_multiply_follow_the_sequence(name, shapes, after):
    longer = Resize(ROUTED, ROUTED._replace(seq=1024), routed=frozenset({2040}))
    assert longer.operator(op(name, *shapes), True).shapes == after


#: Experts as wide as the model, whose matrices with their gates are as wide as queries, keys and values together.
AS_WIDE = Sizes(micro_batch=2, seq=100, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=512, vocab=1000)


@pytest.mark.parametrize(
    ("name", "shapes", "after"),
    [
        ("aten::_grouped_mm", ((80, 512), (8, 512, 1024), (8,)), ((80, 512), (8, 512, 2048), (8,))),
        ("aten::_grouped_mm", ((80, 512), (8, 512, 512), (8,)), ((80, 512), (8, 512, 1024), (8,))),
        ("aten::_grouped_mm", ((80, 1024), (8, 1024, 512), (8,)), ((80, 2048), (8, 2048, 512), (8,))),
        ("aten::_grouped_mm", ((1024, 80), (80, 512), (8,)), ((2048, 80), (80, 512), (8,))),
        ("aten::silu", ((80, 512),), ((80, 1024),)),
        ("aten::silu_backward", ((80, 512), (80, 512)), ((80, 1024), (80, 1024))),
        ("aten::mul", ((80, 512), (80, 512)), ((80, 1024), (80, 1024))),
        ("aten::mul", ((80, 512), (80, 1)), ((80, 512), (80, 1))),  # of each token by its weight
        ("aten::index", ((80, 512), (80,)), ((80, 512), (80,))),
        ("aten::linear", ((2, 100, 512), (512, 512)), ((2, 100, 512), (512, 512))),  # queries
        ("aten::addmm", ((1024,), (200, 512), (512, 1024)), ((1024,), (200, 512), (512, 1024))),  # queries, keys and values
    ],
)
def test_experts_as_wide_as_the_model_are_told_by_their_matrices_and_by_what_is_between_them(name, shapes, after):
    wider = Resize(AS_WIDE, AS_WIDE._replace(ffn=1024), routed=frozenset({80}))
    assert wider.operator(op(name, *shapes), True).shapes == after


@pytest.mark.parametrize(
    ("shape", "after"),
    [((8, 1024, 512), (8, 2048, 512)), ((8, 512, 512), (8, 512, 1024)), ((512, 512), (512, 512)), ((8, 1024, 64), (8, 1024, 64))],
)
def test_matrices_of_experts_as_wide_as_the_model_become_wider_with_them(shape, after):
    """The optimizer's, and the gradients', of which a matrix of two dimensions is the attention's."""
    wider = Resize(AS_WIDE, AS_WIDE._replace(ffn=1024), frozenset({shape}), routed=frozenset({80}))
    assert wider.weight(shape, True) == after
    assert wider(shape, True) == after


def test_experts_half_as_wide_as_the_model_are_told_by_their_matrices():
    """With its gate beside it, a matrix of such an expert is square."""
    half = AS_WIDE._replace(ffn=256)
    narrower = Resize(half, half._replace(ffn=64), routed=frozenset({80}))
    both = op("aten::_grouped_mm", (80, 512), (8, 512, 512), (8,)), op("aten::_grouped_mm", (80, 256), (8, 256, 512), (8,))
    assert [narrower.operator(o, True).shapes[1] for o in both] == [(8, 512, 128), (8, 64, 512)]


def test_a_multiplication_for_experts_takes_time_as_its_arithmetic():
    before = op("aten::_grouped_mm", (2040, 512), (8, 512, 1024), (8,))
    assert operator_work(before) == 2040 * 512 * 1024
    assert operator_work(before._replace(shapes=((4080, 512), *before.shapes[1:]))) == 2 * operator_work(before)


def test_attention_grows_by_arithmetic_only_as_far_as_arithmetic_takes_its_time():
    queries = (4, 4, 64, 64)
    before = op(ATTENTION, queries, queries, queries)
    after = LONGER.operator(before, True)
    arithmetic = 2 * operator_work(before)  # at one multiplication a ns
    half = Core(fixed=0.0, node_fixed=0.0, rate=1.0, own={before: 2.0 * arithmetic})
    assert half.ratio(before, after) == pytest.approx((4 + 2) / 2)
    assert replace_own(half, before, arithmetic).ratio(before, after) == pytest.approx(4)


def replace_own(core, operator, own):
    return core._replace(own={operator: float(own)})


def test_the_time_of_a_view_does_not_depend_on_its_size():
    core = Core(0.0, 0.0, 1.0, {})
    view = op("aten::transpose", (4, 64, 256))
    assert core.ratio(view, LONGER.operator(view, True)) == 1.0


def test_lists_of_tensors_have_their_shapes():
    strings = ["aten::cat", "[[[4, 64], [4, 64]], []]", '["TensorList", "Scalar"]']
    empty = np.full(1, ABSENT, np.int64)
    one = np.zeros(1, np.int32)
    args = {key: Column(one, np.array([at], np.int64), "string") for key, at in (("Input Dims", 1), ("Input type", 2))}
    trace = Trace(
        "hand.json", 0, "assumed", None, strings, empty + 1, empty + 11, one, np.full(1, Category.OPERATOR, np.uint8), one,
        empty, empty, args, [Lane("1", "1")],
    )  # fmt: skip
    found = shapes_of(trace)[0]
    assert found is not None and found.shapes == ((4, 64), (4, 64), ())
    assert touched(found) == 512
    assert shapes_of(replace(trace, args={}))[0] is None


@pytest.mark.parametrize("gate", [1, 2])
def test_the_width_of_experts_is_read_from_their_matrices(tmp_path, gate):
    """Eight experts from 64 to 96 and back, with and without a gate; the backward pass multiplies by the transposed matrices."""
    matrices = [(8, 64, 96 * gate), (8, 96, 64), (8, 64, 96), (8, 96 * gate, 64)]
    rows = [("aten::embedding", [[1000, 64], [4, 16]])] + [("aten::_grouped_mm", [[128, m[1]], list(m), [8]]) for m in matrices]
    assert sizes(_trace_of(rows, tmp_path)).ffn == 96


@pytest.mark.parametrize(
    ("projections", "ffn"),
    [
        ([(64, 64), (32, 64), (32, 64), (64, 64)], 192),  # queries, keys, values, and out of the attention
        ([(192, 64), (64, 64)], 0),  # queries, keys and values together are as wide as the feed-forward part
    ],
)
def test_a_feed_forward_part_three_times_as_wide_as_the_model_is_read_where_queries_are_projected_apart(tmp_path, projections, ffn):
    """Two layers of width 64, with four heads, and from 64 to 192 and back. Where one matrix from 64 to 192 is the attention's, a tensor of
    192 features may be either, and no width of the feed-forward part is read."""
    layer = [("aten::linear", [[4, 16, k], [n, k]]) for n, k in [*projections, (192, 64), (64, 192)]]
    heads = ("aten::scaled_dot_product_attention", [[4, 4, 16, 16], [4, 2 if ffn else 4, 16, 16], [4, 4, 16, 16]])
    rows = [("aten::embedding", [[1000, 64], [4, 16]]), *[*layer, heads] * 2]
    assert sizes(_trace_of(rows, tmp_path)).ffn == ffn


def test_a_stage_without_an_embedding_shows_the_width_of_what_its_layers_pass_on(tmp_path):
    """Queries, keys and values in one matrix, and a feed-forward part: 64 is what all of these read or write."""
    layer = [("aten::linear", [[4, 16, k], [n, k]]) for n, k in [(192, 64), (64, 64), (256, 64), (64, 256)]]
    heads = ("aten::scaled_dot_product_attention", [[4, 4, 16, 16]] * 3)
    found = sizes(_trace_of([*layer, heads] * 2, tmp_path))
    assert (found.hidden, found.ffn) == (64, 256)


def _trace_of(rows, folder):
    """A trace of operators, each with the shapes of its inputs, one after the other."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 20 * i, "dur": 10,
         "args": {"Input Dims": dims, "Input type": ["float"] * len(dims)}}
        for i, (name, dims) in enumerate(rows)
    ]  # fmt: skip
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read(str(path)).traces[0]


def test_the_loss_of_every_token_but_the_first_is_a_token_shorter():
    """Four sequences of 64 tokens become ones of 128: of each, the loss takes 63 and then 127. In layers nothing is a token short."""
    assert LONGER((4, 63, 1000), in_layer=False) == (4, 127, 1000)
    assert LONGER((4 * 63, 1000), in_layer=False) == (4 * 127, 1000)
    assert LONGER((4 * 63,), in_layer=False) == (4 * 127,)
    assert LONGER((4, 63, 256), in_layer=True) != (4, 127, 256)


@pytest.mark.parametrize(("result", "heads"), [(True, 8), (False, 0)])
def test_heads_are_read_from_attention_that_multiplies_for_each_of_them(tmp_path, result, heads):
    """Four sequences of 16 tokens with 8 heads of 32, scores into a buffer as in Megatron. Scores alone are products of features."""
    scores = ("aten::baddbmm", [[32, 16, 16], [32, 16, 32], [32, 32, 16]])
    out = ("aten::bmm", [[32, 16, 16], [32, 16, 32]])
    found = sizes(_trace_of([("aten::embedding", [[1000, 256], [4, 16]]), scores, *[out] * result], tmp_path))
    assert (found.micro_batch, found.seq, found.heads, found.kv_heads, found.head_dim) == (4, 16, heads, heads, 32 if heads else 0)
