"""The names of a recorded model's axes, and the shapes of its operators with other sizes."""

import json
from pathlib import Path

import pytest
from tests.operators.script import Model, Script, language_model

from lumos.errors import LumosError
from lumos.operators.inference import infer
from lumos.segment.named_axes import Names, named_axes
from lumos.segment.program import axes_of
from lumos.segment.sizes import Resized, Sizes, sizes
from lumos.trace import read

EXAMPLES = Path(__file__).parents[2] / "examples"


def trace_of(calls, folder, steps=1):
    """The trace of calls, each step the same: one row after the other, those inside another one within it."""
    inside = [0] * len(calls)
    for number in range(len(calls) - 1, -1, -1):
        if calls[number].parent >= 0:
            inside[calls[number].parent] += inside[number] + 1
    events = []
    for step in range(steps):
        begin = 1000 * step * len(calls)
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 900 * len(calls)})
        for number, call in enumerate(calls):
            dims = [list(of[0]) if len(of) == 1 else [] for of in call.inputs]
            args = {"Input Dims": dims, "Input type": ["float" if d else "Scalar" for d in dims], "Concrete Inputs": list(call.values)}
            if call.sequence >= 0:
                args |= {"Sequence number": call.sequence, "Fwd thread id": int(not call.forward)}
            span = {"ts": begin + 10 * number, "dur": 10 * (inside[number] + 1) - 1}
            events.append({"ph": "X", "cat": "cpu_op", "name": call.name, **span, "args": args})
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [{"pid": 1, "tid": 1, **event} for event in events]}))
    return read(str(path)).traces[0]


def test_the_sizes_of_a_language_model_are_its_axes(tmp_path):
    model = Model()
    found = sizes(trace_of(language_model(model)[0], tmp_path))
    assert found == Sizes(2, 16, 10, 2, 2, 4, 12, 40)


def test_sizes_of_one_number_are_told_apart(tmp_path):
    """As many tokens as the model is wide, and as all queries of a token together, and as the vocabulary."""
    found = sizes(trace_of(language_model(Model(2, 5, 2, 5, 10, 12, 10))[0], tmp_path))
    assert found == Sizes(2, 5, 10, 2, 2, 5, 12, 10)


@pytest.mark.parametrize("changed", [{"batch": 6}, {"seq": 24}, {"hidden": 40}, {"inner": 30}])
def test_the_operators_of_a_changed_model_have_its_shapes(tmp_path, changed):
    model = Model()
    (tmp_path / "after").mkdir()
    trace, calls = trace_of(language_model(model)[0], tmp_path), language_model(model._replace(**changed))[0]
    ((key, value),) = changed.items()
    old = sizes(trace)
    change = Resized(trace, old, old._replace(**{{"batch": "micro_batch", "inner": "ffn"}.get(key, key): value}))
    for row, call in zip(axes_of(trace).program.rows.tolist(), calls, strict=True):
        if call.name in ("aten::addmm", "aten::mm", "aten::gelu") or "attention" in call.name:
            index = int(change.axes.of_row[row])
            assert change.operator(index).shapes == call.shapes


def test_each_of_two_stacks_of_layers_has_a_feed_forward_width(tmp_path):
    """As in an encoder and a decoder: both stacks are 10 wide and 12 inside, and nothing but the numbers says so."""
    script = Script(calls=list(language_model(Model())[0]))
    script.linear((3, 7, 10), 12)
    script.linear((3, 7, 12), 10)
    trace = trace_of(tuple(script.calls), tmp_path)
    named, symbols = named_axes(trace), axes_of(trace).inferred.symbols
    assert [symbols.size(axis) for axis in named["ffn"]] == [12, 12]
    assert len({symbols.key(axis) for axis in named["ffn"]}) == 2


def test_equal_steps_are_one_program(tmp_path):
    calls = language_model(Model())[0]
    trace = trace_of(calls, tmp_path, steps=3)
    axes = axes_of(trace)
    assert len(axes.program.calls) == len(calls)
    assert len(axes.program.copies[0]) == 2 * len(calls)
    assert (axes.of_row[trace.category == 0] >= 0).any() or (axes.of_row >= 0).sum() % 3 == 0


def test_a_model_of_pictures_has_a_batch_and_no_sequence(tmp_path):
    """Patches of a picture are as many as windows fit on it: another number of them is another picture."""
    script = Script()
    script.call("aten::conv2d", (4, 3, 32, 32), (16, 3, 8, 8), (16,), (), (), (), values=("", "", "", [8, 8], [0, 0], [1, 1]), node=True)
    script.call("aten::flatten", (4, 16, 4, 4), (), (), values=("", 2, -1), node=True)
    script.call("aten::transpose", (4, 16, 16), (), (), values=("", 1, 2), node=True)
    for _ in range(2):
        script.linear((4, 16, 16), 16)
    found = named_axes(trace_of(tuple(script.calls), tmp_path))
    assert "micro_batch" in found
    assert "seq" not in found


def test_without_shapes_no_size_has_a_name(tmp_path):
    script = Script()
    script.call("aten::add", (), ())
    assert sizes(trace_of(tuple(script.calls), tmp_path)) == Sizes()


def test_a_size_that_follows_from_a_picture_is_known_and_cannot_be_given(tmp_path):
    """A picture of 32 by 32 in patches of 16 by 16 is a sequence of four."""
    script = Script()
    patches = ([16, 16], [0, 0], [1, 1], "False", [0, 0], 1)
    script.call("aten::conv2d", (2, 3, 32, 32), (8, 3, 16, 16), (8,), (), (), (), values=("", "", "", *patches[:3]), node=True)
    script.call("aten::flatten", (2, 8, 2, 2), (), (), values=("", 2, -1), node=True)
    script.call("aten::transpose", (2, 8, 4), (), (), values=("", 1, 2), node=True)
    for _ in range(3):
        script.linear((2, 4, 8), 8)
        script.view((2, 4, 8), (2, 4, 2, 4))
        script.call("aten::transpose", (2, 4, 2, 4), (), (), values=("", 1, 2), node=True)
    script.call("aten::_scaled_dot_product_flash_attention", *[(2, 2, 4, 4)] * 3, node=True)
    trace = trace_of(tuple(script.calls), tmp_path)
    old = sizes(trace)
    assert (old.micro_batch, old.seq, old.heads) == (2, 4, 2)
    assert Resized(trace, old, old._replace(micro_batch=6)).operator(0).shapes[0] == (6, 3, 32, 32)
    with pytest.raises(LumosError, match="--set seq=9: the recorded 4 follow from other sizes, such as those of a picture"):
        Resized(trace, old, old._replace(seq=9))


def test_the_sizes_of_a_predicted_job_are_those_that_its_file_says(tmp_path):
    said = {"origin": "predicted", "sizes": {"seq": 64, "hidden": 32, "heads": "8", "other": 1, "vocab": -1}}
    row = {"ph": "X", "cat": "cpu_op", "name": "some::operator", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": {}}
    (tmp_path / "rank0.json").write_text(json.dumps({"lumos": said, "traceEvents": [row]}))
    trace = read(str(tmp_path / "rank0.json")).traces[0]
    assert sizes(trace) == Sizes(seq=64, hidden=32)


def test_what_is_as_long_as_a_changed_size_and_joined_to_none_may_be_it(tmp_path):
    """Another table is as wide as the model, and another one is not: whether the first would be wider, too, nothing shows."""
    model = Model()
    calls, _ = language_model(model)
    script = Script(calls=list(calls))
    apart = [script.call("some::mixing", (7, width), node=True) for width in (model.hidden, 9)]
    trace = trace_of(tuple(script.calls), tmp_path)
    old = sizes(trace)
    change = Resized(trace, old, old._replace(hidden=20))
    index = axes_of(trace).of_row[axes_of(trace).program.rows]
    assert [change.rightly_stays(int(index[number]), frozenset({(7, model.hidden), (7, 9)})) for number in apart] == [False, True]
    assert not change.rightly_stays(int(index[apart[1]]), frozenset())


def test_rows_that_a_script_counts_itself_follow_the_tokens_and_may_stay(tmp_path):
    """Three experts take seven tokens each, a number that the script worked out: nothing joins it to the batch or the sequence."""
    model = Model()
    calls, _ = language_model(model)
    script = Script(calls=list(calls), sequence=900)
    script.call("aten::relu", (3, 7, model.hidden), node=True)
    experts = script.call("aten::bmm", (3, 7, model.hidden), (3, model.hidden, 11), node=True)
    trace = trace_of(tuple(script.calls), tmp_path)
    old = sizes(trace)
    index = int(axes_of(trace).of_row[axes_of(trace).program.rows][experts])
    change = Resized(trace, old, old._replace(seq=2 * old.seq))
    assert change.operator(index).shapes[0] == (3, 14, model.hidden)
    assert change.staying is not None and change.staying.operator(index).shapes[0] == (3, 7, model.hidden)
    assert index in change.read_twice
    assert Resized(trace, old, old._replace(hidden=20)).staying is None


@pytest.mark.parametrize("name", ["gpt-2rank-cpu", *(f"foreign/{each}" for each in ("DLRM__tf32", "LSTM__tf32", "nn_Transformer__tf32"))])
def test_the_axes_of_a_recording_give_back_its_shapes(name):
    axes = axes_of(read(str(EXAMPLES / name)).traces[0])
    pairs = zip(axes.operators, axes.axes, strict=True)
    shapes = [each for o, several in pairs for each in zip(o.shapes, several, strict=True)]
    assert shapes and [shape for shape, of in shapes if shape != tuple(map(axes.symbols.size, of))] == []


def test_a_gate_beside_the_feed_forward_width_is_twice_that_width(tmp_path):
    """One matrix makes the width and its gate, and an operator takes the halves: the feed-forward width is that of one of them."""
    model = Model()
    script = Script(calls=list(language_model(model)[0][:1]))
    stream, inner = (model.batch, model.seq, model.hidden), (model.batch, model.seq, 12)
    for _ in range(2):
        script.linear(stream, 24)
        script.call("aten::chunk", (*inner[:2], 24), (), (), values=("", 2, -1), node=True)
        script.call("aten::silu", inner, node=True)
        script.linear(inner, model.hidden)
        script.call("aten::add", stream, stream, node=True)
    trace = trace_of(tuple(script.calls), tmp_path)
    assert sizes(trace).ffn == 12
    axes, change = axes_of(trace), Resized(trace, sizes(trace), sizes(trace)._replace(ffn=20))
    changed = {change.operator(i).shapes for i, o in enumerate(axes.operators) if o.name == "aten::addmm"}
    assert {((40,), (32, 10), (10, 40)), ((10,), (32, 20), (20, 10))} <= changed


def test_positions_of_what_the_script_makes_are_a_length_beside_those_of_its_data():
    m, script = Model(), Script()
    for length in (m.seq, m.seq // 2):
        if length != m.seq:
            script.call("aten::new_zeros", (m.batch, m.seq), (), values=("", [m.batch, length]))
        script.call("aten::embedding", (m.vocab, m.hidden), (m.batch, length), node=True)
        script.layer(m._replace(seq=length))
    axes = infer(script.calls)
    assert [axes.symbols.size(meant[0]) for meant in Names(axes, script.calls).meanings["seq"]] == [m.seq, m.seq // 2]
