"""Parameters of one rank: worked out by hand, and equal for a column of plans and for its single plans."""

from dataclasses import replace

from lumos.blocks.share import RankParameters, Share, bucket_layers, held_parameters, owned_parameters
from lumos.model import load_model
from lumos.plan.plan import OuterParts, Plan
from lumos.plan.profiles import framework_profile

LLAMA = load_model("llama3-8b")
MIXTRAL = load_model("mixtral-8x7b")


def test_one_stage_that_has_both_ends_holds_the_model():
    assert held_parameters(LLAMA, {False: LLAMA.layers}, OuterParts(True, True), 1, 1, 1).total == LLAMA.parameters
    tied = replace(LLAMA, tied=True)
    table = LLAMA.vocab * LLAMA.hidden
    assert held_parameters(tied, {}, OuterParts(False, True), 1, 1, 1).total == LLAMA.norm_parameters  # the embedding holds the table
    assert held_parameters(tied, {}, OuterParts(False, True), 2, 1, 1).total == LLAMA.norm_parameters + table  # the last stage holds a copy


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
