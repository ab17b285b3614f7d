"""Jobs recorded with ranks that share sequences, for more or fewer of them: by what the time of each kind of work is multiplied."""

import json
from collections import Counter

import numpy as np
import pytest
from tests.changes import drawn_views

from lumos.analyze.flops import counted_operators
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.parallel.context import context_parallel, sequence_ranks, to_all_keys
from lumos.changes.layout.rates import Rates
from lumos.changes.layout.regroup import Links, reexchange
from lumos.changes.layout.reprice import reprice
from lumos.changes.layout.rescale import Devices
from lumos.changes.layout.reshaped import reshaped
from lumos.cost.attention_model import attention
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import moved
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind, Direction

A100 = load_cluster("a100-40gb")
RATES = Rates(A100.accelerator, A100, {}, None, stated=True)
#: Tokens of the sequence, heads, width of a head, and width of the model; layers.
SEQ, HEADS, WIDTH, LAYERS = 4096, 6, 64, 3
HIDDEN = HEADS * WIDTH
FORWARD, BACKWARD = "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward"


def layer(ranks):
    """The kernels of a layer in both passes: name, us, shapes, type, facts of a collective. A rank projects its part of the sequence,
    gathers keys and values, attends to its own and, with half of its queries, to those of each other rank, merges every further part, and
    projects again; in the backward pass every part adds to gradients, which go on to the next rank. Projections take what they are modelled
    to."""
    part = SEQ // ranks
    whole, half, tokens = [1, HEADS, part, WIDTH], [1, HEADS, part // 2, WIDTH], [part, HIDDEN]
    keys = 2 * part * HIDDEN  # elements of keys and values
    sides = (1, 1), (3, 1), (1, 3)
    one, three, undone = (int(gemm(part, n * HIDDEN, k * HIDDEN, A100.accelerator, "bf16").time) / 1000 for n, k in sides)
    forward = [("aten::mm", three, [tokens, [HIDDEN, 3 * HIDDEN]], "c10::BFloat16", {})]
    forward += drawn_views.into_three(1, part, HEADS, WIDTH)
    forward.append(("gather", 100, [], "c10::BFloat16", facts("_allgather_base", keys, keys * ranks, "BFloat16", ranks)))
    forward.append((FORWARD, 400, [whole] * 3, "c10::BFloat16", {}))
    forward.append(drawn_views.halves(whole))
    for _ in range(ranks - 1):
        forward += [(FORWARD, 400, [half, whole, whole], "c10::BFloat16", {}), ("aten::sub", 8, [whole, whole], "float", {})]
    forward += drawn_views.out_of_heads(1, part, HEADS, WIDTH)
    forward.append(("aten::mm", one, [tokens, [HIDDEN, HIDDEN]], "c10::BFloat16", {}))
    forward.append(drawn_views.added(part, HIDDEN))
    backward = [("aten::mm", one, [tokens, [HIDDEN, HIDDEN]], "c10::BFloat16", {})]
    for _ in range(ranks):
        backward += [(BACKWARD, 900, [whole] * 5, "c10::BFloat16", {}), ("aten::add_", 8, [whole, whole], "float", {})]
        backward.append(("ring", 150, [], "float", facts("all_to_allv", keys, keys, "Float", ranks)))
    backward.append(("aten::mm", undone, [[part, 3 * HIDDEN], [3 * HIDDEN, HIDDEN]], "c10::BFloat16", {}))
    return forward, backward


def numbered(forward, backward, of_layer):
    """The rows of a layer in both passes with autograd's numbers: a product and what it undoes have the same, and so has attention."""
    first = 100 * (of_layer + 1)
    number = {("aten::mm", 0): first, (FORWARD, 0): first + 1, ("aten::mm", 1): first + 2}
    undone = {("aten::mm", 0): first + 2, (BACKWARD, 0): first + 1, ("aten::mm", 1): first}
    for rows, numbers in ((forward, number), (backward, undone)):
        seen = Counter()
        out = []
        for row in rows:
            out.append(row if isinstance(row, drawn_views.View) else (row, numbers.get((row[0], seen[row[0]]), first + 1)))
            seen[row[0]] += 1
        yield out


def facts(name, sent, received, dtype, ranks):
    group = {"Group size": ranks, "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks)))}
    return {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "dtype": dtype, **group}


def recorded(folder, ranks):
    """A step of the forward and the backward passes over all layers, on one stream."""
    forward, backward = layer(ranks)
    layers = [tuple(numbered(forward, backward, i)) for i in range(LAYERS)]
    table = ("aten::embedding", 50, [[32000, HIDDEN], [1, SEQ // ranks]], "c10::BFloat16", {})
    ahead = [(table, -1), drawn_views.view([1, SEQ // ranks, HIDDEN], [SEQ // ranks, HIDDEN])]
    there, back = ([row for rows in each for row in rows] for each in ((x for x, _ in layers), (y for _, y in layers[::-1])))
    work = drawn_views.apart([*ahead, *there, None, *back])
    events, free, thread = [], 1000, 1
    for i, (row, views) in enumerate(work, 1):
        if row is None:
            thread = 2
            continue
        (name, us, dims, dtype, communicates), number = row
        at, ids = 1000 + 10 * i, {"External id": i}
        free = max(free, at + 6)
        shapes = {"Input Dims": dims, "Input type": [dtype] * len(dims)} if dims else {}
        sequence = {"Sequence number": number} if number >= 0 else {}
        kernel = f"ncclDevKernel_{'AllGather_RING_LL' if name == 'gather' else 'SendRecv'}" if communicates else f"kernel of {name}"
        call = {**ids, "correlation": i}
        rows = [
            ("cpu_op", f"c10d::{name}" if communicates else name, thread, at, 8, {**ids, **shapes, **(sequence if thread == 1 else {})}),
            ("cuda_runtime", "cudaLaunchKernel", thread, at + 1, 3, call),
            ("kernel", kernel, 7, free, us, {**call, **communicates, "device": 0, "stream": 7}),
        ]
        if thread == 2:
            node = "autograd::engine::evaluate_function: MmBackward0"
            rows.insert(0, ("cpu_op", node, thread, at - 0.5, 9, {"External id": 1000 + i, **sequence}))
        for cat, event, tid, start, length, args in rows:
            events.append({"ph": "X", "cat": cat, "name": event, "pid": tid // 7, "tid": tid, "ts": start, "dur": length, "args": args})
        events += drawn_views.events(views, at + 8.1, step=0.1)
        free += us
    for rank in range(ranks):
        text = {
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
            "traceEvents": events,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(text))
    job = read(str(folder))
    return job, measured_layout(segment(build(job), job))


def factors(layout, changed, name):
    """By what the kernels of a name take longer; equal ones once, the smallest first."""
    graph = layout.segmentation.graph
    tasks = np.flatnonzero(graph.on_device & (graph.name == graph.names.index(name)))
    return sorted(set(np.round(changed.prices.best[tasks], 9).tolist()))


def ratio(model, before, after):
    """Of the times that a model gives after and before the change."""
    return int(model(after).time) / int(model(before).time)


@pytest.mark.parametrize(("measured", "count"), [(2, 4), (4, 2), (2, 1)])
def test_each_part_of_the_work_follows_the_ranks(tmp_path, measured, count):
    """Projections have a rank's tokens. Keys and values are gathered from the new group, and the gradients go around it in as many
    messages. A call of attention stands for more or fewer parts, each of the new length. Every further part is merged, in the backward
    pass every part; of a single rank there is none."""
    job, layout = recorded(tmp_path, measured)
    assert sequence_ranks(layout, job) == measured
    changed = context_parallel(layout, job, RATES, {}, (measured, count))
    changed = reexchange(reprice(changed, job, Devices(A100.accelerator, A100.accelerator)), job, Links(A100, A100))
    before, after, bf16 = SEQ // measured, SEQ // count, 2

    def expect(name, *expected, times=1.0):
        assert factors(layout, changed, name) == pytest.approx(sorted(times * each for each in expected), rel=1e-3)

    def of_attention(direction, queries=1.0):
        def model(part):
            return attention(1, int(part * queries), HEADS, WIDTH, A100.accelerator, "bf16", kv_len=part, direction=direction)

        return ratio(model, before, after)

    sides = ((HIDDEN, HIDDEN), (3 * HIDDEN, HIDDEN), (HIDDEN, 3 * HIDDEN))
    projected = (ratio(lambda m, n=n, k=k: gemm(m, n, k, A100.accelerator, "bf16"), before, after) for n, k in sides)
    expect("kernel of aten::mm", *projected)
    expect(f"kernel of {FORWARD}", of_attention(Direction.FORWARD), of_attention(Direction.FORWARD, 0.5), times=count / measured)
    expect(f"kernel of {BACKWARD}", of_attention(Direction.BACKWARD), times=count / measured)
    merged = ratio(lambda part: moved(3 * 4 * part * HIDDEN, A100.accelerator, "pointwise"), before, after)
    expect("kernel of aten::sub", merged, times=(count - 1) / (measured - 1))
    expect("kernel of aten::add_", merged, times=count / measured if count > 1 else 0.0)
    buffers = dict.fromkeys((measured, count), 2 * SEQ * HIDDEN * bf16)
    gathers = [int(collective(CollectiveKind.ALL_GATHER, ranks, buffers[ranks], A100).time) for ranks in (measured, count)]
    expect("ncclDevKernel_AllGather_RING_LL", gathers[1] / gathers[0] if count > 1 else 0.0)
    sent = ratio(lambda part: collective(CollectiveKind.SEND_RECEIVE, 2, 2 * part * HIDDEN * 4, A100), before, after)
    expect("ncclDevKernel_SendRecv", sent, times=count / measured if count > 1 else 0.0)


@pytest.mark.parametrize(("measured", "count"), [(2, 4), (4, 2), (2, 1)])
def test_all_ranks_together_multiply_what_they_did(tmp_path, measured, count):
    job, layout = recorded(tmp_path, measured)
    changed = reshaped(job, to_all_keys(context_parallel(layout, job, RATES, {}, (measured, count)), job, (measured, count)))
    before, after = (sum(n for _, n in counted_operators(each.traces[0]).values()) for each in (job, changed))
    assert after * count == before * measured > 0
