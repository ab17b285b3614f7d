"""Parameters of one rank: worked out by hand, and equal for a column of plans and for its single plans."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.blocks.parameters import RankParameters, bucket_layers, held_parameters, layer_parameters, owned_parameters, sharded_parameters
from lumos.blocks.share import Share
from lumos.model import load_model
from lumos.plan.plan import OuterParts, Plan, outer_parts
from lumos.plan.profiles import framework_profile

LLAMA = load_model("llama3-8b")
MIXTRAL = load_model("mixtral-8x7b")


def test_a_layer_is_split_but_for_its_norms():
    p = LLAMA.layer_parameters()
    assert layer_parameters(LLAMA, False, 8, 1) == RankParameters((p.attention + p.mlp) // 8 + p.norm, 0)
    whole, part = layer_parameters(MIXTRAL, True, 1, 1), layer_parameters(MIXTRAL, True, 1, 4)
    assert part == RankParameters(whole.dense, whole.experts // 4)
    assert whole.total == MIXTRAL.layer_parameters(True).total


def test_one_stage_that_has_both_ends_holds_the_model():
    assert held_parameters(LLAMA, {False: LLAMA.layers}, OuterParts(True, True), 1, 1, 1).total == LLAMA.parameters
    tied = replace(LLAMA, tied=True)
    table = LLAMA.vocab * LLAMA.hidden
    assert held_parameters(tied, {}, OuterParts(False, True), 1, 1, 1).total == LLAMA.norm_parameters  # the embedding holds the table
    assert held_parameters(tied, {}, OuterParts(False, True), 2, 1, 1).total == LLAMA.norm_parameters + table  # the last stage holds a copy


@pytest.mark.parametrize(("schedule", "first", "last"), [("1f1b", [0], [3]), ("dualpipe", [0, 3], [0, 3])])
def test_the_stages_that_have_the_ends_of_the_model(schedule, first, last):
    ends = [outer_parts(schedule, 4, stage) for stage in range(4)]
    assert [i for i, e in enumerate(ends) if e.first] == first
    assert [i for i, e in enumerate(ends) if e.last] == last


def test_columns_of_plans_hold_what_each_plan_holds():
    tp, ep = np.array([1, 2, 4]), np.array([8, 4, 2])
    column = held_parameters(MIXTRAL, {True: 7}, OuterParts(True, False), 4, tp, ep)
    sharded = sharded_parameters(column, tp * 3, ep)
    for i, (t, e) in enumerate(zip(tp.tolist(), ep.tolist(), strict=True)):
        one = held_parameters(MIXTRAL, {True: 7}, OuterParts(True, False), 4, t, e)
        assert (column.dense[i], column.experts[i]) == one
        assert sharded[i] == sharded_parameters(one, t * 3, e)


def test_states_are_kept_whole_without_zero_and_by_shards_with_it():
    def owned(zero: int) -> int:
        plan = Plan(seq_len=128, global_batch=8, dp=8, ep=4, zero=zero)
        return owned_parameters(Share(MIXTRAL, plan, framework_profile("megatron-core"), 8), RankParameters(1001, 100))

    assert owned(0) == 1101
    assert owned(1) == 126 + 50  # one of 8 replicas, and one of the experts' 2


def test_a_bucket_has_at_least_one_layer_and_no_more_than_there_are():
    def layers(bucket_bytes: float, most: int) -> int:
        framework = replace(framework_profile("megatron-core"), bucket_bytes=bucket_bytes)
        return bucket_layers(Share(LLAMA, Plan(seq_len=128, global_batch=8, dp=8), framework, 8), False, most)

    each = LLAMA.layer_parameters().total * framework_profile("megatron-core").reduce_bytes
    assert [layers(1.0, 8), layers(3.1 * each, 8), layers(20.0 * each, 8)] == [1, 3, 8]
