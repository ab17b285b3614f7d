"""Layers in the manner of DeepSeek, with narrow projections before the attention, shared by ranks that the recording does not have."""


import numpy as np
import pytest
from tests.changes import drawn_views
from tests.drawn_rank import DrawnRank
from tests.graph_contract import check_graph

from lumos.changes.changes import Changes
from lumos.changes.hardware import network
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.layout.placed import Launching, add_work
from lumos.changes.layout.rates import rates_of
from lumos.changes.layout.regroup import Links
from lumos.changes.settings import parse_base, parse_settings
from lumos.changes.structure import changed_layout
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

#: Two sequences of 8 tokens, a stream 512 wide, 4 heads of 32, narrow projections of 96 and 64, a feed-forward width of 1024.
TOKENS = 16
QUERY = [2, 4, 8, 32]
LAYER = [
    ("q_a", 96, 512),
    ("q_b", 128, 96),
    ("kv_a", 64, 512),
    ("kv_b", 256, 64),
    None,
    ("o", 512, 128),
    ("up", 1024, 512),
    ("down", 512, 1024),
]
LAYERS = 3
NODE = "autograd::engine::evaluate_function: MmBackward0"


def work(vocabulary=0, tables=0, head=True, adds=(), loss=False, shards=False):
    """The operators of a step: name, input shapes, sequence number, whether on the thread of the backward pass. vocabulary: of an embedding
    and a head, with a table for both or one each. head: whether there is one. adds: shapes of gradients that autograd adds to earlier
    ones, after the backward pass of every `up`. loss: whether one is computed of the head's result. shards: whether replicas share their
    states."""
    if shards:
        yield "fsdp::all_gather_copy_in", [[512]], -1, False
    if vocabulary:
        yield "aten::embedding", [[vocabulary, 512], [2, 8]], 1, False
        yield drawn_views.view([2, 8, 512], [TOKENS, 512])
        yield from work()
        if head:
            yield "aten::linear", [[TOKENS, 512], [vocabulary, 512]], 99, False
            if loss:
                yield "aten::_log_softmax", [[TOKENS, vocabulary], [], []], 100, False
            yield "aten::mm", [[TOKENS, vocabulary], [vocabulary, 512]], 99, True
        for _ in range(tables):
            yield "torch::autograd::AccumulateGrad", [[vocabulary, 512]], 1, True
        return
    forward = [(each, i) for i, each in enumerate(LAYER * LAYERS, 10)]
    for each, number in forward:
        if each is None:
            yield "aten::_scaled_dot_product_flash_attention", [QUERY] * 3, number, False
            yield from drawn_views.out_of_heads(2, 8, 4, 32)
        else:
            yield "aten::linear", [[TOKENS, each[2]], [each[1], each[2]]], number, False
        if each and each[0] in ("q_b", "kv_b"):
            yield from drawn_views.into_heads(2, 8, 4, 32, parts=1 if each[0] == "q_b" else 2)
        elif each and each[0] in ("o", "down"):
            yield drawn_views.added(TOKENS, 512)
    for each, number in reversed(forward):
        if each is None:
            yield "aten::_scaled_dot_product_flash_attention_backward", [QUERY] * 4, number, True
        else:
            yield "aten::mm", [[TOKENS, each[1]], [each[1], each[2]]], number, True
        for shape in adds if each and each[0] == "up" else ():
            yield "aten::add_", [shape, shape], number, True
    yield "aten::add_", [[512, 512]], -1, False


def recorded(tmp_path, **outside):
    """The step, each kernel of which takes 100 µs on one stream."""
    rank, at = DrawnRank(), 1000
    for i, ((name, dims, number, behind), views) in enumerate(drawn_views.apart(work(**outside)), 1):
        at, thread = 1000 + 20 * i, 2 if behind else 1
        shown = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
        numbered = {"Sequence number": number} if number >= 0 and not behind else {}
        if behind:
            rank.operator(NODE, at - 1, 14, thread, **{"Sequence number": number})
        if name == "aten::add_" and behind:
            rank.operator("torch::autograd::AccumulateGrad", at - 0.5, 12, thread, **shown)
        rank.launching(name, at, 10, (f"kernel of {name}", 900 + 100 * i, 100), thread, **shown, **numbered)
        rank.rows += [{**row, "pid": 1} for row in drawn_views.events(views, at + 11)]
    rank.range("Optimizer.step#SGD.step", at - 1, 15)
    job = read(str(rank.write(tmp_path / "rank0.json", deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])))
    return job, build(job)


def test_every_layer_sums_the_stream_after_attention_and_feed_forward_in_both_passes(tmp_path):
    job, graph = recorded(tmp_path)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    attends = [i for i, name in enumerate(graph.name.tolist()) if graph.names[name].startswith("kernel of aten::_scaled_dot")]
    assert (layout.prices.best[attends] < 1).all()  # also where nothing joins the heads of one layer to those of another
    placed = assemble_pieces(layout)
    found = [addition for assumed in layout.assumed for addition in assumed(placed)]
    order = [(placed.source[a.after[0]] - placed.source[found[0].after[0]]) for a in found]
    assert len(found) == 4 * LAYERS
    assert order == sorted(order)
    stream = int(collective(CollectiveKind.ALL_REDUCE, 2, TOKENS * 512 * 2, load_cluster("h100")).time)
    assert {a.times.best for a in found} == {stream}
    check_graph(add_work(placed, found).graph)
    launched = add_work(placed, found, [Launching(1000.0, 8000.0)])  # ns of the CPU, for an operator and for calling an exchange
    before, after = (p.graph.duration[: len(placed.source)] for p in (placed, launched))
    assert sorted(after[before != after] - before[before != after]) == [8000] * len(found)
    assert not placed.graph.on_device[before != after].any()


def test_work_that_is_added_later_has_streams_of_its_own(tmp_path):
    """Else what was added first would be on one stream with it, and in order, in files of the job."""
    job, graph = recorded(tmp_path)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    placed = assemble_pieces(layout)
    found = [addition for assumed in layout.assumed for addition in assumed(placed)]
    twice = add_work(add_work(placed, found), [addition._replace(lane="later") for addition in found])
    streams = [p.stream for p in twice.graph.processors if p.is_stream]
    assert len(streams) > 2
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize(
    ("hardware", "link"), [({"network": ("bandwidth=x0.01",)}, "bandwidth=x0.01"), ({"cluster": "a100-80gb", "host_factor": 1.0}, "")]
)
def test_the_sums_cross_the_links_that_the_changed_job_is_to_have(tmp_path, hardware, link):
    job, graph = recorded(tmp_path)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"]), **hardware))
    cluster = network(load_cluster("h100"), [link]) if link else load_cluster("a100-80gb")
    stream = int(collective(CollectiveKind.ALL_REDUCE, 2, TOKENS * 512 * 2, cluster).time)
    placed = assemble_pieces(layout)
    assert {addition.times.best for assumed in layout.assumed for addition in assumed(placed)} == {stream}


def test_utilization_is_of_the_device_and_the_type_that_the_job_is_to_use(tmp_path):
    job, graph = recorded(tmp_path)
    answer = answer_changes(job, graph, Changes(parse_settings(["precision=fp32"]), cluster="a100-80gb", host_factor=1.0), force=True)
    base, outcome = answer.base, answer.outcome
    peaks = load_cluster("h100").accelerator.peak_flops["bf16"], load_cluster("a100-80gb").accelerator.peak_flops["fp32"]
    done = [each.model_flops_utilization * peak * each.step_time_s for each, peak in zip((base, outcome), peaks, strict=True)]
    assert done[0] == pytest.approx(done[1])  # the same work
    weights = sum(out * width for _, out, width in (each for each in LAYER if each)) * LAYERS
    assert done[0] == pytest.approx(TOKENS * (6 * weights + 6 * LAYERS * 8 * 4 * 32))


def test_what_some_plans_leave_whole_widens_the_interval(tmp_path):
    job, graph = recorded(tmp_path)
    answer = answer_changes(job, graph, Changes(parse_settings(["tp=2"])), force=True)
    outcome = answer.outcome
    narrow = 4 * LAYERS * 100e-6  # two narrow projections of a layer, forward and backward
    assert outcome.step_time_s < answer.base.step_time_s
    assert outcome.step_time_high_s - outcome.step_time_s > 0.1 * narrow


@pytest.mark.parametrize(
    ("framework", "shards", "calls", "loss"),
    [
        ("megatron-core", False, (1, 1, 1), (0.5, 0.5, 0.5)),  # its ranks call what one rank does, and share the loss
        ("fsdp2", False, (1.45, 1.3, 1.6), (1, 0.5, 1)),  # PyTorch's dispatch every operator again, and may share the loss
        (None, True, (1.45, 1, 1.6), (1, 0.5, 1)),  # where PyTorch shares the states, it would share the layers
        (None, False, (1, 1, 1.6), (1, 0.5, 1)),
    ],
)
def test_a_framework_that_is_stated_narrows_how_ranks_share_layers(tmp_path, framework, shards, calls, loss):
    job, graph = recorded(tmp_path, vocabulary=1000, tables=2, loss=True, shards=shards)
    base = parse_base([f"framework={framework}"] if framework else [])
    measured = measured_layout(segment(graph, job))
    layout = changed_layout(measured, job, Changes(parse_settings(["tp=2"]), base=base))
    called = np.flatnonzero((measured.segmentation.layer >= 0) & ~graph.on_device)[0]
    scored = [i for i, name in enumerate(graph.name.tolist()) if graph.names[name] == "kernel of aten::_log_softmax"]
    for task, wanted in ((called, calls), *((task, loss) for task in scored)):
        assert tuple(column[task] for column in layout.prices.columns) == pytest.approx(wanted)
    (note,) = (note.message for note in layout.diagnostics if note.code == "split-assumed")
    assert ("--base framework=NAME" in note) is not bool(framework)


@pytest.mark.parametrize(
    ("vocabulary", "tables", "shared"),
    [(1000, 2, True), (1000, 1, False), (1280, 1, True), (1001, 2, False)],  # 1280 is padded to 128 for each of two ranks
)
def test_a_table_that_embedding_and_head_have_in_common_stays_whole(tmp_path, vocabulary, tables, shared):
    job, graph = recorded(tmp_path, vocabulary=vocabulary, tables=tables)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    names = [graph.names[i] for i in graph.name.tolist()]
    head = [i for i, name in enumerate(names) if name == "kernel of aten::linear"][-1]
    assert bool(layout.prices.best[head] < 1) is shared
    assert bool(layout.prices.low[head] < 1) is (vocabulary != 1001)  # odd ones cannot be shared at all


def outside_layers(found, layout, placed):
    """The times of the additions that do not follow work of a layer, in their order."""
    segmentation = layout.segmentation
    layer = [segmentation.pieces[segmentation.piece[placed.source[a.after[0]]]].label.layer for a in found]
    return [a.times.best for a, each in zip(found, layer, strict=True) if each < 0]


def test_ranks_that_share_the_vocabulary_sum_what_they_look_up_and_gather_results_in_order(tmp_path):
    """The sum after the embedding, the gather of the head's results with a copy that puts them in order, and in the backward pass a copy of
    a rank's part of their gradient and the sum of the stream's."""
    job, graph = recorded(tmp_path, vocabulary=1000, tables=2)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    placed = assemble_pieces(layout)
    found = [addition for assumed in layout.assumed for addition in assumed(placed)]
    h100, results = load_cluster("h100"), TOKENS * 1000 * 2
    stream, gather = (
        int(collective(kind, 2, nbytes, h100).time)
        for kind, nbytes in ((CollectiveKind.ALL_REDUCE, TOKENS * 512 * 2), (CollectiveKind.ALL_GATHER, results))
    )
    rates = rates_of(segment(graph, job), job, Links(h100, h100), stated=True)
    copies = [rates.copy(nbytes).best for nbytes in (results, results // 2)]
    assert outside_layers(found, layout, placed) == [stream, gather + copies[0], stream + copies[1]]


def test_a_stage_with_an_embedding_alone_shares_its_table(tmp_path):
    """The only gradient of the table's shape is the embedding's own, not one that it has in common with a head."""
    job, graph = recorded(tmp_path, vocabulary=1000, tables=1, head=False)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    placed = assemble_pieces(layout)
    found = [addition for assumed in layout.assumed for addition in assumed(placed)]
    assert len(outside_layers(found, layout, placed)) == 1


def test_autograd_adds_the_gradients_of_a_ranks_part(tmp_path):
    """Of a narrow matrix no size of the model shows that ranks share it; a vector for the whole stream each of them has."""
    job, graph = recorded(tmp_path, adds=([64, 512], [512]))
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    added = [i for i, name in enumerate(graph.name.tolist()) if graph.names[name] == "kernel of aten::add_"]
    assert layout.prices.best[added].tolist() == [0.5, 1.0] * LAYERS + [0.5]


@pytest.mark.parametrize(("vocabulary", "low"), [(1000, 0.5), (1001, 1)])
def test_ranks_may_compute_the_loss_from_parts_of_the_vocabulary(tmp_path, vocabulary, low):
    job, graph = recorded(tmp_path, vocabulary=vocabulary, tables=2, loss=True)
    layout = changed_layout(measured_layout(segment(graph, job)), job, Changes(parse_settings(["tp=2"])))
    (loss,) = (i for i, name in enumerate(graph.name.tolist()) if graph.names[name] == "kernel of aten::_log_softmax")
    assert (layout.prices.best[loss], layout.prices.low[loss], layout.prices.high[loss]) == (1, low, 1)


def test_heads_that_ranks_cannot_share_are_refused(tmp_path):
    job, graph = recorded(tmp_path)
    with pytest.raises(LumosError, match="the 4 heads of the model cannot be shared equally by 3 ranks"):
        answer_changes(job, graph, Changes(parse_settings(["tp=3"])), force=True)
