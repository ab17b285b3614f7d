"""What sharded gradients and parameters cost in a pipeline, in reductions and gathers that can be counted."""

from __future__ import annotations

from collections import Counter

import pytest

from lumos.blocks.work import Collective
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.predict.arrange import arrange
from lumos.predict.predict import predict_job
from lumos.vocabulary import CollectiveKind

MODEL = load_model("llama3-8b")
CLUSTER = load_cluster("h100")


def moved(zero: int, pp: int, microbatches: int) -> Counter[CollectiveKind]:
    """Bytes that stage 0 reduces and gathers in a step of a job with two replicas, by kind of collective."""
    plan = Plan(2048, 2 * microbatches, pp=pp, dp=2, zero=zero)
    layout = arrange(MODEL, plan, framework_profile("megatron-core"), 8)
    total: Counter[CollectiveKind] = Counter()
    for item in layout.stages[0]:
        for op in layout.blocks[item.block].ops:
            if isinstance(op.work, Collective):
                total[op.work.kind] += item.repeat * op.work.size
    return total


def test_sharded_gradients_are_reduced_after_every_microbatch():
    once, each = moved(1, 2, 8), moved(2, 2, 8)
    assert each[CollectiveKind.REDUCE_SCATTER] == 8 * once[CollectiveKind.REDUCE_SCATTER]
    assert each[CollectiveKind.ALL_GATHER] == once[CollectiveKind.ALL_GATHER]
    assert moved(2, 1, 1)[CollectiveKind.REDUCE_SCATTER] == moved(1, 1, 1)[CollectiveKind.REDUCE_SCATTER]


def test_a_pipeline_gathers_sharded_parameters_once():
    piped = moved(3, 2, 8)
    assert piped[CollectiveKind.REDUCE_SCATTER] == moved(1, 2, 8)[CollectiveKind.REDUCE_SCATTER]
    # 16 of the 32 layers, in 16 bit; without a pipeline they are gathered in both passes of all 8 microbatches
    layer = MODEL.layer_parameters(False)
    assert piped[CollectiveKind.ALL_GATHER] == pytest.approx(16 * 2 * (layer.attention + layer.mlp + layer.norm))
    assert moved(3, 1, 8)[CollectiveKind.ALL_GATHER] == 2 * 8 * 2 * piped[CollectiveKind.ALL_GATHER]


@pytest.mark.parametrize("pp", [1, 2])
def test_zero_2_is_not_free(pp):
    times, peaks = {}, {}
    for zero in (1, 2):
        plan = Plan(2048, 256, tp=4, pp=pp, dp=16, zero=zero)
        p = predict_job(PlannedJob(MODEL, plan, framework_profile("megatron-core"), CLUSTER), coarse=True)
        times[zero], peaks[zero] = p.time.time_s, p.memory.peak_bytes
        assert ("reduced-each-microbatch" in {d.code for d in p.diagnostics}) == (zero == 2)
    assert times[2] > times[1]
    assert peaks[2] < peaks[1]
