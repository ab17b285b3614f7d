"""Process groups: their size, their ranks, how many of these are on a node, and how many groups share its network cards."""

from dataclasses import replace

import pytest

from lumos.blocks.share import Share
from lumos.model import load_model
from lumos.plan.plan import Plan, PlanError, check_plan
from lumos.plan.profiles import framework_profile
from lumos.prediction.ranks import group_of
from lumos.vocabulary import CollectiveKind

MIXTURE = load_model("mixtral-8x7b")
SHARE = Share(load_model("llama3-8b"), Plan(4096, 64, tp=4, cp=2, pp=2, dp=4, zero=1, shard=2), framework_profile("megatron-core"), 8)


@pytest.mark.parametrize(
    ("group", "ranks", "per_node", "concurrent"),
    [("tensor", 4, 4, 1), ("context", 2, 2, 1), ("data", 8, 2, 4), ("shards", 2, 2, 1), ("replicas", 4, 1, 8)],
)
def test_placement(group, ranks, per_node, concurrent):
    work = getattr(SHARE, group)(CollectiveKind.ALL_REDUCE, 1000)
    assert (work.ranks, work.per_node, work.concurrent) == (ranks, per_node, concurrent)


def test_members_of_groups():
    assert group_of(5, SHARE.tensor(CollectiveKind.ALL_REDUCE, 8)) == (4, 5, 6, 7)
    assert group_of(5, SHARE.context(CollectiveKind.SEND_RECEIVE, 8)) == (1, 5)
    assert group_of(5, SHARE.data(CollectiveKind.ALL_REDUCE, 8)) == tuple(range(1, 32, 4))
    assert group_of(13, SHARE.shards(CollectiveKind.ALL_GATHER, 8)) == (9, 13)
    assert group_of(13, SHARE.replicas(CollectiveKind.ALL_REDUCE, 8)) == (5, 13, 21, 29)
    assert group_of(40, SHARE.pipeline(8)) == (8, 40)


def test_vocabulary_is_padded_for_tensor_parallelism():
    assert SHARE.vocab == 128256 // 4 + 64
    assert SHARE.vocab * 4 % (128 * 4) == 0


def test_experts_may_span_the_tensor_ranks():
    def share(ep: int) -> Share:
        plan = Plan(4096, 64, tp=4, dp=2, ep=ep, sequence_parallel=True)
        check_plan(plan, MIXTURE)
        return Share(MIXTURE, plan, framework_profile("megatron-core"), 8)

    folded, plain = share(8), share(2)
    assert group_of(5, folded.expert(CollectiveKind.ALL_TO_ALL, 8)) == tuple(range(8))
    assert folded.plan.expert_replicas == 1
    assert group_of(5, plain.expert(CollectiveKind.ALL_TO_ALL, 8)) == (1, 5)
    assert plain.plan.expert_replicas == 1
    assert group_of(5, share(1).expert_data(CollectiveKind.ALL_REDUCE, 8)) == (1, 5)
    with pytest.raises(PlanError, match="needs sequence parallel"):
        check_plan(replace(folded.plan, sequence_parallel=False), MIXTURE)
    with pytest.raises(PlanError, match=r"ep \(16\) must divide"):
        check_plan(replace(folded.plan, ep=16), MIXTURE)
