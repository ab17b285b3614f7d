"""Replicas that come to share their parameters: the times of the passes are known, so those of the exchanges decide the rest."""

from __future__ import annotations

import json

import pytest
from tests.whatif.layout.test_replicated import job_of

from lumos.cost.cluster import load_cluster
from lumos.cost.collective import collective
from lumos.cost.memory_bound import moved
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind
from lumos.whatif.changes import Changes
from lumos.whatif.layout.measured_layout import measured_layout
from lumos.whatif.layout.rates import rates_of
from lumos.whatif.layout.sharding.exchanged import updates_of_parts
from lumos.whatif.layout.sharding.updates import largest_part
from lumos.whatif.settings import parse_settings
from lumos.whatif.structure import changed_layout
from lumos.whatif.whatif import answer_changes

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
H100 = load_cluster("h100")


def replicas(tmp_path, *, exchange=True, gathers=False, again=True, sends=False, steps=1):
    """Steps of two replicas: two linear layers of 1 ms forward and 2 ms backward, a copy of the gradients of 1 ms by DDP's reducer, their
    exchange of 0.3 ms, and 0.5 ms of optimizer, all on one stream. gathers: also gathers of 0.7 ms before each layer's passes; again:
    before the backward ones, too. sends: also broadcasts of 0.4 ms after the optimizer."""
    work = [("aten::linear", 1000, i, {"Input Dims": [[16, 2048], [2048, 2048], [2048]], "Input type": ["float"] * 3}) for i in (10, 11)]
    work += [(NODE, 2000, 11, {}), (NODE, 2000, 10, {})]
    if gathers:
        forward, backward = [("fsdp::all_gather", 700, -1, GATHERED)] * 2, [("c10d::gather", 700, one[2], GATHERED) for one in work[2:]]
        work = [each for pair in zip([*forward, *backward], work, strict=True) for each in pair]
        work = work if again else [each for each in work if each[0] != "c10d::gather"]
    if exchange:
        work += [("torch::distributed::reducer::mul_out", 1000, -1, {}), ("c10d::allreduce_", 300, -1, REDUCED)]
    work += [("aten::add_", 500, -1, {})]
    work += [("c10d::broadcast_", 400, -1, SENT)] if sends else []
    events, free = [], 1000
    for i, (name, us, number, facts) in enumerate(steps * work, 1):
        at, ids = 1000 + 10 * i, {"External id": i}
        number += 100 * ((i - 1) // len(work)) if number >= 0 else 0
        thread = 1 if name in ("aten::linear", "aten::add_", "fsdp::all_gather", "c10d::broadcast_") else 2
        seq = {"Sequence number": number} if number >= 0 else {}
        call, shown = {**ids, "correlation": i}, facts if "Input Dims" in facts else {}
        inside = {} if "Input Dims" in facts else facts
        free = max(free, at + 5)
        reduces = {"allreduce": "AllReduce_Sum_f32", "broadcast": "Broadcast"}.get(inside.get("Collective name"), "AllGather")
        kernel = f"ncclDevKernel_{reduces}_RING_LL" if inside else f"kernel of {name}"
        rows = [("cpu_op", name, thread, at, 8, {**ids, **shown, **seq}), ("cuda_runtime", "cudaLaunchKernel", thread, at + 1, 3, call)]
        if thread == 2 and name != NODE:
            rows.insert(0, ("cpu_op", NODE, thread, at - 1, 9.5, {"External id": 100 + i, "Sequence number": max(number, 10)}))
        rows.append(("kernel", kernel, 7, free, us, {**call, **inside, "device": 0, "stream": 7}))
        for cat, event, tid, start, length, args in rows:
            events.append({"ph": "X", "cat": cat, "name": event, "pid": tid // 7, "tid": tid, "ts": start, "dur": length, "args": args})
        free += us
    mark = {"ph": "X", "cat": "user_annotation", "pid": 0, "tid": 1}
    for i in range(steps):
        last = 1000 + 10 * len(work) * (i + 1)
        events.append({**mark, "name": "Optimizer.step#SGD.step", "ts": last - 0.5 - 10 * sends, "dur": 9 + 10 * sends})
        if steps > 1:
            events.append({**mark, "name": f"ProfilerStep#{i}", "ts": last - 10 * len(work) + 9, "dur": 10 * len(work) - 0.1})
    for rank in range(2):
        text = {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "traceEvents": events,
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(text))
    job = read(str(tmp_path))
    return job, build(job)


def step(found, *words):
    return answer_changes(*found, Changes(parse_settings(words)), force=True)


def exchange(kind):
    """As much longer than modelled as the recorded exchange of both layers."""
    return int(collective(kind, 2, BYTES, H100).time * 300_000 / float(collective(CollectiveKind.ALL_REDUCE, 2, 2 * BYTES, H100).time))


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


def test_a_process_alone_that_updates_a_part_exchanges_gradients_and_parameters(tmp_path):
    """Of two replicas each updates one layer, in half of 0.5 ms, and sends it to the other, beside what buckets of gradients add."""
    found = job_of(tmp_path, (2048, 2048), (2048, 2048))
    times = [1e9 * step(found, *words).outcome.step_time_s for words in (("dp=2",), ("dp=2", "zero=1"))]
    sent = 2 * int(collective(CollectiveKind.BROADCAST, 2, BYTES, H100).time)
    assert times[1] - times[0] == pytest.approx(sent - 250_000, abs=50_000)


def test_a_step_gathers_what_the_step_before_updated(tmp_path):
    """So the first gather is not hidden in a loop either."""
    gather, scatter = copied(BYTES // 2) + exchange(CollectiveKind.ALL_GATHER), exchange(CollectiveKind.REDUCE_SCATTER)
    answer = step(replicas(tmp_path, steps=4), "zero=3")
    assert 1e9 * answer.base.step_time_s == pytest.approx(7_800_000, abs=5_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(6_250_000 + gather + 6 * copied(BYTES) + scatter, abs=5_000)


def test_the_recorded_exchange_shows_the_links(tmp_path):
    job, graph = replicas(tmp_path)
    modelled = int(collective(CollectiveKind.ALL_REDUCE, 2, 2 * BYTES, H100).time)
    assert rates_of(measured_layout(segment(graph, job)), job.traces, H100.accelerator, H100).links == {
        2: ((2 * BYTES, 300_000 / modelled),)
    }


def test_recomputation_gathers_nothing_again(tmp_path):
    """The backward pass gathers a layer's parameters in any case, so a layer's second forward pass adds its 1 ms and no gather."""
    answer = step(replicas(tmp_path, gathers=True), "recompute=full")
    assert 1e9 * answer.base.step_time_s == pytest.approx(10_600_000, abs=50_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(12_600_000, abs=50_000)


def test_the_same_stage_is_the_recorded_job(tmp_path):
    answer = step(replicas(tmp_path), "zero=0")
    assert answer.outcome.step_time_s == answer.base.step_time_s


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


def test_a_recorded_part_of_the_update_becomes_the_whole(tmp_path):
    """Without the broadcasts of 0.4 ms; twice the update of 0.5 ms."""
    answer = step(replicas(tmp_path, sends=True), "zero=0")
    assert answer.changes == ("zero = 0 (measured: 1)",)
    assert 1e9 * answer.base.step_time_s == pytest.approx(8_200_000, abs=50_000)
    assert 1e9 * answer.outcome.step_time_s == pytest.approx(8_300_000, abs=50_000)


@pytest.mark.parametrize(("parameters", "share"), [([3, 3, 2, 2, 2], 7 / 12), ([8, 1, 1, 1, 1], 8 / 12), ([5], 1.0), ([], 1.0)])
def test_parts_are_of_whole_parameters(parameters, share):
    """The largest first, each to the one of two replicas that has less."""
    assert largest_part(parameters, 2) == pytest.approx(share)


def test_without_an_exchange_there_is_nothing_to_share(tmp_path):
    with pytest.raises(LumosError, match="--set zero=3: the recording shows no replicas"):
        step(replicas(tmp_path, exchange=False), "zero=3")


def test_of_twice_the_replicas_that_share_parameters_each_updates_half(tmp_path):
    """The optimizer's 0.5 ms become 0.25 ms; exchanges and gathers become longer, by less than the group grows."""
    job, graph = replicas(tmp_path, gathers=True)
    layout = measured_layout(segment(graph, job))
    updates = updates_of_parts(layout, job)
    assert graph.duration[updates].tolist() == [500_000, 500_000]
    wider = changed_layout(layout, job, Changes(parse_settings(["dp=4"])))
    assert wider.factor[updates].tolist() == [0.5, 0.5]
    (tmp_path / "whole").mkdir()
    whole = replicas(tmp_path / "whole")
    assert not len(updates_of_parts(measured_layout(segment(whole[1], whole[0])), whole[0]))


@pytest.mark.parametrize("stage", ["zero=3", "zero=1"])
def test_shared_parameters_and_stages_that_are_both_new_are_refused(tmp_path, stage):
    found = replicas(tmp_path)
    with pytest.raises(LumosError, match=f"--set {stage}: its exchanges lie between the recorded passes"):
        step(found, stage, "pp=2", "microbatches=2")
