"""Steps of the pipeline schedules against the bubbles that their papers give."""

from dataclasses import replace

import pytest

from lumos.blocks.block import Times
from lumos.blocks.price import Price, Pricer
from lumos.blocks.work import Collective, Gemm, RankStream
from lumos.cost.cluster import load_cluster
from lumos.cost.estimate import Bound
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.prediction.arrange import arrange
from lumos.prediction.predict import predict_job

LAYERS = 16
MODEL = replace(load_model("gpt3-126m"), layers=LAYERS, tied=False)
#: No host time. There are no replicas, so gradients are not exchanged.
QUIET = replace(framework_profile("megatron-core"), host_us=0.0, layer_us=0.0, checkpoint_us=0.0, step_us=0.0, transfer_us=0.0, zero=0)
KERNEL = 1_000_000


class MultiplicationsOnly(Pricer):
    """Each multiplication of a layer takes KERNEL ns (four forward, four for inputs, four for weights), all other work no time."""

    def __init__(self) -> None:
        super().__init__(load_cluster("h100"))

    def __call__(self, work):
        vocabulary = range(MODEL.vocab, MODEL.vocab + 1024)  # padded
        inside = [isinstance(w, Gemm) and not any(size in vocabulary for size in (w.m, w.n, w.k)) for w in work]
        return [Price(Times(*(KERNEL if gemm else 0,) * 3), Bound.COMPUTE) for gemm in inside]


def step_ns(plan: Plan) -> float:
    pricer = MultiplicationsOnly()
    return 1e9 * predict_job(PlannedJob(MODEL, plan, QUIET, pricer.cluster), pricer, coarse=True).time.time_s


@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("microbatches", [16, 128])
@pytest.mark.parametrize(
    ("schedule", "bubble"),  # in passes: forward, input-gradient and weight-gradient passes take equally long
    [
        ("1f1b", lambda p: 3 * (p - 1)),
        ("gpipe", lambda p: 3 * (p - 1)),
        ("zero-bubble", lambda p: p - 1),
        ("dualpipe", lambda p: p / 2 - 1),
    ],
)
def test_bubbles_are_those_of_the_papers(stages, microbatches, schedule, bubble):
    one = 4 * KERNEL * LAYERS / stages
    found = step_ns(Plan(512, microbatches, pp=stages, schedule=schedule))
    assert found == pytest.approx((3 * microbatches + bubble(stages)) * one, rel=1e-3)


@pytest.mark.parametrize("schedule", ["zero-bubble", "dualpipe"])
def test_split_passes_exchange_the_gradients_of_every_layer(schedule):
    def exchanged(plan: Plan) -> int:
        layout = arrange(MODEL, plan, framework_profile("megatron-core"), 8)
        blocks = [layout.blocks[item.block] for stage in layout.stages for item in stage for _ in range(item.repeat)]
        works = [op.work for block in blocks for op in block.ops if op.lane is RankStream.DATA]
        return sum(w.size for w in works if isinstance(w, Collective))

    plan = Plan(512, 64, pp=4, dp=4, zero=1)
    copies = 2 if schedule == "dualpipe" else 1  # each device holds a part for each direction
    assert exchanged(replace(plan, schedule=schedule)) == pytest.approx(copies * exchanged(plan), rel=0.05)
