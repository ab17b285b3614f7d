"""Memory by its parts: sharding, schedules and recomputation."""

from dataclasses import replace

import pytest

from lumos.blocks.memory import peak_memory
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.vocabulary import Precision

LLAMA = load_model("llama2-7b")


def job(switches=None, **plan):
    framework = replace(framework_profile("megatron-core"), **(switches or {}))
    return PlannedJob(LLAMA, Plan(**{"seq_len": 4096, "global_batch": 64, **plan}), framework, load_cluster("h100"))


@pytest.mark.parametrize(("precision", "parts"), [(Precision.BF16, (2, 4, 12)), (Precision.FP32, (4, 4, 8))])
def test_adam_keeps_a_second_copy_of_parameters_that_are_not_in_fp32(precision, parts):
    memory = peak_memory(job(zero=0, precision=precision))
    assert (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes) == tuple(n * LLAMA.parameters for n in parts)


@pytest.mark.parametrize(("switches", "more"), [
    ({"fused_accumulation": False}, 2 * LLAMA.parameters),  # autograd's gradients in 16 bit beside those in fp32
    ({"fused_accumulation": False, "gradient_bytes": 2}, -2 * LLAMA.parameters),  # they are the gradients
    ({"loss": "torch"}, 4 * 4096 * LLAMA.vocab), ({"loss": "fused"}, -6 * 4096 * LLAMA.vocab),
])  # fmt: skip
def test_what_a_framework_keeps_of_gradients_and_logits(switches, more):
    assert peak_memory(job(switches, zero=0)).peak_bytes - peak_memory(job(zero=0)).peak_bytes == more


def test_dtensor_keeps_what_it_gathered():
    plan = {"tp": 4, "sequence_parallel": True}
    more = peak_memory(job({"dtensor": True}, **plan)).activations_bytes - peak_memory(job(**plan)).activations_bytes
    assert more == LLAMA.layers * 2 * 2 * 4096 * LLAMA.hidden * 3 // 4


def test_zero_divides_what_it_shards():
    plain, one, three = (peak_memory(job(dp=8, zero=z)) for z in (0, 1, 3))
    assert one.optimizer_bytes == pytest.approx(plain.optimizer_bytes / 8, rel=0.001)
    assert one.gradients_bytes == plain.gradients_bytes
    assert three.gradients_bytes + three.parameters_bytes < plain.gradients_bytes / 3
    hybrid = peak_memory(job(dp=8, zero=1, shard=2))
    assert hybrid.optimizer_bytes == pytest.approx(plain.optimizer_bytes / 2, rel=0.001)


@pytest.mark.parametrize(("one", "other", "share"), [
    ({"recompute": "none"}, {"recompute": "full"}, 0.4), ({"tp": 4}, {"tp": 4, "sequence_parallel": True}, 1.0),
])  # fmt: skip
def test_recomputation_and_sequence_parallelism_keep_fewer_activations(one, other, share):
    assert peak_memory(job(**other)).activations_bytes < share * peak_memory(job(**one)).activations_bytes


@pytest.mark.parametrize(("framework", "vpp"), [("megatron-core", 1), ("llama3", 8)])
def test_the_published_plan_of_llama_3_fits(framework, vpp):
    """arXiv:2407.21783, table 4 and section 3.3.2: it ran on 80 GB, with one layer in each of eight virtual stages, gradients sharded."""
    profile = framework_profile(framework)
    schedule = "interleaved" if vpp > 1 else "1f1b"
    plan = Plan(8192, 2048, tp=8, pp=16, vpp=vpp, dp=128, zero=profile.zero, sequence_parallel=True, schedule=schedule)
    assert peak_memory(PlannedJob(load_model("llama3-405b"), plan, profile, load_cluster("h100"))).fits
