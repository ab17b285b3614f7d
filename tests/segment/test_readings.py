"""What a name can mean in a recording, from drawn rows: two lengths, tables beside each other, steps of a loop over time."""

import pytest
from tests.drawn_rank import DrawnRank

from lumos.changes.changes import Changes
from lumos.changes.settings import parse_base, parse_settings
from lumos.changes.stated import SEVERAL_AXES
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, QuestionError
from lumos.graph.build import build
from lumos.segment.program import axes_of
from lumos.segment.rank import recordings_of
from lumos.segment.readings import reading_of_layers, readings_of_sizes
from lumos.segment.segment import segment
from lumos.segment.sizes import computed_rows
from lumos.trace import read

NODE = "autograd::engine::evaluate_function: "
GATHER = "torch::autograd::AccumulateGrad"
ATTENTION = "aten::_scaled_dot_product_flash_attention"


def recording(folder, *operators):
    """Operators of 10 us (name, shapes, sequence number), each with a kernel of 100 us."""
    rank = DrawnRank()
    for i, (name, dims, number) in enumerate(operators, 1):
        at, thread = 1000 + 20 * i, 2 if name.startswith((NODE, GATHER)) else 1
        known = {"Input Dims": dims, "Input type": ["float"] * len(dims)} if dims else {}
        known |= {"Sequence number": number, "Fwd thread id": thread - 1} if number >= 0 else {}
        rank.launching(name, at, 10, (f"kernel of {name}", 929 + 100 * i, 100), thread, **known)
    job = read(str(rank.write(folder / "rank0.json", deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])))
    return job, build(job)


def heads(length):
    return [2, 4, length, 64]


def within(shape):
    """Attention of one tensor with itself."""
    return ("aten::relu", [shape], -1), (ATTENTION, [shape] * 3, -1)


def two_lengths(folder):
    """Attention within 48 positions, and within 32."""
    return recording(folder, *within(heads(48)), *within(heads(32)))


def ask(found, *words, base=()):
    return answer_changes(*found, Changes(parse_settings(words), base=parse_base(base)), force=True)


def test_a_sequence_of_two_lengths_is_a_question_and_a_statement_settles_it(tmp_path):
    found = two_lengths(tmp_path)
    with pytest.raises(QuestionError, match=r"seq can be 48@attention\.0 .* or 32@attention\.0") as asked:
        ask(found, "seq=96")
    assert [(each.name, each.value) for each in asked.value.candidates] == [("48@attention.0", 48), ("32@attention.0", 32)]
    assert asked.value.candidates[1].operators[0] == f"{ATTENTION} [2, 4, 32, 64] [2, 4, 32, 64] [2, 4, 32, 64]"
    longer, shorter = (ask(found, f"seq={2 * n}", base=[f"seq={n}"]).outcome.step_time_s for n in (48, 32))
    assert longer != shorter and min(longer, shorter) > ask(found, "seq=32", base=["seq=32"]).outcome.step_time_s
    assert ask(found, "seq=x2", base=["seq=48@attention.0"]).outcome.step_time_s == longer
    assert ask(found, "48@attention.0=96").outcome.step_time_s == longer


def test_each_reading_at_its_recorded_value_is_the_identity(tmp_path):
    found = two_lengths(tmp_path)
    for size in (48, 32):
        answer = ask(found, f"seq={size}", base=[f"seq={size}"])
        assert answer.outcome == answer.base


def test_a_statement_that_contradicts_the_recording_is_refused_with_both(tmp_path):
    found = two_lengths(tmp_path)
    with pytest.raises(LumosError, match=r"--base seq=40: the recording shows seq as 48@attention\.0 .*32@attention\.0"):
        ask(found, "seq=96", base=["seq=40"])
    with pytest.raises(LumosError, match="--base heads=8: the recording shows heads 4;"):
        ask(found, "heads=8", base=["heads=8"])
    with pytest.raises(LumosError, match=r"no axis of that name; it has .*48@attention\.0"):
        ask(found, "50@attention.0=96")


def test_a_bare_number_of_two_axes_is_a_question_and_names_join(tmp_path):
    crossed = recording(tmp_path, *two_of_one_length())
    names = [reading.name for reading in readings_of_sizes(crossed[0].traces[0])["seq"]]
    assert names == ["48@attention.0", "48@attention.1"]
    with pytest.raises(QuestionError, match="2 axes are 48 long"):
        ask(crossed, "seq=96", base=["seq=48"])
    one, other, both = (
        ask(crossed, "seq=96", base=[f"seq={name}"]).outcome.step_time_s for name in (*names, SEVERAL_AXES.join(names))
    )
    assert both > max(one, other)


def two_of_one_length():
    """Two attentions within 48 positions each that nothing joins: one has other heads."""
    yield from within(heads(48))
    yield from within([2, 8, 48, 32])


def test_queries_and_keys_that_nothing_joins_are_two_readings_whatever_their_number(tmp_path):
    job, _ = recording(tmp_path, (ATTENTION, [heads(48)] * 3, -1))
    assert [reading.name for reading in readings_of_sizes(job.traces[0])["seq"]] == ["48@attention.0", "48@attention.1"]


def test_rows_that_a_script_works_out_are_those_that_its_weights_multiply_and_what_it_chooses_of_them(tmp_path):
    """192 rows reach four experts, whose weights are stored the other way round; 160 of the results are chosen by their numbers."""
    stored = [4, 128, 64]
    layer = [("aten::transpose", [stored], 7), ("aten::_grouped_mm", [[192, 64], [4, 64, 128], [4]], 8)]
    chosen = [("aten::remainder", [[160]], -1), ("aten::index", [[192, 128], []], -1), ("aten::relu", [[160, 128]], -1)]
    undone = [(NODE + "TransposeBackward0", [], 7), (GATHER, [stored], -1)]
    job, _ = recording(tmp_path, *within(heads(48)), *layer, ("aten::relu", [[192, 128]], -1), *chosen, *undone)
    rows = computed_rows(job.traces[0])
    assert sorted(axes_of(job.traces[0]).symbols.value[symbol] for symbol in rows) == [160, 192]


def tables(folder, count=6):
    """Tables beside each other, each read by numbers of its own, under two layers that all of them feed."""
    look_ups = [("aten::embedding", [[1000, 64], [256]], 10 + i) for i in range(count)]
    return recording(folder, *look_ups, ("aten::cat", [[]], -1), ("aten::linear", [[256, 64 * count], [8, 64 * count], [8]], 40))


def test_tables_beside_each_other_are_no_layers_until_the_user_says_so(tmp_path):
    found = tables(tmp_path)
    with pytest.raises(QuestionError, match="repeats 6 times in a forward pass may be no layers, since none of them reads") as asked:
        ask(found, "layers=12")
    (only,) = asked.value.candidates
    assert (only.name, only.value) == ("6@embedding.0", 6) and only.operators[0] == "aten::embedding [1000, 64] [256]"
    assert ask(found, "layers=12", base=["layers=6"]) == ask(found, "layers=x2", base=["layers=6@embedding.0"])
    with pytest.raises(LumosError, match="--base layers=5: the recording shows layers 6"):
        ask(found, "layers=12", base=["layers=5"])


def stack(folder, *, shared):
    """Four linear layers one after the other, which gather the gradients of their weights in the backward pass: of each, or of one."""
    forward = [("aten::linear", [[16, 64], [64, 64], [64]], 10 + i) for i in range(4)]
    backward = []
    for i in reversed(range(4)):
        backward.append((NODE + "AddmmBackward0", [], 10 + i))
        backward += [(GATHER, [[64, 64]], -1)] if i == 0 or not shared else []
    return recording(folder, *forward, *backward)


@pytest.mark.parametrize("shared", [False, True])
def test_parts_that_share_their_weights_may_be_steps_of_time(tmp_path, shared):
    job, graph = stack(tmp_path, shared=shared)
    reading = reading_of_layers(recordings_of(segment(graph, job), job)[0])
    assert reading is not None and reading.value == 4
    assert reading.why == ("they all multiply by the same weights" if shared else "")


def test_words_of_a_statement_are_checked():
    assert parse_base(["micro-batch=4", "seq=48@attention.0 + 32@mm.1"]) == {"micro_batch": "4", "seq": "48@attention.0+32@mm.1"}
    for word in ("seq", "seq=", "seq=x2", "precision=bf16", "seq=1@Attention"):
        with pytest.raises(LumosError, match=r"--base .*write KEY=NUMBER"):
            parse_base([word])
    with pytest.raises(LumosError, match="given twice"):
        parse_base(["seq=1", "seq=2"])


def test_a_sequence_without_an_axis_is_the_loop_over_time(tmp_path):
    found = stack(tmp_path, shared=True)
    answer = ask(found, "seq=8")
    assert answer.changes == ("seq = 8 (measured: 4)",)
    assert answer.outcome == ask(found, "layers=8", base=["layers=4"]).outcome != answer.base
    assert ask(found, "seq=4").outcome == answer.base
    with pytest.raises(LumosError, match=r"(does|do) not show"):
        ask(stack(tmp_path, shared=False), "seq=8")


def test_the_batch_of_data_with_two_leading_axes_is_a_question(tmp_path):
    found = recording(tmp_path, ("aten::linear", [[240, 160, 512], [512, 512], [512]], -1))
    with pytest.raises(QuestionError, match=r"micro_batch can be 240@linear\.0 .* or 160@linear\.0"):
        ask(found, "micro_batch=320")
    assert ask(found, "micro_batch=320", base=["micro_batch=160"]).changes == ("micro_batch = 320 (measured: 160)",)


def test_two_widths_that_matrices_lead_into_and_out_of_are_a_question(tmp_path):
    """A part of a low rank beside the feed-forward part."""
    stream = [[32, 64]]
    pairs = [("aten::linear", [[32, a], [b, a], [b]], -1) for inner in (8, 256) for a, b in ((64, inner), (inner, 64))]
    added = ("aten::add", [*stream, *stream, []], -1)
    found = recording(tmp_path, *pairs[:2], added, *pairs[2:], added, *pairs[:2], added, *pairs[2:], added)
    with pytest.raises(QuestionError, match=r"ffn can be (8@linear\.\d .* or 256@linear\.\d|256@linear\.\d .* or 8@linear\.\d)"):
        ask(found, "ffn=512")
