"""The axes of a program drawn by hand: what they are under other sizes, also where two sizes are the same number."""

from dataclasses import replace

import pytest
from tests.operators.script import Model, Script, language_model

from lumos.operators.calls import BACKWARD_NODE, EDGE, GATHERS
from lumos.operators.inference import infer

#: As many tokens as the model is wide, and as all queries of a token together, and as the vocabulary.
EQUAL = Model(batch=2, seq=5, heads=2, width=5, hidden=10, inner=12, vocab=10)


def resized(calls, changes):
    """The shapes of the calls where the axes in `changes`, as ((call, input, axis), size), have other sizes."""
    found = infer(calls)
    new = {}
    for (call, place, axis), size in changes:
        (symbol,) = found.symbols.normal(found.of[call, place][0][axis]).symbols
        new[symbol] = size
    single = {at: axes[0] for at, axes in found.of.items() if len(axes) == 1}
    return {at: tuple(found.symbols.evaluate(axis, new) for axis in axes) for at, axes in single.items()}


BATCH, LENGTH, WIDTH = (0, 1, 0), (0, 1, 1), (0, 0, 1)


@pytest.mark.parametrize("model", [Model(), EQUAL], ids=["distinct", "equal"])
@pytest.mark.parametrize(("axis", "changed"), [(BATCH, {"batch": 6}), (LENGTH, {"seq": 24}), (WIDTH, {"hidden": 40})])
def test_the_shapes_of_a_changed_model_are_those_of_its_own_program(model, axis, changed):
    calls, _ = language_model(model)
    wanted, _ = language_model(model._replace(**changed))
    found = resized(calls, [(axis, next(iter(changed.values())))])
    multiplications = [i for i, call in enumerate(calls) if call.name in ("aten::addmm", "aten::mm", "aten::add", "aten::gelu")]
    wrong = [(i, place) for i in multiplications for place, shape in enumerate(wanted[i].shapes) if shape and found[i, place] != shape]
    assert multiplications and not wrong


def test_a_square_matrix_seen_the_other_way_round_keeps_its_axes_apart():
    """The row inside the transposition says the sizes alone, which are one number."""
    script = Script()
    script.parents.append(script.call("aten::linear", (4, 8), (8, 8), ()))
    script.parents.append(script.call("aten::t", (8, 8), node=True))
    script.parents.append(script.call("aten::transpose", (8, 8), (), (), values=("", 0, 1)))
    script.call("aten::as_strided", (8, 8), (), (), values=("", [8, 8], [1, 8]))
    del script.parents[1:]
    script.call("aten::mm", (4, 8), (8, 8), node=True)
    found = infer(script.calls)
    (inner, outer), product = found.of[0, 1][0], found.of[4, 1][0]
    assert found.symbols.key(inner) != found.symbols.key(outer)
    assert list(map(found.symbols.key, product)) == list(map(found.symbols.key, (outer, inner)))


def test_layers_share_their_axes_by_their_place():
    """Nothing joins the feed-forward parts of two layers but that the same operators stand around them."""
    calls, layers = language_model(Model())
    found = infer(calls)
    inner = {found.symbols.key(found.of[layer["up"], 2][0][1]) for layer in layers[1:]}
    assert len(inner) == 1


def test_of_a_batch_of_one_the_axis_is_known():
    calls, layers = language_model(Model(batch=1))
    found = resized(calls, [(BATCH, 3)])
    assert found[layers[0]["up"], 1] == (3 * 16, 10)
    assert found[layers[0]["attention"], 0] == (3, 2, 16, 4)


def test_a_position_that_the_whole_batch_shares_stays_one():
    script = Script()
    script.call("aten::embedding", (40, 8), (1, 16), node=True)
    script.call("aten::arange", (), values=(16, "False"))
    script.call("aten::unsqueeze", (16,), (), values=("", 0))
    script.call("aten::embedding", (16, 8), (1, 16), node=True)
    added = script.call("aten::add", (1, 16, 8), (1, 16, 8), node=True)
    found = resized(script.calls, [(BATCH, 4)])
    assert found[added, 0] == (4, 16, 8)


def test_an_unknown_operator_is_recognised_by_what_comes_out():
    """A pooling that the table does not have: the batch and the channels stay what they are."""
    script = Script()
    image = script.call("aten::conv2d", (4, 3, 32, 32), (16, 3, 3, 3), (), (), (), values=("", "", "", [1, 1], [1, 1], [1, 1]), node=True)
    script.call("some::pooling", (4, 16, 32, 32), node=True)
    flat = script.call("aten::flatten", (4, 16, 16, 16), (), (), values=("", 1, -1), node=True)
    layer = script.linear((4, 4096), 10)
    found = resized(script.calls, [((image, 0, 0), 12)])
    assert found[flat, 0] == (12, 16, 16, 16)
    assert found[layer, 1] == (12, 4096)


def test_rows_of_what_ranks_share_are_not_taken_for_their_parts():
    """DTensor calls an operator on the whole, and in it the same on a rank's part: half of the columns."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 16), node=True)
    script.parents.append(script.call("aten::mm", (32, 8), (8, 24)))
    part = script.call("aten::mm", (32, 8), (8, 12))
    script.parents.pop()
    found = infer(tuple(script.calls))
    assert (part, 0) in found.of
    assert (part - 1, 0) not in found.of


def test_a_part_of_a_weight_is_none_of_an_activation_of_its_shape():
    """Half of a [16, 8] weight, and eight tokens of width 8."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 4), node=True)
    script.view((2, 4, 8), (8, 8))
    for shape, part in (((16, 8), (8, 8)), ((8, 16), (8, 8))):
        script.parents.append(script.call("aten::linear", (8, shape[1]), shape))
        script.parents.append(script.call("aten::t", shape, node=True))
        script.call("aten::t", part)
        del script.parents[:]
    found = resized(script.calls, [(BATCH, 6)])
    assert [found[number, 0] for number in (4, 7)] == [(8, 8), (8, 8)]


def test_as_many_tokens_as_a_shared_weight_has_rows_stay_tokens():
    """Eight tokens of width 8, and a weight [8, 8] of which this rank has half."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 4), node=True)
    script.parents.append(script.call("aten::linear", (2, 4, 8), (8, 8)))
    script.parents.append(script.call("aten::t", (8, 8), node=True))
    script.call("aten::t", (4, 8))
    script.parents.pop()
    script.view((2, 4, 8), (8, 8))
    script.parents.append(script.call("aten::mm", (8, 8), (8, 8), node=True))
    product = script.call("aten::mm", (8, 8), (8, 4))
    script.parents.pop()
    script.parents.append(script.view((8, 8), (2, 4, 8)))
    rows = script.call("aten::view", (8, 4), (), values=("", [2, 4, 4]))
    found = resized(script.calls, [(BATCH, 6)])
    assert found[rows, 0] == (24, 4)
    assert (found[product, 0], found[product, 1]) == ((24, 8), (8, 4))


def test_a_weight_in_a_pass_that_runs_again_is_none_of_as_many_tokens():
    """The node of the second layer runs the first again, whose weight has the shape of its tokens."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 6), node=True)
    script.linear((2, 6, 8), 12)
    second = script.linear((2, 6, 12), 8)
    transposed, product = script.calls[second - 1].sequence, script.calls[second].sequence
    script.call(f"{BACKWARD_NODE}: TBackward0", sequence=transposed, forward=False)
    script.parents.append(script.call(f"{BACKWARD_NODE}: AddmmBackward0", sequence=product, forward=False))
    again = script.linear((2, 6, 8), 12)
    assert resized(script.calls, [(BATCH, 4)])[again, 2] == (8, 12)


def test_the_one_gradient_of_a_product_is_that_of_its_input_where_its_weight_is_not_trained():
    """Eight tokens, and a layer of as many places: the gradient of its weight would have the same shapes."""
    script = Script()
    script.call("aten::embedding", (40, 12), (2, 4), node=True)
    rows = script.view((2, 4, 12), (8, 12))
    layer = script.call("aten::mm", (8, 12), (12, 8), node=True)
    script.parents.append(script.call(f"{BACKWARD_NODE}: MmBackward0", sequence=script.calls[layer].sequence, forward=False))
    gradient = script.call("aten::mm", (8, 8), (8, 12), forward=False)
    script.parents.pop()
    script.call(f"{BACKWARD_NODE}: ViewBackward0", sequence=script.calls[rows].sequence, forward=False)
    found = resized(script.calls, [(BATCH, 6)])
    assert (found[gradient, 0], found[gradient, 1]) == ((24, 8), (8, 12))


def test_what_is_received_is_new_and_none_of_what_waits_to_be_used():
    """A stage receives twice and gathers the gradient of what it received, which nothing there takes for a weight. What it has made of the
    first, [1, 3, 8], waits for a loss when the second comes."""
    script = Script()
    for _ in range(2):
        received = script.call("c10d::recv_", ())
        script.calls[received] = replace(script.calls[received], inputs=(((1, 3, 8),),), lists=frozenset({0}))
        read = script.call("aten::layer_norm", (1, 3, 8), (), (8,), (8,), values=("", [8]))
        script.linear((1, 3, 8), 8)
        script.call("torch::autograd::AccumulateGrad", (1, 3, 8))
    axes = infer(script.calls)
    first, second = (set(map(axes.symbols.key, of)) for (n, _), (of,) in axes.of.items() if script.calls[n].name == "c10d::recv_")
    assert not first & second
    assert axes.of[read, 0][0] == axes.of[received, 0][0]


@pytest.mark.parametrize(("rows", "after"), [(24, 48), (64, 128)])
def test_what_values_chose_is_as_large_a_part_of_more(rows, after):
    """Of 32 tokens three quarters, or each of them twice."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 16), node=True)
    script.view((2, 16, 8), (32, 8))
    script.call("aten::index", (32, 8), (), node=True)
    layer = script.linear((rows, 8), 12)
    assert resized(script.calls, [(BATCH, 4), (WIDTH, 10)])[layer, 1] == (after, 10)


def test_what_numbers_chose_is_as_long_as_they_are():
    """Half of the 32 tokens by a list that the batch does not change."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 16), node=True)
    script.view((2, 16, 8), (32, 8))
    script.call("aten::arange", (), values=(16, "False"))
    script.call("aten::index", (32, 8), (), node=True)
    layer = script.linear((16, 8), 12)
    assert resized(script.calls, [(BATCH, 4)])[layer, 1] == (16, 8)


def test_strides_tell_two_tensors_of_one_shape_apart():
    """As many latents as positions: what reads data, and what reads the latents, which all of the batch share."""
    script, whole = Script(), ((48, 8, 1),)
    data = script.call("aten::relu", (2, 6, 8), strides=whole)
    latents = script.call("aten::expand", (1, 6, 8), (), values=("", [2, -1, -1]), strides=whole)
    readers = [script.call("aten::gelu", (2, 6, 8), strides=strides) for strides in (whole, ((0, 8, 1),))]
    found = infer(script.calls)
    positions = [found.symbols.key(found.of[call, 0][0][1]) for call in (data, latents, *readers)]
    assert positions[0] == positions[2] != positions[1] == positions[3]


def test_a_list_is_of_the_tensors_that_nothing_has_taken():
    script = Script()
    dense = script.call("aten::relu", (6, 8))
    tables = [script.call("aten::embedding", (100, 8), (6,)) for _ in range(2)]
    script.calls.append(replace(script.calls[-1], name="aten::cat", inputs=((((6, 8),) * 3), ()), lists=frozenset({0}), values=("", "1")))
    found = infer(script.calls)
    batches = [found.of[dense, 0][0][0], *(found.of[table, 1][0][0] for table in tables)]
    assert all(found.symbols.same(batches[0], batch) for batch in batches)


def test_what_values_chose_goes_before_what_was_made_long_ago():
    script = Script()
    script.parents.append(script.call("forward"))
    old = script.call("aten::relu", (12, 4))
    data, _, chosen = (script.call(f"aten::{name}", shape) for name, shape in (("tanh", (6, 4)), ("index", (6, 4)), ("gelu", (12, 4))))
    found = infer(script.calls)
    widths = [found.symbols.key(found.of[call, 0][0][1]) for call in (data, chosen, old)]
    assert widths[0] == widths[1] != widths[2]


def test_a_list_of_numbers_that_waits_is_not_what_values_chose_of_a_table():
    """Tokens are sorted by their experts, as are their weights, a list that was made long before and that nothing has used since."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 16), node=True)
    script.view((2, 16, 8), (32, 8))
    script.call("aten::relu", (32, 2))
    script.view((32, 2), (64,))
    for _ in range(8):
        script.call("aten::relu", (3,))
    script.call("aten::index", (32, 8), (), node=True)
    script.call("aten::index", (64,), ())
    layer = script.linear((64, 8), 12)
    assert resized(script.calls, [(BATCH, 4), (WIDTH, 10)])[layer, 1] == (128, 10)


def test_a_program_without_shapes_has_no_axes():
    script = Script()
    script.call("aten::add", (), ())
    assert infer(tuple(script.calls)).of == {}


def test_data_of_the_shape_of_a_weight_is_not_that_weight():
    """As many rows as the layer has results, so that what it reads has the shape of its weight."""
    script = Script()
    script.linear((8, 5), 6)
    made = script.call("aten::relu", (8, 6), node=True)
    read = script.call("aten::linear", (8, 6), (8, 6), (8,))
    script.call(f"{BACKWARD_NODE}: ReluBackward0", forward=False, sequence=script.calls[made].sequence)
    found = infer(script.calls)
    assert not found.symbols.same(found.of[read, 0][0][0], found.of[read, 1][0][0])


@pytest.mark.parametrize("copies", [True, False])
def test_data_of_the_shape_of_a_weight_that_is_trained_is_data(copies):
    """As many rows as the first layer has results. What a copy without a node reads, or stands beside a weight, is none that is trained."""
    script = Script()
    if copies:
        script.call("aten::clone", (8, 5), ())
    script.linear((8, 5), 8)
    script.call(GATHERS, (8, 5), forward=False)
    found = infer(script.calls)
    assert sorted(given.weight for given in found.given if len(given.axes) == 2) == [False, True]


def test_a_number_repeated_along_an_axis_keeps_its_size():
    """Three columns laid together are three wide, also where an operation element by element passes them on."""
    script = Script()
    script.call("aten::unsqueeze", (8,), (), values=("", 1))
    script.calls.append(replace(script.calls[-1], name="aten::cat", inputs=((((8, 1),) * 3), ()), lists=frozenset({0}), values=("", "1")))
    passed = script.call("aten::gelu", (8, 3), node=True)
    again = script.call("aten::gelu", (8, 3), node=True)
    found = infer(script.calls)
    assert [found.symbols.size(found.of[call, 0][0][1]) for call in (passed, again)] == [3, 3]


def test_what_a_backward_pass_runs_again_is_no_gradient():
    """The node of a product runs another layer again, whose sizes are those of a gradient of that product, too."""
    script = Script()
    product = script.linear((6, 10), 4, bias=False)
    script.parents.append(script.call(f"{BACKWARD_NODE}: AddmmBackward0", forward=False, sequence=script.calls[product].sequence))
    script.view((2, 2, 6), (4, 6))
    again = script.call("aten::mm", (4, 6), (6, 10), node=True)
    script.parents.pop()
    found = infer(script.calls)
    assert not found.symbols.same(found.of[again, 0][0][0], found.of[product, 2][0][1])


def of_rows(script, rows, depth):
    """A linear layer of a matrix, with as many results as rows; returns the number of its multiplication."""
    script.parents.append(script.call("aten::linear", (rows, depth), (rows, depth), (rows,)))
    script.call("aten::t", (rows, depth), node=True)
    found = script.call("aten::addmm", (rows,), (rows, depth), (depth, rows), node=True)
    script.parents.pop()
    return found


def test_a_second_pass_begins_with_data_and_not_with_what_the_first_left():
    """The data of the second microbatch has the shape of the gradient that was gathered last."""
    script = Script()
    copies = []
    for _ in range(2):
        copies.append(script.call("aten::clone", (8, 5), ()))
        product = of_rows(script, 8, 5)
        _, gradient = script.backward(product, 8, 8, 5)
        script.call(f"{BACKWARD_NODE}: TBackward0", forward=False, sequence=script.calls[product].sequence - 1)
    found = infer(script.calls)
    first, second = (found.of[copy, 0][0][0] for copy in copies)
    assert found.symbols.same(first, second)
    assert not found.symbols.same(first, found.of[gradient, 0][0][0])


def test_a_product_that_a_checkpoint_kept_is_not_what_it_was_given():
    """Eight tokens of width 8, and as many results: where the product was kept, its row holds looks at its inputs alone."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 4), node=True)
    script.parents.append(script.call("aten::linear", (2, 4, 8), (8, 8), ()))
    script.view((2, 4, 8), (8, 8))
    script.call("aten::t", (8, 8), node=True)
    script.parents.append(script.call("aten::mm", (8, 8), (8, 8), node=True))
    for _ in range(2):
        script.call("aten::detach", (8, 8))
    del script.parents[:]
    kept = script.view((2, 4, 8), (2, 4, 2, 4))
    found = infer(script.calls)
    assert not found.symbols.same(found.of[kept, 0][0][2], found.of[0, 0][0][1])


def test_what_runs_again_has_the_axes_of_the_pass_before():
    """Of two projections of one input the first is as wide as that, and nothing that runs again says which of the two the second reads."""
    script = Script()
    script.call("aten::embedding", (40, 8), (2, 4), node=True)
    activations = [script.call("aten::relu", (2, 4, 8), node=True) for _ in range(EDGE)]
    products = [script.linear((2, 4, 8), out, bias=False) for out in (6, 8)]
    products.append(script.linear((2, 4, 8), 6, bias=False))
    node = script.calls[activations[0]].sequence
    script.parents.append(script.call(f"{BACKWARD_NODE}: ReluBackward0", sequence=node, forward=False))
    for _ in activations:
        script.call("aten::relu", (2, 4, 8), node=True)
    again = [script.linear((2, 4, 8), out, bias=False) for out in (6, 8, 6)][-1]
    calls = [replace(call, sequence=100 + i) if call.name == "aten::linear" else call for i, call in enumerate(script.calls)]
    found = infer(calls)
    width, out = found.of[products[0], 1][0][1], found.of[products[1], 2][0][1]
    assert not found.symbols.same(width, out)
    assert found.symbols.same(found.of[again, 1][0][1], found.of[products[2], 1][0][1])


def test_pairs_of_numbers_seen_as_one_keep_the_other_axes():
    """Positions that are turned as complex numbers, as many as the batch."""
    script = Script()
    script.call("aten::embedding", (40, 8), (4, 4), node=True)
    script.view((4, 4, 8), (4, 4, 4, 2))
    script.call("aten::view_as_complex", (4, 4, 4, 2), node=True)
    turned = script.call("aten::mul", (4, 4, 4), (), node=True)
    script.call("aten::view_as_real", (4, 4, 4), node=True)
    seen = script.view((4, 4, 4, 2), (4, 4, 8))
    found = resized(script.calls, [(BATCH, 6)])
    assert (found[turned, 0], found[seen, 0]) == ((6, 4, 4), (6, 4, 4, 2))


def test_what_a_node_makes_of_zeros_is_the_gradient_of_its_input():
    """Four values that others chose of a batch of six with five features."""
    script = Script()
    data = script.call("aten::relu", (6, 5))
    script.call("aten::index", (6, 5), (), node=True)
    script.parents.append(script.call(f"{BACKWARD_NODE}: IndexBackward0", forward=False, sequence=script.sequence))
    script.parents.append(script.call("IndexBackward0", (4,), forward=False, sequence=script.sequence))
    script.call("aten::new_zeros", (4,), (), values=("", [6, 5]), forward=False)
    put = script.call("aten::index_put", (6, 5), (), (4,), forward=False)
    assert resized(script.calls, [((data, 0, 0), 12)])[put, 0] == (12, 5)
