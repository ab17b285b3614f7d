"""Replicas that come to share their parameters: the times of the passes are known, so those of the exchanges decide the rest."""

import json

import numpy as np
import pytest
from tests.changes import drawn_views
from tests.changes.layout.parallel.test_tensor import write_ranks
from tests.changes.layout.test_replicated import job_of

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.parallel.split import _share_exchanges, share_weights
from lumos.changes.layout.rates import rates_of
from lumos.changes.layout.regroup import Links, reexchange
from lumos.changes.layout.sharding.exchanged import exchanged_by_rank, updates_of_parts
from lumos.changes.layout.sharding.sharded import largest_part
from lumos.changes.settings import parse_settings
from lumos.changes.structure import changed_layout
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.memory_bound_model import moved
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.segment.rank import recordings_of
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
#: Two layers of 2048 by 2048 with a bias, in fp32.
BYTES = 4 * (2048 * 2048 + 2048)
REDUCED = {
    "Collective name": "allreduce",
    "In msg nelems": 2 * BYTES // 4,
    "Out msg nelems": 2 * BYTES // 4,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}
GATHERED = REDUCED | {"Collective name": "_allgather_base", "In msg nelems": BYTES // 8, "Out msg nelems": BYTES // 4}
SENT = REDUCED | {"Collective name": "broadcast"}
SCATTERED = REDUCED | {"Collective name": "_reduce_scatter_base", "Out msg nelems": BYTES // 4}
#: A rank's part of the scattered gradients, which is added up with that of the rank of the other set that has the same.
SUMMED = REDUCED | {
    "In msg nelems": BYTES // 4,
    "Out msg nelems": BYTES // 4,
    "Process Group Name": "1",
    "Process Group Ranks": "[0, 2]",
}
H100 = load_cluster("h100")


def replicas(
    tmp_path, *, exchange=True, reduced=REDUCED, gathers=False, again=True, sends=False, late=0, steps=1, blocks=0, updated=(), sets=1
):
    """Steps of two replicas: two linear layers of 1 ms forward and 2 ms backward, a copy of the gradients of 1 ms by DDP's reducer, their
    exchange of 0.3 ms, and 0.5 ms of optimizer, all on one stream. gathers: also gathers of 0.7 ms before each layer's passes; again:
    before the backward ones, too. sends: also broadcasts of 0.4 ms after the optimizer. late: also a copy of 1 ms that DDP's reducer makes
    behind the optimizer's first kernel. blocks: how many layers instead, each with a norm and an activation of next to no time, so that
    they are seen to repeat. updated: the shapes that the optimizer shows."""
    linear = {"Input Dims": [[16, 2048], [2048, 2048], [2048]], "Input type": ["float"] * 3}
    small = {"Input Dims": [[16, 2048]], "Input type": ["float"]}
    layer = (
        [("aten::tanh", 1, small), ("aten::linear", 1000, linear), ("aten::gelu", 1, small)] if blocks else [("aten::linear", 1000, linear)]
    )
    work = [(name, us, 10 + i, facts) for i, (name, us, facts) in enumerate(layer * (blocks or 2))]
    work += [(NODE.replace("Addmm", name[6:].title().replace("Linear", "Addmm")), 2 * us, number, {}) for name, us, number, _ in work[::-1]]
    if gathers:
        forward, backward = [("fsdp::all_gather", 700, -1, GATHERED)] * 2, [("c10d::gather", 700, one[2], GATHERED) for one in work[2:]]
        work = [each for pair in zip([*forward, *backward], work, strict=True) for each in pair]
        work = work if again else [each for each in work if each[0] != "c10d::gather"]
    if exchange:
        work += [("torch::distributed::reducer::mul_out", 1000, -1, {}), ("c10d::allreduce_", 300, -1, reduced)]
    work += [("c10d::allreduce_", 200, -1, SUMMED)] if sets > 1 else []
    shapes = {"Input Dims": list(updated), "Input type": ["float"] * len(updated)} if updated else {}
    work += [("aten::add_", 500, -1, shapes)]
    work += [("torch::distributed::reducer::copy_", 1000, -1, {})] if late else []
    work += [("c10d::broadcast_", 400, -1, SENT)] if sends else []
    events, free = [], 1000
    for i, (name, us, number, facts) in enumerate(steps * work, 1):
        at, ids = 1000 + 10 * i, {"External id": i}
        number += 100 * ((i - 1) // len(work)) if number >= 0 else 0
        thread = 1 if name.startswith("aten::") or name in ("fsdp::all_gather", "c10d::broadcast_") or "copy" in name else 2
        seq = {"Sequence number": number} if number >= 0 else {}
        call, shown = {**ids, "correlation": i}, facts if "Input Dims" in facts else {}
        inside = {} if "Input Dims" in facts else facts
        free = max(free, at + 5)
        kinds = {"allreduce": "AllReduce_Sum_f32", "broadcast": "Broadcast", "_reduce_scatter_base": "ReduceScatter_Sum_f32"}
        reduces = kinds.get(inside.get("Collective name"), "AllGather")
        kernel = f"ncclDevKernel_{reduces}_RING_LL" if inside else f"kernel of {name}"
        rows = [("cpu_op", name, thread, at, 8, {**ids, **shown, **seq}), ("cuda_runtime", "cudaLaunchKernel", thread, at + 1, 3, call)]
        if thread == 2 and "evaluate_function" not in name:
            rows.insert(0, ("cpu_op", NODE, thread, at - 1, 9.5, {"External id": 100 + i, "Sequence number": max(number, 10)}))
        rows.append(("kernel", kernel, 7, free, us, {**call, **inside, "device": 0, "stream": 7}))
        for cat, event, tid, start, length, args in rows:
            events.append({"ph": "X", "cat": cat, "name": event, "pid": tid // 7, "tid": tid, "ts": start, "dur": length, "args": args})
        events += drawn_views.events([drawn_views.added(16, 2048)] if name == "aten::linear" else [], at + 8.5)
        free += us
    mark = {"ph": "X", "cat": "user_annotation", "pid": 0, "tid": 1}
    for i in range(steps):
        last = 1000 + 10 * len(work) * (i + 1)
        events.append({**mark, "name": "Optimizer.step#SGD.step", "ts": last - 0.5 - 10 * sends, "dur": 9 + 10 * sends})
        if steps > 1:
            events.append({**mark, "name": f"ProfilerStep#{i}", "ts": last - 10 * len(work) + 9, "dur": 10 * len(work) - 0.1})
    write_ranks(tmp_path, events, 2 * sets)
    job = read(str(tmp_path))
    return job, build(job)


def step(found, *words):
    return answer_changes(*found, Changes(parse_settings(words)), force=True)


def exchange(kind, nbytes=BYTES):
    """As much longer than modelled as the recorded exchange of both layers."""
    return int(collective(kind, 2, nbytes, H100).time * 300_000 / float(collective(CollectiveKind.ALL_REDUCE, 2, 2 * BYTES, H100).time))


def copied(nbytes):
    return int(moved(2 * nbytes, H100.accelerator, "pointwise").time)


def test_gathers_and_scatters_take_the_place_of_the_exchange(tmp_path):
    """The first gather, which begins with a copy of the replica's half, and the last scatter are in nobody's shadow. Each layer's
    parameters are copied into place before both passes, and its gradients together after the second; the others of the exchanges are
    shorter than the passes beside them."""
    answer = step(replicas(tmp_path), "zero=3")
    copy = copied(BYTES)
    gather, scatter = copied(BYTES // 2) + exchange(CollectiveKind.ALL_GATHER), exchange(CollectiveKind.REDUCE_SCATTER)
    assert max(gather, scatter) < 1_000_000
    assert 1e9 * answer.base.step_time_s == pytest.approx(7_800_000, abs=50_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(6_250_000 + gather + 6 * copy + scatter, abs=50_000)
    assert answer.changes == ("zero = 3 (measured: 0)",)
    assert answer.trust.grade.value == "limited"


def test_the_calls_of_a_copy_that_goes_go_with_it(tmp_path):
    """On each rank the kernel and the operator up to its launch; the rest of the operator stands for the calls of what is added."""
    graph = step(replicas(tmp_path), "zero=3").graph
    copies = np.array(["reducer::mul_out" in name for name in graph.names], bool)[graph.name]
    assert np.count_nonzero(graph.duration[copies] == 0) == 4


def test_a_process_that_becomes_alone_copies_nothing_around_an_exchange_or_all_of_it(tmp_path):
    outcome = step(replicas(tmp_path), "dp=1").outcome
    assert 1e9 * outcome.step_time_s == pytest.approx(6_500_000, abs=50_000)
    assert 7_500_000 < 1e9 * outcome.step_time_high_s < 7_800_000


def test_a_process_alone_becomes_one_of_eight_that_share_their_parameters(tmp_path):
    """Two layers of 1 ms forward and 2 ms backward, and an update of 0.5 ms, of which each does an eighth. As above, the first gather, with
    the copy of an eighth before it, and the last scatter are in nobody's shadow; no gradient is exchanged otherwise."""
    answer = step(job_of(tmp_path, (2048, 2048), (2048, 2048)), "dp=8", "zero=3")
    gather, scatter = (int(collective(kind, 8, BYTES, H100).time) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER))
    expected = 6_000_000 + 500_000 / 8 + copied(BYTES // 8) + gather + 6 * copied(BYTES) + scatter
    assert 1e9 * answer.base.step_time_s == pytest.approx(6_500_000, abs=50_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(expected, abs=50_000)
    assert answer.changes == ("zero = 3 (measured: 0)", "dp = 8 (measured: 1)")
    assert answer.trust.grade.value == "limited"
    assert "the recording is of one process" in next(d.message for d in answer.diagnostics if d.code == "sharding-assumed")
    assert "exchange-assumed" not in {d.code for d in answer.diagnostics}


def test_two_sets_of_four_share_their_parameters_and_add_up_their_gradients(tmp_path):
    """A quarter of the update and of the first copy; after the last scatter a quarter of its gradients is added up by every fourth rank."""
    answer = step(job_of(tmp_path, (2048, 2048), (2048, 2048)), "dp=8", "zero=3", "shard=4")
    gather, scatter = (int(collective(kind, 4, BYTES, H100).time) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER))
    total = int(collective(CollectiveKind.ALL_REDUCE, 2, BYTES // 4, H100).time)
    expected = 6_000_000 + 500_000 / 4 + copied(BYTES // 4) + gather + 6 * copied(BYTES) + scatter + total
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(expected, abs=50_000)
    assert answer.changes == ("zero = 3 (measured: 0)", "dp = 8 (measured: 1)", "shard = 4 (measured: 1)")
    assert "8 replicas in sets of 4" in next(d.message for d in answer.diagnostics if d.code == "sharding-assumed")


def test_recorded_shards_become_a_set_and_their_gradients_are_added_up(tmp_path):
    """Two recorded replicas become two sets of two, which gather and scatter as before. What adds up each rank's half of the gradients of
    both layers takes as much longer than modelled as the recorded gathers of as many bytes, and the update waits for it."""
    answer = step(replicas(tmp_path, gathers=True, reduced=SCATTERED), "dp=4", "shard=2")
    slower = 700_000 / float(collective(CollectiveKind.ALL_GATHER, 2, BYTES, H100).time)
    total = slower * int(collective(CollectiveKind.ALL_REDUCE, 2, BYTES, H100).time)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(1e9 * answer.base.step_time_s + total, abs=5_000)
    assert answer.changes == ("dp = 4 (measured: 2)", "shard = 2 (measured: 4)")


def test_other_replicas_of_recorded_sets_are_other_sets(tmp_path):
    """Two sets of two: with half of the replicas nothing is added up between sets any more, and three replicas cannot be shared so. With
    twice as many the sums take as much longer as between four ranks; the parts of a rank stay."""
    found = replicas(tmp_path, gathers=True, reduced=SCATTERED, sets=2)
    base, half, twice = (1e9 * step(found, words).outcome.step_time_s for words in ("dp=4", "dp=2", "dp=8"))
    two, four = (float(collective(CollectiveKind.ALL_REDUCE, ranks, BYTES, H100).time) for ranks in (2, 4))
    assert base - half == pytest.approx(200_000, abs=5_000)
    assert twice - base == pytest.approx((four / two - 1) * 200_000, abs=5_000)
    with pytest.raises(UsageError, match="must be a multiple of the 2 replicas that share their states"):
        step(found, "dp=3")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("shard=2",), "with zero = 0 no parameters are shared; ask for zero=3 as well"),
        (("zero=3", "shard=3"), "must divide the 2 replicas"),
        (("zero=3", "shard=1"), "be 2 or more"),
    ],
)
def test_sets_that_cannot_be_had_are_refused(tmp_path, words, why):
    with pytest.raises(UsageError, match=why):
        step(replicas(tmp_path), *words)


def test_a_process_alone_that_updates_a_part_exchanges_gradients_and_parameters(tmp_path):
    """Of two replicas each updates one layer, in half of 0.5 ms, and sends it to the other, beside what buckets of gradients add."""
    found = job_of(tmp_path, (2048, 2048), (2048, 2048))
    times = [1e9 * step(found, *words).outcome.step_time_s for words in (("dp=2",), ("dp=2", "zero=1"))]
    sent = 2 * int(collective(CollectiveKind.BROADCAST, 2, BYTES, H100).time)
    assert times[1] - times[0] == pytest.approx(sent - 250_000, abs=50_000)


@pytest.mark.parametrize(
    ("also", "passes", "copies", "update"),
    [
        ("layers=8", 24_000_000, 3 * 8, 500_000),  # the update of twice the weights, shared by two
        ("microbatches=2", 24_000_000, 2 * 2 * 4 + 4, 250_000),  # gradients are copied together once
        ("recompute=full", 16_000_000, 3 * 4, 250_000),  # the backward pass has gathered for the second forward pass
    ],
)
def test_passes_that_change_too_gather_and_scatter_as_often_as_they_run(tmp_path, also, passes, copies, update):
    """Four layers. All gathers but the first, and all scatters but the last, are shorter than the passes beside them; small kernels take
    up to 6 us in a layer, and a second microbatch adds its gradients to those of the first."""
    answer = step(replicas(tmp_path, blocks=4), "zero=3", also)
    gather, scatter = copied(BYTES // 2) + exchange(CollectiveKind.ALL_GATHER), exchange(CollectiveKind.REDUCE_SCATTER)
    added = 4 * int(moved(3 * BYTES, H100.accelerator, "pointwise").time) if also == "microbatches=2" else 0
    expected = passes + update + added + gather + copies * copied(BYTES) + scatter
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(expected, abs=100_000)


def test_wider_layers_are_gathered_and_scattered(tmp_path):
    """Of four times the weights copies and update take four times as long, the exchange as modelled, until they are shared."""
    found, nbytes = replicas(tmp_path), 4 * (4096 * 4096 + 4096)
    wider, shared = (1e9 * step(found, *words).outcome.step_time_s for words in (("hidden=4096",), ("hidden=4096", "zero=3")))
    sums = [int(collective(CollectiveKind.ALL_REDUCE, 2, times * 2 * BYTES, H100).time) for times in (1, 4)]
    gone = 4 * (1_000_000 + 500_000 / 2) + 300_000 * sums[1] / sums[0]
    gather, scatter = exchange(CollectiveKind.ALL_GATHER, nbytes), exchange(CollectiveKind.REDUCE_SCATTER, nbytes)
    added = copied(nbytes // 2) + gather + 6 * copied(nbytes) + scatter
    assert shared - wider == pytest.approx(added - gone, abs=100_000)


def test_the_buckets_of_more_layers_follow_their_passes(tmp_path):
    """The gradients of the last layer fill a bucket, those of the two before it another. Only the exchange of the first layer's is in
    nobody's shadow, as much longer than modelled as the recorded gathers. All gradients are copied there,
    and those of the first layer back when all else is done. The update of all weights takes 2 ms, as half of those of two layers took
    0.5 ms."""
    answer = step(replicas(tmp_path, steps=4, gathers=True), "zero=0", "layers=4")
    slower = 700_000 / float(collective(CollectiveKind.ALL_GATHER, 2, BYTES, H100).time)
    exchanged = slower * int(collective(CollectiveKind.ALL_REDUCE, 2, BYTES, H100).time)
    expected = 12_000_000 + 5 * copied(BYTES) + exchanged + 2_000_000
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(expected, abs=5_000)


def test_the_recorded_exchange_shows_the_links(tmp_path):
    job, graph = replicas(tmp_path)
    modelled = int(collective(CollectiveKind.ALL_REDUCE, 2, 2 * BYTES, H100).time)
    assert rates_of(segment(graph, job), job, Links(H100, H100), stated=True).links == {
        (2, 1): ((2 * BYTES, 300_000 / modelled),)
    }


def test_recomputation_gathers_nothing_again(tmp_path):
    """The backward pass gathers a layer's parameters in any case, so a layer's second forward pass adds no gather. Its 1 ms is that of its
    last multiplication, which a checkpoint of PyTorch does not repeat, and others do."""
    answer = step(replicas(tmp_path, gathers=True), "recompute=full")
    assert 1e9 * answer.base.step_time_s == pytest.approx(10_600_000, abs=50_000)
    assert answer.outcome.step_time_s == pytest.approx(answer.base.step_time_s)
    spread = answer.base.step_time_high_s / answer.base.step_time_s
    assert 1e9 * answer.outcome.step_time_high_s == pytest.approx(12_600_000 * spread, rel=0.01)


def test_a_part_of_the_update_and_then_broadcasts(tmp_path):
    """Each replica updates one of the two layers, and gets the other; gradients are exchanged as they were."""
    answer = step(replicas(tmp_path), "zero=1")
    sent = 2 * int(collective(CollectiveKind.BROADCAST, 2, BYTES, H100).time)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(7_800_000 - 250_000 + sent, abs=50_000)
    assert answer.changes == ("zero = 1 (measured: 0)",)
    assert answer.trust.grade.value == "limited"


def test_parameters_that_stay_are_gathered_once(tmp_path):
    """As with zero = 3, but the backward pass gathers nothing, and so copies nothing into place."""
    answer = step(replicas(tmp_path), "zero=2")
    copy = copied(BYTES)
    gather, scatter = copied(BYTES // 2) + exchange(CollectiveKind.ALL_GATHER), exchange(CollectiveKind.REDUCE_SCATTER)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(6_250_000 + gather + 4 * copy + scatter, abs=50_000)


def test_recorded_gathers_of_the_backward_pass_go(tmp_path):
    """Two of four gathers of 0.7 ms."""
    answer = step(replicas(tmp_path, gathers=True), "zero=2")
    assert answer.changes == ("zero = 2 (measured: 3)",)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(10_600_000 - 1_400_000, abs=50_000)


def test_gathers_of_the_backward_pass_come(tmp_path):
    """The gathers are hidden behind the passes before them; the copies of two layers into place are not."""
    answer = step(replicas(tmp_path, gathers=True, again=False), "zero=3")
    copy = copied(BYTES)
    assert answer.changes == ("zero = 3 (measured: 2)",)
    assert 1e9 * answer.base.step_time_s == pytest.approx(9_200_000, abs=50_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(9_200_000 + 2 * copy, abs=50_000)


@pytest.mark.parametrize("late", [False, True])
def test_a_recorded_part_of_the_update_becomes_the_whole(tmp_path, late):
    """Without the broadcasts of 0.4 ms; twice the update of 0.5 ms, and a late copy of gradients as often as before."""
    answer = step(replicas(tmp_path, sends=True, late=late), "zero=0")
    assert answer.changes == ("zero = 0 (measured: 1)",)
    assert 1e9 * answer.base.step_time_s == pytest.approx(8_200_000 + late * 1_000_000, abs=50_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(8_300_000 + late * 1_000_000, abs=50_000)


@pytest.mark.parametrize(("parameters", "share"), [([3, 3, 2, 2, 2], 7 / 12), ([8, 1, 1, 1, 1], 8 / 12), ([5], 1.0), ([], 1.0)])
def test_parts_are_of_whole_parameters(parameters, share):
    """The largest first, each to the one of two replicas that has less."""
    assert largest_part(parameters, 2) == pytest.approx(share)


def test_without_an_exchange_there_is_nothing_to_share(tmp_path):
    with pytest.raises(LumosError, match="--set zero=3: the recording shows no replicas"):
        step(replicas(tmp_path, exchange=False), "zero=3")


def without(tmp_path, *keys):
    """The same two replicas, whose files lack some arguments of their rows."""
    replicas(tmp_path)
    for path in sorted(tmp_path.glob("*.json")):
        text = json.loads(path.read_text())
        for event in text["traceEvents"]:
            for key in keys:
                event.get("args", {}).pop(key, None)
        path.write_text(json.dumps(text))
    job = read(str(tmp_path))
    return job, build(job)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_exchanged_is_not_known_without_the_shapes_of_the_weights(tmp_path, stage):
    with pytest.raises(LumosError, match=rf"--set zero={stage}: .*rank0.json does not show the shapes of the weights"):
        step(without(tmp_path, "Input Dims"), f"zero={stage}")


def test_a_process_alone_without_shapes_becomes_no_replica(tmp_path):
    job, _ = job_of(tmp_path, (2048, 2048), (2048, 2048))
    path = next(iter(tmp_path.glob("*.json")))
    path.write_text(path.read_text().replace("Input Dims", "Some Dims"))
    job = read(str(path))
    with pytest.raises(LumosError, match=r"--set zero=3: .* does not show the shapes of the weights"):
        step((job, build(job)), "dp=8", "zero=3")


def test_the_ranks_that_share_are_not_known_without_the_group(tmp_path):
    with pytest.raises(LumosError, match="does not say how many ranks its exchanges of gradients join"):
        step(without(tmp_path, "Group size", "Process Group Name", "Process Group Ranks"), "zero=3")


def test_of_twice_the_replicas_that_share_parameters_each_updates_half(tmp_path):
    """The optimizer's 0.5 ms become 0.25 ms; exchanges and gathers become longer, by less than the group grows."""
    job, graph = replicas(tmp_path, gathers=True)
    layout = measured_layout(segment(graph, job))
    updates = updates_of_parts(layout, job)
    assert graph.duration[updates].tolist() == [500_000, 500_000]
    wider = changed_layout(layout, job, Changes(parse_settings(["dp=4"])))
    assert wider.prices.best[updates].tolist() == [0.5, 0.5]
    (tmp_path / "whole").mkdir()
    whole = replicas(tmp_path / "whole")
    assert not len(updates_of_parts(measured_layout(segment(whole[1], whole[0])), whole[0]))


def test_an_update_of_parts_grows_with_the_weights_whatever_its_shapes(tmp_path):
    """Twice the width is four times a matrix and twice its bias. The half of a matrix that a replica updates has 1024 rows, which are no
    size of the model."""
    job, graph = replicas(tmp_path, gathers=True, updated=([1024, 2048],))
    layout = measured_layout(segment(graph, job))
    wider = changed_layout(layout, job, Changes(parse_settings(["hidden=4096"])))
    more = (4096 * 4096 + 4096) / (2048 * 2048 + 2048)
    assert wider.prices.best[updates_of_parts(layout, job)].tolist() == pytest.approx([more, more])


def test_replicas_of_ranks_that_share_the_layers_exchange_their_part(tmp_path):
    """The update and the copy take half of their time; gathers and the exchange that of half of the bytes."""
    job, graph = replicas(tmp_path, gathers=True)
    layout = measured_layout(segment(graph, job))
    exchanged = exchanged_by_rank(layout, job)[0]
    prices = layout.prices.copy()
    share = share_weights(prices, recordings_of(layout.segmentation, job)[0], exchanged, np.empty(0, np.int64), 2, outside=False)
    among_others = reexchange(_share_exchanges(layout, exchanged, share, 2), job, Links(H100, H100)).prices
    for column in prices.columns:
        assert column[exchanged.updates].tolist() == column[exchanged.copies].tolist() == [0.5]
    for kind, tasks, nbytes in (
        (CollectiveKind.ALL_GATHER, exchanged.gathers, BYTES),
        (CollectiveKind.ALL_REDUCE, exchanged.gradients, 2 * BYTES),
    ):
        half, whole = (int(collective(kind, 2, part, H100).time) for part in (nbytes // 2, nbytes))
        assert among_others.best[tasks].tolist() == pytest.approx([half / whole] * len(tasks))
        assert len(tasks)


@pytest.mark.parametrize("stage", ["zero=3", "zero=1"])
def test_shared_parameters_and_stages_that_are_both_new_are_refused(tmp_path, stage):
    found = replicas(tmp_path)
    with pytest.raises(LumosError, match=f"--set {stage}: its exchanges lie between the recorded passes"):
        step(found, stage, "pp=2", "microbatches=2")
