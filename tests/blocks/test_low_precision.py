"""Low precision: which kernels cast to 8 bit, what exchanges send and occupy, what is kept and computed again."""

from dataclasses import replace

import pytest

from lumos.blocks.layer import LayerWork
from lumos.blocks.memory import peak_memory
from lumos.blocks.price import Pricer, StepCoefficients
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, Contention, Gemm
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile

NEMO = framework_profile("nemo")


def casting(framework, precision="fp8"):
    """The multiplications of a layer, forward and backward, whose activation needs a cast."""
    plan = Plan(4096, 8, dp=8, precision=precision)
    work = LayerWork(Share(load_model("llama3-8b"), plan, framework, 8))
    ops = (*work.forward(False).ops, *work.backward(False, False).ops)
    return {op.name for op in ops if isinstance(op.work, Gemm) and op.work.cast and op.work.dtype.quantised}


def test_activations_write_what_the_multiplications_around_them_read():
    own = casting(replace(NEMO, fp8_norms=False))
    assert {"mlp up", "mlp down", "mlp up input gradient"} <= own
    norms = casting(NEMO)
    assert own - norms == {"qkv", "mlp up"}
    activations = casting(replace(NEMO, fp8_activations=True))
    assert norms - activations == {"mlp down", "mlp up input gradient"}
    assert casting(NEMO, "fp4") == norms
    assert casting(NEMO, "bf16") == set()


@pytest.mark.parametrize(
    ("per_node", "copies"),
    [
        (8, 8 * (1 - (7 / 8) ** 8)),  # one node: as many copies as devices hold some of the token's 8 experts
        (4, 2 * (1 - (1 / 2) ** 8)),  # two nodes: one copy for each that holds some
    ],
)
def test_a_token_is_sent_once_to_each_place_that_needs_it(per_node, copies):
    plan = Plan(4096, 8, ep=8, dp=8)
    work = LayerWork(Share(load_model("qwen3-30b-a3b"), plan, replace(NEMO, deep_ep=True), per_node))
    sizes = {op.work.size for op in work.forward(True).ops if isinstance(op.work, Collective)}
    assert sizes == {round(2 * 4096 * 2048 * copies)}


def test_an_exchange_beside_compute_occupies_units_that_compute_lacks():
    plan = Plan(4096, 8, ep=8, dp=8)
    overlapped = replace(NEMO, deep_ep=True, ep_overlap=True)
    ops = LayerWork(Share(load_model("qwen3-30b-a3b"), plan, overlapped, 8)).forward(True).ops
    lent = [op.work for op in ops if isinstance(op.work, Contention)]
    assert [work.cores for work in lent] == [20, 20]  # dispatch and combine
    h100 = Pricer(load_cluster("h100"), StepCoefficients(contention=0.01))
    exchange, lost = (price.times.best for price in h100([lent[0].collective, lent[0]]))
    assert lost == pytest.approx(exchange * 20 / 132, rel=0.001)


def test_light_recomputation_fits_deepseeks_own_plan():
    model, cluster = load_model("deepseek-v3"), load_cluster("h800")
    plan = Plan(4096, 15360, pp=16, ep=64, dp=128, zero=1, precision="fp8", schedule="dualpipe", recompute="selective")
    own = framework_profile("hai-llm")
    light, kept = (peak_memory(PlannedJob(model, plan, f, cluster)) for f in (own, replace(own, fp8_kept=False)))
    whole = peak_memory(PlannedJob(model, replace(plan, recompute="none"), own, cluster))
    assert light.peak_bytes < kept.peak_bytes < whole.peak_bytes
    assert light.fits and not whole.fits


def test_light_recomputation_computes_norms_up_projections_and_activations_again():
    plan = Plan(4096, 8, dp=8, recompute="selective")
    work = LayerWork(Share(load_model("deepseek-v3"), plan, replace(NEMO, selective="light"), 8))
    names = [op.name for op in work.backward(True, False).ops]
    assert names[:5] == ["norm", "norm", "query up again", "kv up again", "gated activation"]
