"""The work of experts on one rank: the order of their tokens, and the launches of their products."""

from dataclasses import replace

import pytest

from lumos.blocks.block import Op
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.blocks.work import GroupedGemm, Traffic
from lumos.model import load_model
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile

MIXTURE = load_model("qwen3-30b-a3b")  # 128 experts, of which a token takes 8; hidden 2,048
MEGATRON = framework_profile("megatron-core")


def ops(framework=MEGATRON, ep: int = 8, backward: bool = False) -> tuple[Op, ...]:
    """The operations of a layer with experts, of one sequence of 4,096 tokens a rank, forward or backward."""
    work = LayerWork(Share(MIXTURE, Plan(4096, 8, ep=ep, dp=8), framework, 8))
    return (work.backward(True, False) if backward else work.forward(True)).ops


@pytest.mark.parametrize("backward", [False, True])
def test_tokens_of_several_ranks_are_sorted_by_expert_and_back(backward):
    """4,096 · 8 tokens of 2,048 numbers of 2 bytes, each read and written: 268 MB, between an exchange and a product of the experts."""
    found = [op for op in ops(backward=backward) if op.name == "sort by expert"]
    assert [op.work for op in found] == [Traffic(2 * 2 * 4096 * 8 * 2048)] * 2
    names = [op.name for op in ops(backward=backward)]
    first, second = (i for i, name in enumerate(names) if name == "sort by expert")
    assert names[first - 1] == names[second + 1] == "ep all-to-all"
    assert "experts" in names[first + 1]


@pytest.mark.parametrize(("one_kernel", "launches"), [(False, 16), (True, 1)])
def test_each_expert_is_a_launch_unless_one_kernel_multiplies_for_all(one_kernel, launches):
    """128 experts on 8 ranks are 16 a rank: two products forward, and four backward."""
    framework = replace(MEGATRON, grouped_kernel=one_kernel, host_us=10.0)
    products = [op for op in ops(framework) if isinstance(op.work, GroupedGemm)]
    assert [op.host for op in products] == [launches * 10_000] * 2
    back = [op for op in ops(framework, backward=True) if op.name.startswith("experts")]
    assert [op.host for op in back] == [launches * 10_000] * 4
