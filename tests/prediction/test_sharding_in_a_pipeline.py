"""What sharded gradients and parameters cost in a pipeline, in reductions and gathers that can be counted."""

from collections import Counter

import pytest

import lumos
from lumos.blocks.memory import stage_memory
from lumos.blocks.work import Collective
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.framework import Framework, with_switches
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.prediction.arrange import arrange
from lumos.vocabulary import CollectiveKind


def reducing(grad_reduce: str) -> Framework:
    """Megatron Core's profile with that switch."""
    return with_switches(framework_profile("megatron-core"), {"grad_reduce": grad_reduce})


MODEL = load_model("llama3-8b")
CLUSTER = load_cluster("h100")


def moved(zero: int, pp: int, microbatches: int, vpp: int = 1, grad_reduce: str = "microbatch") -> Counter[CollectiveKind]:
    """Bytes that stage 0 reduces and gathers in a step of a job with two replicas, by kind of collective."""
    plan = Plan(2048, 2 * microbatches, pp=pp, vpp=vpp, dp=2, zero=zero, schedule="interleaved" if vpp > 1 else "1f1b")
    layout = arrange(MODEL, plan, reducing(grad_reduce), 8)
    total: Counter[CollectiveKind] = Counter()
    for item in layout.stages[0]:
        for op in layout.blocks[item.block].ops:
            if isinstance(op.work, Collective):
                total[op.work.kind] += item.repeat * op.work.size
    return total


@pytest.mark.parametrize(
    ("pp", "vpp", "microbatches", "grad_reduce", "times"),
    [
        (2, 2, 8, "microbatch", 8), (2, 2, 8, "group", 4), (2, 2, 8, "step", 1),
        (2, 2, 2, "group", 1),  # one group of as many microbatches as stages
        (2, 1, 8, "group", 1),  # one virtual stage runs all microbatches one after the other
    ],
)  # fmt: skip
def test_how_often_a_pipeline_reduces_sharded_gradients(pp, vpp, microbatches, grad_reduce, times):
    once = moved(1, pp, microbatches, vpp)[CollectiveKind.REDUCE_SCATTER]
    assert moved(2, pp, microbatches, vpp, grad_reduce)[CollectiveKind.REDUCE_SCATTER] == times * once


def test_gradients_that_wait_for_their_reduction_are_whole():
    """Of 8 microbatches in 2 stages of 2 virtual ones: two layers, each a bucket, or one virtual stage's half, or all."""

    def gradients(grad_reduce, microbatches=8, zero=2):
        plan = Plan(2048, 64 * microbatches, pp=2, vpp=2, dp=64, zero=zero, schedule="interleaved")
        return stage_memory(PlannedJob(MODEL, plan, reducing(grad_reduce), CLUSTER), 1).gradients_bytes

    whole = gradients("step", zero=1)
    layer = 4 * MODEL.layer_parameters(False).total
    assert gradients("microbatch") == pytest.approx(whole / 64 + 2 * layer, rel=1e-6)
    assert gradients("group") == gradients("step", 2) == pytest.approx(whole / 64 + whole * 63 / 64 / 2, rel=1e-6)
    assert gradients("step") == whole


def buckets(zero: int) -> list[tuple[set[int], int]]:
    """Of every bucket of layers whose gradients the last stage reduces: the items that its backward pass waits for, and the item of its
    reduction."""
    layout = arrange(MODEL, Plan(2048, 8, pp=2, dp=2, zero=zero), reducing("microbatch"), 8)
    items = layout.stages[1]
    reductions = [i for i, item in enumerate(items) if layout.blocks[item.block].name == "gradient reduction"]
    return [(set(items[i - 1].waits), i) for i in reductions]


def test_gradients_of_two_buckets_are_whole_at_a_time():
    """4 microbatches reduce 16 layers each. A layer waits for the reduction of the layer before the previous one; where gradients are
    kept whole, for none."""
    found = buckets(2)
    assert len(found) == 4 * 16
    every = {reduction for _, reduction in found}
    for (_, second_last), (waits, _) in zip(found, found[2:], strict=False):
        assert waits & every == {second_last}
    once = buckets(1)
    assert len(once) == 16
    assert not any(waits & {reduction for _, reduction in once} for waits, _ in once)


def test_an_unknown_framework_covers_every_way_to_reduce():
    plan = {"model": "llama3-8b", "cluster": "h100", "gpus": 64, "global_batch": 256, "seq": 2048, "tp": 4, "pp": 2, "zero": 2}
    codes = {d.code for d in lumos.predict(**plan, framework="generic").diagnostics}
    assert {"unknown-reduction", "reduced-each-microbatch"} <= codes
    stated = lumos.predict(**plan, framework="generic", switches={"grad_reduce": "step"})
    assert "unknown-reduction" not in {d.code for d in stated.diagnostics}
    torch = {d.code for d in lumos.predict(**plan, framework="fsdp2").diagnostics}
    assert "reduced-each-step" in torch and "unknown-reduction" not in torch
