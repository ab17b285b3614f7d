"""The work of a layer: effects of packed documents, fp8 gathers and unfused softmax."""

from dataclasses import replace

import pytest

from lumos.blocks.block import Block
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, Gemm, Traffic
from lumos.model import load_model
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.vocabulary import CollectiveKind

LLAMA = load_model("llama3-8b")
TITAN = framework_profile("fsdp2-compiled")
MEGATRON = framework_profile("megatron-core")
EIGHT = Plan(8192, 8, micro_batch=1, tp=8, dp=8, zero=3, sequence_parallel=True, precision="fp8")


def works(block: Block, kind: type) -> list:
    return [op.work for op in block.ops if isinstance(op.work, kind)]


def forward(plan: Plan, framework, model=LLAMA) -> Block:
    return LayerWork(Share(model, plan, framework, 8)).forward(False)


def backward(plan: Plan, framework, model=LLAMA) -> Block:
    return LayerWork(Share(model, plan, framework, 8)).backward(False, False)


def test_gathers_in_8_bit_are_half_as_large_and_cast_before():
    cast = forward(EIGHT, TITAN)
    plain = forward(EIGHT, replace(TITAN, fp8_gather=False))
    gathered = [[w.size for w in works(b, Collective) if w.kind is CollectiveKind.ALL_GATHER] for b in (cast, plain)]
    assert gathered == [[8192 * 4096] * 2, [8192 * 4096 * 2] * 2]
    assert [op.work for op in cast.ops if op.name == "cast to 8 bit"] == [Traffic(3 * 1024 * 4096)] * 2
    assert [op.work.cast for op in cast.ops if op.name in ("qkv", "mlp up")] == [False] * 5
    assert all(w.cast for w in works(plain, Gemm))


def copies(block: Block) -> list[int]:
    return [op.work.bytes for op in block.ops if op.name.startswith("copy of")]


def test_dtensor_copies_what_it_gathers_and_scatters_and_gathers_nothing_again():
    plan, whole = replace(EIGHT, precision="bf16"), 2 * 8192 * 4096  # bytes of the sequence in 16 bit: each copy reads and writes them
    assert copies(forward(plan, TITAN)) == [2 * whole] * 4
    assert copies(forward(EIGHT, TITAN)) == [whole, 2 * whole] * 2  # gathered in 8 bit
    assert copies(backward(plan, framework_profile("fsdp2"))) == [2 * whole] * 4
    compiled = backward(plan, TITAN)
    assert copies(compiled) == [2 * whole] * 2  # the sums of the other two gradients are written in the order that is scattered
    assert [op.work.bytes for op in compiled.ops if op.name == "gradient add"] == [3 * whole, 4 * whole]  # gate and up; q, k and v
    gathers = [sum(w.kind is CollectiveKind.ALL_GATHER for w in works(backward(plan, f), Collective)) for f in (TITAN, MEGATRON)]
    assert gathers == [2, 4]
    assert not copies(forward(plan, MEGATRON)) + copies(forward(replace(plan, tp=1), TITAN))
    assert not copies(forward(plan, replace(TITAN, tp_overlap=True)))  # multiplications with collectives inside


def test_scales_by_row_cast_the_operands_of_weight_gradients_again():
    def casts(framework):
        return [op.name for op in backward(EIGHT, framework).ops if op.name.endswith("casts by column")]

    assert len(casts(replace(TITAN, fp8_gather=False, fp8_rows=True))) == 7  # the multiplications of a Llama layer
    assert not casts(TITAN)


@pytest.mark.parametrize(("tp", "micro_batch", "seq", "kernels"), [(4, 1, 1024, 1), (8, 1, 1024, 5), (8, 2, 1024, 1), (1, 4, 4096, 5)])
def test_megatron_fuses_softmax_for_multiples_of_four_and_short_sequences(tp, micro_batch, seq, kernels):
    model = replace(LLAMA, heads=16, kv_heads=16, head_dim=256)
    plan = Plan(seq, 8, micro_batch=micro_batch, tp=tp)
    for block in (forward(plan, framework_profile("megatron-2021"), model), backward(plan, framework_profile("megatron-2021"), model)):
        (softmax,) = [op.work for op in block.ops if op.name.startswith("masked softmax")]
        assert softmax.kernels == kernels


def test_adapters_are_trained_beside_frozen_weights():
    plan = Plan(4096, 8, tp=2, lora_rank=16, sequence_parallel=True, precision="fp8")
    ahead = {op.name: op.work for op in forward(plan, framework_profile("nemo")).ops if op.name.startswith("adapter")}
    assert ahead["adapter down"][:4] == (4096, 16, 4096, "bf16")
    assert ahead["adapter up"][:3] == (4096, 6144 // 2, 16)
    back = [op.name for op in backward(plan, framework_profile("nemo")).ops if op.name.endswith("weight gradient")]
    assert back == ["adapter up weight gradient", "adapter down weight gradient"]
