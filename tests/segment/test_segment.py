"""Recorded jobs cut into blocks, and assembled from those blocks without a change."""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lumos.analyze.loop.steps import members, step_times
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.graph.build import build
from lumos.segment.outline import outline_of
from lumos.segment.pass_layers import phases_of_passes
from lumos.segment.segment import segment
from lumos.segment.units import Units, numbers_of_nodes, transfers, units
from lumos.simulation import simulate
from lumos.trace import read
from lumos.vocabulary import Phase

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu"
TRACES = os.environ.get("LUMOS_TRACES")
public = pytest.mark.skipif(TRACES is None, reason="LUMOS_TRACES is not set: the public traces are not here")


@cache
def cut(path):
    job = read(str(path))
    graph = build(job)
    return graph, segment(graph, job)


def test_the_recorded_gpt_has_four_layers_in_every_phase():
    _, found = cut(EXAMPLE)
    assert found.layers == 4
    assert found.confidence == 1.0
    assert (found.piece >= 0).all()
    rows = outline_of(found).rows
    named = [(r.phase, r.block, r.repeats) for r in rows]
    assert named == [
        ("forward", "embedding", 1),
        ("forward", "layer", 4),
        ("forward", "head", 1),
        ("backward", "head", 1),
        ("backward", "layer", 4),
        ("backward", "embedding", 1),
        ("optimizer", "optimizer", 1),
        ("optimizer", "layer", 4),
        ("optimizer", "optimizer", 1),
    ]


def test_backward_layers_run_from_last_to_first():
    _, found = cut(EXAMPLE)
    first = [p for p in found.pieces if p.rank == 0 and p.step == 0]
    order = [p.label.layer for p in first if p.label.phase == Phase.BACKWARD and p.label.layer >= 0]
    assert order == [3, 2, 1, 0]


def test_a_collective_of_the_backward_pass_belongs_to_the_layer_that_issued_it():
    graph, found = cut(EXAMPLE)
    collectives = graph.collectives.task
    assert {found.pieces[found.piece[t]].label.phase for t in collectives} == {Phase.BACKWARD}


def row(name, start, duration, number, thread=1):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration,
            "args": {"Sequence number": number} if number >= 0 else {}}  # fmt: skip


@pytest.mark.parametrize(
    ("inside", "number", "later", "phase"),
    [
        ("torch::autograd::CppNode<Lookup>", 7, 9, Phase.BACKWARD),
        ("aten::linear", 9, 6, Phase.RECOMPUTE),
        ("FlashAttnFunc", 9, 9, Phase.RECOMPUTE),
        ("NestedRedistribute", 9, 6, Phase.BACKWARD),
    ],
)
def test_an_operator_with_its_own_number_inside_a_node_is_recomputed_and_a_function_if_its_node_follows(
    tmp_path, inside, number, later, phase
):
    node = "autograd::engine::evaluate_function: torch::autograd::CppNode<Lookup>"
    after = "autograd::engine::evaluate_function: MmBackward0"
    rows = [row("aten::embedding", 0, 10, 7), row(node, 20, 30, 7, 2), row(inside, 25, 20, number, 2), row(after, 60, 10, later, 2)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = units(read(str(path)).traces[0])
    assert [int(p) for p in found.phase] == [Phase.FORWARD, phase, Phase.BACKWARD]


def test_of_two_that_have_the_same_number_the_later_one_is_recomputed(tmp_path):
    """Two nodes: the first calls a function that has the number which the second's recomputed function then takes."""
    node = "autograd::engine::evaluate_function: MulBackward0"
    rows = [row("aten::mul", 0, 10, 7), row("aten::mul", 10, 10, 8)]
    rows += [row(node, 20, 30, 8, 2), row("NestedRedistribute", 25, 20, 9, 2)]
    rows += [row(node, 60, 30, 7, 2), row("Attention", 65, 20, 9, 2)]
    rows += [row("autograd::engine::evaluate_function: AddmmBackward0", 100, 10, 9, 2)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = units(read(str(path)).traces[0])
    assert [int(p) for p in found.phase[2:]] == [Phase.BACKWARD, Phase.RECOMPUTE, Phase.BACKWARD]


def test_what_hooks_do_before_a_node_belongs_to_it(tmp_path):
    """The evaluation of a node has no number, and begins with a gather. The second evaluation holds no node that has one."""
    evaluation = "autograd::engine::evaluate_function: AddBackward0"
    rows = [row(evaluation, 20, 30, -1, 2), row("aten::empty", 22, 2, -1, 2), row("AddBackward0", 30, 10, 7, 2)]
    rows += [row(evaluation, 60, 10, -1, 2), row("aten::empty", 62, 2, -1, 2), row("MulBackward0", 80, 10, 9, 2)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    trace = read(str(path)).traces[0]
    nodes = np.array([0, 2, 3, 5, -1])  # rows are in order of time
    assert numbers_of_nodes(trace, nodes).tolist() == [7, 7, -1, 9, -1]


def test_two_layers_and_unlike_layers_are_read_with_less_confidence(tmp_path):
    names = ("aten::norm", "aten::attend", "aten::gelu") * 2
    convolutions = ("aten::conv2d", "aten::relu", "aten::conv2d", "aten::pool", "aten::linear", "aten::tanh")
    for file, operators, layers, confidence in (("two", names, 2, 0.5), ("unlike", convolutions, 3, 0.25)):
        path = tmp_path / f"{file}0.json"
        path.write_text(json.dumps({"traceEvents": [row(name, 10 * i, 10, i) for i, name in enumerate(operators)]}))
        found = cut(path)[1]
        assert (found.layers, found.confidence) == (layers, confidence)


def test_layers_must_cover_most_of_their_own_pass_not_of_the_whole_rank(tmp_path):
    """Two layers are 6 of the 14 operators of a forward pass and 60 of its 68 us, so they are its layers, however long the
    backward pass behind them is."""
    outside = [row(f"aten::once_{i}", i, 1, i) for i in range(8)]
    inside = [row(name, 10 + 10 * i, 10, 8 + i) for i, name in enumerate(("aten::norm", "aten::attend", "aten::gelu") * 2)]
    backward = row("autograd::engine::evaluate_function: AddBackward0", 100, 1000, 13, 2)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [*outside, *inside, backward]}))
    found = cut(path)[1]
    assert found.layers == 2
    assert found.evidence["forward"] == "repetition"


def test_what_ends_a_backward_pass_is_no_part_of_the_next_forward_pass():
    """Of two microbatches each hands out its gradients (8) behind its backward pass, in as many parts as the model has."""
    forward, backward, last = [1, 2, 1, 2], [5, 6, 5, 6], [8, 8, 8]
    one = [*zip(forward, [Phase.FORWARD] * 4, [0, 1, 2, 3], strict=True), *zip(backward, [Phase.BACKWARD] * 4, [3, 2, 1, 0], strict=True)]
    symbol, phase, number = map(np.array, zip(*one, *((8, Phase.FORWARD, -1) for _ in last), *one, strict=True))
    found = Units(symbol, symbol, np.full(len(symbol), -1), phase.astype(np.uint8), number, False)
    passes = phases_of_passes(found, np.zeros(len(symbol), np.int64), np.isin(symbol, (2, 5)))
    assert passes[8:12].tolist() == [Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.FORWARD]


def test_a_message_behind_a_backward_pass_belongs_to_none_of_its_layers(tmp_path):
    """Two layers of a stage between two others. Behind the gradients of the first layer the calling thread sends those of its input on."""
    forward = [row(name, 10 * i, 10, i) for i, name in enumerate(("aten::norm", "aten::attend", "aten::linear") * 2)]
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    backward = [row(node, 100 + 10 * i, 10, 5 - i, 2) for i in range(6)]
    after = [row("c10d::send", 170, 10, -1), row("aten::div_", 180, 10, -1), row(node, 200, 10, 5, 2)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [*forward, *backward, *after]}))
    labels = cut(path)[1].unit_labels[0][6:]
    assert [label.layer for label in labels] == [1, 1, 1, 0, 0, 0, -1, -1, 1]
    assert {label.phase for label in labels} == {Phase.BACKWARD}
    assert {label.part for label in labels[6:8]} == {"embedding"}


def test_what_begins_a_backward_pass_is_of_it_and_not_of_the_one_before(tmp_path):
    """Two microbatches of two layers. Each backward pass begins with a node that nothing links, of the loss divided by two."""
    rows = []
    for i in range(2):
        at, number = 400 * i, 10 * i
        for k, name in enumerate(("aten::norm", "aten::attend", "aten::linear") * 2):
            rows.append(row(name, at + 10 * k, 10, number + k))
        rows.append(row("autograd::engine::evaluate_function: DivBackward0", at + 100, 10, 90 + i, 2))
        rows += [row("autograd::engine::evaluate_function: AddmmBackward0", at + 110 + 10 * k, 10, number + 5 - k, 2) for k in range(6)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    labels = [label for label in cut(path)[1].unit_labels[0] if label.phase == Phase.BACKWARD]
    assert [(label.microbatch, label.layer) for label in labels] == [(m, layer) for m in (0, 1) for layer in (1, 1, 1, 1, 0, 0, 0)]


def test_a_pass_after_the_mark_of_a_step_is_one_more_microbatch_of_the_step(tmp_path):
    """Two steps of two forward and backward passes each. The mark of the first ends after its first two passes."""
    rows = []
    for step, length in ((1, 50), (2, 150)):
        at, number = 200 * step, 10 * step
        rows.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": length})
        for i in range(2):
            rows.append(row("aten::embedding", at + 60 * i, 10, number + i))
            rows.append(row("autograd::engine::evaluate_function: EmbeddingBackward0", at + 60 * i + 20, 20, number + i, 2))
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    pieces = cut(path)[1].pieces
    forward = [(p.step, p.label.microbatch) for p in pieces if p.label.phase == Phase.FORWARD]
    assert forward == [(0, 0), (0, 1), (1, 0), (1, 1)]


@public
@pytest.mark.parametrize(
    ("path", "layers"),
    [
        ("switch-moe-a100", 10),
        ("h100-inference/bert-small.json.gz", 4),
        ("h100-inference/qwen1.5-0.5b.json.gz", 24),
        ("h100-inference/vit-nsfw.json.gz", 12),
        ("vgg13-h100/kineto.json.gz", 13),
        ("resnet-ddp-a100", 54),
    ],
)
def test_layers_of_public_traces(path, layers):
    assert cut(Path(TRACES) / path)[1].layers == layers


@pytest.mark.parametrize(
    "path",
    [
        EXAMPLE,
        *(
            pytest.param(p, marks=public)
            for p in ("vgg13-h100/kineto.json.gz", "resnet-ddp-a100", "dlrm-8xv100", "resnet-2080ti/kineto.json.gz")
        ),
    ],
    ids=str,
)
def test_without_a_change_the_layout_assembles_to_the_measured_job(path):
    graph, found = cut(path if path == EXAMPLE else Path(TRACES) / path)
    placed = assemble_pieces(measured_layout(found))
    assert len(placed.graph) == len(graph)
    assert len(placed.graph.pred) == len(graph.pred)
    before, after = step_times(simulate(graph), members(graph)), step_times(simulate(placed.graph), placed.owners)
    assert [(t.name, t.length_ns, t.latency_ns) for t in before.ranks] == [(t.name, t.length_ns, t.latency_ns) for t in after.ranks]


@pytest.mark.parametrize(("width", "layers"), [(8, 4), (16, 2)])
def test_the_layers_inside_an_operator_of_recurrent_layers_are_its_own_operators(tmp_path, width, layers):
    """Four of them, the first of which reads 6 values a token. Where the others read twice what they hold, a layer has one for each
    direction."""
    rows = [row("aten::embedding", 0, 10, 0), row("aten::lstm", 10, 40, 1), row("aten::linear", 50, 10, 6)]
    for i in range(4):
        inner = row("aten::mkldnn_rnn_layer", 10 + 10 * i, 10, 2 + i)
        inputs = 6 if i < 4 // layers else width
        inner["args"]["Input Dims"] = [[5, 2, inputs], [32, inputs], [32, 8], [32], [32], [2, 8], [2, 8]]
        rows.append(inner)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = cut(path)[1]
    assert (found.layers, found.evidence["forward"]) == (layers, "recurrent operators")


def test_what_no_operator_launched_makes_none_a_transfer(tmp_path):
    """A message of the library's own thread has the number 0, as has an operator that the profiler gave none."""
    own = {"ph": "X", "pid": 1, "tid": 1, "dur": 10}
    rows = [{**own, "cat": "cpu_op", "name": f"aten::op{n}", "ts": 20 * n, "args": {"External id": n}} for n in (0, 1)]
    rows += [{**own, "cat": "kernel", "name": f"nccl{n}", "ts": 20 * n, "args": {"External id": n, "Dst Rank": 1}} for n in (0, 1)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows}))
    trace = read(str(tmp_path / "rank0.json")).traces[0]
    assert transfers(trace, np.array([0, 1])).tolist() == [False, True]
