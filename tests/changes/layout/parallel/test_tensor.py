"""Two ranks that share layers, embedding and head, drawn by hand: what becomes of what they gather when there are more of them, or one."""

import json

import pytest
from tests.changes import drawn_views

from lumos.changes.changes import Changes
from lumos.changes.layout.activations import gathered, in_embedding, of_head, of_stream
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.settings import parse_settings
from lumos.changes.structure import changed_layout
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.segment.sizes import Resized, sizes
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

#: Two sequences of 8 tokens, a stream 512 wide, 2 of 4 heads of 32, half of a feed-forward width of 2,048 and of 2,000 tokens.
TOKENS, PART = 16, 1000
QUERY, RESULTS = [2, 2, 8, 32], [2, 8, PART]
LAYERS = 3
SUM = {"Collective name": "allreduce", "In msg nelems": TOKENS * 512, "Out msg nelems": TOKENS * 512}
#: A sum of gradients over the other replica, of as many bytes as the stream.
GRADIENTS = SUM | {"Process Group Name": "2", "Process Group Ranks": "[0, 2]"}
GATHER = {"Collective name": "_allgather_base", "In msg nelems": TOKENS * PART, "Out msg nelems": 2 * TOKENS * PART}
GROUP = {"Group size": 2, "dtype": "BFloat16", "Process Group Name": "1", "Process Group Ranks": "[0, 1]"}
NODE = "autograd::engine::evaluate_function: MmBackward0"


def write_ranks(folder, events, world=2):
    for rank in range(2):
        text = {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
            "traceEvents": events,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(text))


def work():
    """The operators of a step: name, input shapes, sequence number, whether on the thread of the backward pass, facts of a collective."""
    yield "aten::embedding", [[PART, 512], [2, 8]], 1, False, {}
    yield "c10d::allreduce_", [], -1, False, SUM
    yield "aten::mul", [[2, 8, 512], [1]], 2, False, {}
    yield drawn_views.view([2, 8, 512], [TOKENS, 512])
    for layer in range(LAYERS):
        for i, (out, width) in enumerate(((192, 512), (0, 0), (512, 64), (1024, 512), (512, 1024))):
            shapes = [[TOKENS, width], [out, width]] if out else [QUERY] * 3
            yield "aten::linear" if out else "aten::_scaled_dot_product_flash_attention", shapes, 10 * (layer + 1) + i, False, {}
            if i < 2:
                yield from (drawn_views.out_of_heads if i else drawn_views.into_three)(2, 8, 2, 32)
            if i in (2, 4):
                yield "c10d::allreduce_", [], -1, False, SUM
                yield "aten::cat", [[2, 4, 512]] * 2, -1, False, {}
                yield drawn_views.added(TOKENS, 512)
    yield "aten::linear", [[TOKENS, 512], [PART, 512]], 99, False, {}
    yield drawn_views.view([TOKENS, PART], RESULTS)
    yield "c10d::allgather_", [], -1, False, GATHER
    yield "aten::cat", [RESULTS, RESULTS], 98, False, {}
    yield "aten::clone", [RESULTS], 98, True, {}
    yield "aten::mm", [[TOKENS, PART], [PART, 512]], 99, True, {}
    for layer in reversed(range(LAYERS)):
        for i, (out, width) in reversed(list(enumerate(((192, 512), (0, 0), (512, 64), (1024, 512), (512, 1024))))):
            shapes = [[TOKENS, out], [out, width]] if out else [QUERY] * 4
            yield "aten::mm" if out else "aten::_scaled_dot_product_flash_attention_backward", shapes, 10 * (layer + 1) + i, True, {}
            if i == 3:  # again what the forward pass did
                yield "aten::linear", [[TOKENS, width], [out, width]], -1, True, {}
            if i in (0, 3):
                yield "c10d::allreduce_", [], 10 * (layer + 1) + i, True, SUM
    yield "c10d::allreduce_", [], 10, True, GRADIENTS
    yield "aten::add_", [[PART, 512]], -1, False, {}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The step, each kernel of which takes 100 µs on one stream, as a layout, with its job and graph."""
    folder, events, at = tmp_path_factory.mktemp("shared"), [], 1000
    for i, ((name, dims, number, behind, facts), views) in enumerate(drawn_views.apart(work()), 1):
        at, ids, thread = 1000 + 20 * i, {"External id": i}, 2 if behind else 1
        shown = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)} if dims else {}
        numbered = {"Sequence number": number} if number >= 0 and not behind else {}
        inside = {**GROUP, **facts} if facts else {}
        kernel = f"ncclDevKernel_{'AllGather' if facts is GATHER else 'AllReduce_Sum_bf16'}_RING_LL" if facts else f"kernel of {name}"
        rows = [("cpu_op", NODE, thread, at - 1, 14, {"External id": 1000 + i, "Sequence number": number})] if behind else []
        rows += [
            ("cpu_op", name, thread, at, 10, {**ids, **shown, **numbered}),
            ("cuda_runtime", "cudaLaunchKernel", thread, at + 1, 3, {**ids, "correlation": i}),
            ("kernel", kernel, 7, 900 + 100 * i, 100, {**ids, **inside, "correlation": i, "device": 0, "stream": 7}),
        ]
        for cat, event, tid, start, length, args in rows:
            events.append({"ph": "X", "cat": cat, "name": event, "pid": tid // 7, "tid": tid, "ts": start, "dur": length, "args": args})
        events += drawn_views.events(views, at + 11)
    events.append({"ph": "X", "cat": "user_annotation", "pid": 0, "tid": 1, "name": "Optimizer.step#SGD.step", "ts": at - 1, "dur": 15})
    write_ranks(folder, events)
    job = read(str(folder))
    graph = build(job)
    return measured_layout(segment(graph, job)), job, graph


def factors(shared, *words):
    """By what the gather, its kernel that puts it in order, and that which takes a part of its gradient are multiplied."""
    layout, job, graph = shared
    changed = changed_layout(layout, job, Changes(parse_settings(words)))
    names = [graph.names[i] for i in graph.name.tolist()]
    kernels = "ncclDevKernel_AllGather_RING_LL", "kernel of aten::cat", "kernel of aten::clone"
    return tuple({float(changed.prices.best[i]) for i, name in enumerate(names) if name == kernel} for kernel in kernels)


def test_exchanges_of_the_stream_are_told_from_those_of_results_and_gradients(shared):
    """What replicas sum in the backward pass is no activation, though as large: no forward pass has it in that group."""
    layout, job, graph = shared
    head, stream = of_head(layout, job), of_stream(layout, job)
    assert graph.collectives.nbytes[head].tolist() == [2 * TOKENS * PART] * 2
    assert set(head.tolist()) < set(stream.tolist())
    assert len(stream) == 2 * (1 + 4 * LAYERS + 1)
    assert in_embedding(layout, stream)


def test_a_gather_of_results_is_none_of_weights_with_as_many_bytes(shared):
    layout, job, _ = shared
    assert not len(gathered(layout, 0, {0: 2 * TOKENS * PART}, of_stream(layout, job)))


def test_a_weight_that_is_read_again_is_the_one_that_is_joined_to_the_sizes(shared):
    trace = shared[1].traces[0]
    old = sizes(trace)
    assert Resized(trace, old, old._replace(ffn=2 * old.ffn)).of_weights((512, 1024)) == 2


def test_one_rank_alone_gathers_nothing_and_puts_nothing_in_order(shared):
    assert factors(shared, "tp=1") == ({0.0}, {0.0}, {0.0})


def test_more_ranks_gather_as_many_results_of_smaller_parts(shared):
    """Each of four has half of what each of two had; all of it together is as much."""
    whole, h100 = 2 * 2 * TOKENS * PART, load_cluster("h100")
    times = [int(collective(CollectiveKind.ALL_GATHER, ranks, whole, h100).time) for ranks in (2, 4)]
    gather, ordered, (part,) = factors(shared, "tp=4")
    assert gather == {times[1] / times[0]}
    assert ordered == {1.0}
    assert part < 1


@pytest.mark.parametrize(("word", "ratio"), [("seq=16", 2), ("vocab=8000", 4), ("hidden=1024", 1)])
def test_what_is_gathered_follows_tokens_and_vocabulary(shared, word, ratio):
    whole, h100 = 2 * 2 * TOKENS * PART, load_cluster("h100")
    times = [int(collective(CollectiveKind.ALL_GATHER, 2, by * whole, h100).time) for by in (1, ratio)]
    assert factors(shared, word)[0] == {times[1] / times[0]}
