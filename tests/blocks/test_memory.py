"""Memory by its parts: sharding, schedules and recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lumos.blocks.memory import peak_memory, stage_memory
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.vocabulary import Precision

LLAMA = load_model("llama2-7b")


def job(**plan):
    return PlannedJob(
        LLAMA, Plan(**{"seq_len": 4096, "global_batch": 64, **plan}), framework_profile("megatron-core"), load_cluster("h100")
    )


def test_mixed_precision_adam_takes_eighteen_bytes_a_parameter():
    memory = peak_memory(job(zero=0))
    assert memory.parameters_bytes == 2 * LLAMA.parameters
    assert memory.gradients_bytes == 4 * LLAMA.parameters
    assert memory.optimizer_bytes == 12 * LLAMA.parameters


def test_parameters_in_fp32_need_no_second_copy_of_themselves():
    memory = peak_memory(job(zero=0, precision=Precision.FP32))
    assert memory.parameters_bytes == 4 * LLAMA.parameters
    assert memory.optimizer_bytes == 8 * LLAMA.parameters


def test_zero_divides_what_it_shards():
    plain, one, three = (peak_memory(job(dp=8, zero=z)) for z in (0, 1, 3))
    assert one.optimizer_bytes == pytest.approx(plain.optimizer_bytes / 8, rel=0.001)
    assert one.gradients_bytes == plain.gradients_bytes
    assert three.gradients_bytes + three.parameters_bytes < plain.gradients_bytes / 3
    hybrid = peak_memory(job(dp=8, zero=1, shard=2))
    assert hybrid.optimizer_bytes == pytest.approx(plain.optimizer_bytes / 2, rel=0.001)


def test_early_stages_hold_more_microbatches():
    parts = [stage_memory(job(pp=4, global_batch=32), s).activations_bytes for s in range(4)]
    assert parts[0] > parts[1] > parts[2]


def test_recomputation_keeps_the_inputs_alone():
    plain, full = (peak_memory(job(recompute=r)) for r in ("none", "full"))
    assert full.activations_bytes < 0.4 * plain.activations_bytes


def test_sequence_parallel_divides_activations():
    whole, split = (peak_memory(job(tp=4, sequence_parallel=s)) for s in (False, True))
    assert split.activations_bytes < whole.activations_bytes


def test_a_peak_beyond_the_device_does_not_fit():
    assert not peak_memory(job(zero=0)).fits
    assert peak_memory(job(tp=8, zero=1)).fits


def test_longer_sequences_need_more():
    small = job(tp=8)
    large = replace(small, plan=replace(small.plan, seq_len=8192))
    assert peak_memory(large).activations_bytes == pytest.approx(2 * peak_memory(small).activations_bytes, rel=0.01)
