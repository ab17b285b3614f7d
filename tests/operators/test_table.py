"""What an operator is stands in one line of one table, and what it multiplies and moves follows from its letters."""

import json
from collections import Counter
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.cost.cluster import load_cluster
from lumos.cost.operators import OperatorTime
from lumos.cost.traffic import traffic
from lumos.operators import kernels, shaped, table
from lumos.operators.kernels import kernels_of
from lumos.operators.shaped import ShapedOperator, attention_of, elements, factors, operations, product, result_shapes
from lumos.operators.table import OperatorKind, argument_places, axis_rule, kind_of, operator_table, own_name, said_by_torch, without_work

#: The names of the operators of each part of the table.
PARTS = {
    "axes": [name for rules in operator_table()["axes"].values() for name in rules],
    "arguments": [name for ways in operator_table()["arguments"].values() for names in ways.values() for name in names],
    "elementwise": [name for names in operator_table()["elementwise"].values() for name in names],
    "kinds": [name for names in operator_table()["kinds"].values() for name in names],
}
SIZES = st.fixed_dictionaries({letter: st.integers(2, 9) for letter in "bcdehikmnopqtv"}).filter(lambda s: s["k"] != s["q"])


def of_kind(kind):
    return sorted(operator_table()["axes"][kind])


def shapes_of(rule, sizes):
    """Inputs of a call, each axis as long as its letter; "*" is one axis as long as "b"; () for an input whose axes do not matter."""
    sizes = sizes | {"*1": sizes["b"], "+1": sizes["p"], "1": 1}
    wide = [(p, p.letters(p.least + bool(p.stretch)) if p is not None else ()) for p in rule.inputs]
    return tuple(tuple(sizes[letter] for letter in letters) for _, letters in wide)


def test_an_operator_stands_in_one_place():
    counts = Counter(name for names in PARTS.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []
    assert [name for name in counts if name != own_name(name)] == []


def test_the_table_does_not_repeat_what_torch_says():
    said = said_by_torch()
    for kind, names in operator_table()["kinds"].items():
        if kind in said:
            assert sorted({*names} & {*said[kind]}) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::add_", OperatorKind.POINTWISE),
        ("aten::hypot", OperatorKind.POINTWISE),
        ("aten::max", OperatorKind.REDUCTION),
        ("aten::movedim", OperatorKind.VIEW),
        ("aten::__and__", OperatorKind.POINTWISE),
        ("mylib::mm_of_mine", None),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) is kind


def test_views_and_what_only_calls_others_do_no_work():
    assert all(map(without_work, ("aten::view", "aten::empty", "aten::linear", "aten::layer_norm", "aten::conv2d")))
    assert not any(map(without_work, ("aten::mm", "aten::native_layer_norm", "aten::lstm", "aten::silu_backward", "mylib::view")))


@given(sizes=SIZES, name=st.sampled_from(of_kind("multiplication")))
def test_a_multiplication_is_what_its_letters_say(name, sizes):
    """Two operations for each combination of its factors' letters but those that divide it into groups, and as many results as its first
    result has letters."""
    for rule in table._axis_rules()[name]:
        call = ShapedOperator(f"aten::{name}", shapes_of(rule, sizes), ("float",) * len(rule.inputs))
        found = factors(call)
        assert found is not None
        letters = [set(rule.inputs[place].letters(len(call.shapes[place]))) for place in (found.first, found.second)]
        result = {letter for p in rule.results for letter in p.letters(p.least + bool(p.stretch))}
        groups = {letter for letter in letters[0] ^ letters[1] if letter not in result}
        known = sizes | {"*1": sizes["b"]}
        counted = prod(known[letter] for letter in (letters[0] | letters[1]) - groups)
        assert operations(call.name, call.shapes, []) == 2 * counted
        m, n, _, batch = found.whole
        assert sum(map(elements, result_shapes(call.name, call.shapes) or ((),))) == m * n * batch * (found.groups if found.of_depth else 1)


@given(sizes=SIZES, name=st.sampled_from(of_kind("attention")))
def test_attention_is_what_its_letters_say(name, sizes):
    rule = table._axis_rules()[name][0]
    shapes = shapes_of(rule, sizes)
    found = attention_of(f"aten::{name}", shapes)
    assert found == tuple(sizes[letter] for letter in "bhhqkdv")
    widths = 3 * sizes["d"] + 2 * sizes["v"] if "backward" in name else sizes["d"] + sizes["v"]
    whole = 2 * prod(sizes[letter] for letter in "bhqk") * widths
    values = ["False"] * 20
    assert operations(f"aten::{name}", shapes, values) == whole
    if (place := argument_places(name).get("is_causal")) is not None:
        values[place] = "True"
        assert operations(f"aten::{name}", shapes, values) == whole / 2


@given(sizes=SIZES, name=st.sampled_from([name for name in PARTS["axes"] if kernels_of(name)]))
def test_bytes_are_those_of_inputs_and_results(name, sizes):
    """What the kernels move lies between nothing and every tensor as often as the table says, and of fp32 is twice that of bf16."""
    rule = axis_rule(name, ())
    shapes = tuple(shape or (1,) for shape in shapes_of(rule, sizes))
    moved = [traffic(OperatorTime(f"aten::{name}", shapes, (dtype,) * len(shapes), 0, 1)) for dtype in ("float", "c10::BFloat16")]
    if moved[0] is None:
        return  # its result does not follow from the shapes, or it calls others
    given, results = sum(map(elements, shapes)), result_shapes(f"aten::{name}", shapes) or ()
    assert moved[0][1] == 2 * moved[1][1]
    if all((k.reads, k.writes) == (("in*",), ("out*",)) for k in kernels_of(name)) and kind_of(name) is not OperatorKind.REDUCTION:
        assert moved[0][1] == 4 * (given + sum(map(elements, results)))


def test_an_activation_behind_addmm_changes_nothing_of_what_it_multiplies():
    from lumos.changes.layout.rescale import modelled

    accelerator = load_cluster("h100").accelerator
    for rows in (512, 1024, 4096):
        calls = [
            ShapedOperator(f"aten::{name}", ((512,), (rows, 256), (256, 512)), ("float",) * 3) for name in ("addmm", "_addmm_activation")
        ]
        assert product(calls[0]) == product(calls[1]) == (rows, 512, 256, 1)
        assert operations(*calls[0][:2], []) == operations(*calls[1][:2], []) == 2 * rows * 512 * 256
        first, second = (modelled(call, accelerator) for call in calls)
        assert first is not None
        assert int(first.time) == int(second.time)


def test_a_new_operator_is_one_line(monkeypatch):
    """Its kind, its sizes, its results and its operations follow from the letters, and what a normalisation moves from its kind."""
    line = {"multiplication": {"my_product": "mk nk -> mn"}, "normalisation": {"my_norm": "*d !d -> *d"}}
    axes = {kind: rules | line.get(kind, {}) for kind, rules in operator_table()["axes"].items()}
    cached = (table._kinds, table._axis_rules, table.kind_of, shaped._by_letters, kernels.kernels_of)
    monkeypatch.setattr(table, "operator_table", lambda known=operator_table() | {"axes": axes}: known)
    for each in cached:
        each.cache_clear()
    try:
        call = ShapedOperator("aten::my_product", ((8, 4), (2, 4)), ("float", "float"))
        assert product(call) == (8, 2, 4, 1)
        assert operations(call.name, call.shapes, []) == 2 * 8 * 2 * 4
        assert result_shapes(call.name, call.shapes) == ((8, 2),)
        assert traffic(OperatorTime("aten::my_norm", ((8, 4), (4,)), ("float", "float"), 0, 1)) == ("normalisation", 4 * (2 * 32 + 4))
    finally:
        for each in cached:
            each.cache_clear()


def test_what_torch_says_is_what_the_file_has():
    """The file is written anew with each version of torch that changes it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchgen")
    pytest.importorskip("yaml")
    from tools.operators import TARGET, said_by_torch

    written = json.loads(TARGET.read_text(encoding="utf-8"))
    if torch.__version__.partition("+")[0] != written["torch"]:
        pytest.skip(f"the file is of torch {written['torch']}")
    assert said_by_torch() == written
