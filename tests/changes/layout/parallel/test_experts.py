"""Experts on several replicas: which of them can be, and what a rank's part of the work takes."""

import pytest
from tests.changes.layout.test_replicated import job_of

from lumos.changes.changes import Changes
from lumos.changes.layout.parallel.experts import IMBALANCE, _check, _times, _with_experts
from lumos.changes.layout.rates import Rates
from lumos.changes.layout.rescale import model_ratio
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.errors import LumosError, UsageError
from lumos.operators.shaped import ShapedOperator, operations

A100 = load_cluster("a100-40gb")
BF16 = ("c10::BFloat16",) * 2


def grouped(*shapes):
    """A multiplication for eight experts."""
    return ShapedOperator("aten::_grouped_mm", (*shapes, (8,)), BF16)


@pytest.mark.parametrize(
    ("sizes", "error", "reason"),
    [
        ((3, 1, 8, 6, 0), UsageError, "8 experts cannot be shared equally"),
        ((4, 1, 8, 6, 0), UsageError, "of which the recording has 6; ask for a divisor of that"),
        ((2, 1, 8, 1, 0), UsageError, "of which the recording has 1"),
        ((2, 1, 8, 4, 3), LumosError, "the replicas share their parameters \\(zero = 3\\)"),
        ((2, 4, 2, 4, 0), LumosError, "every recorded rank has experts of its own"),
    ],
)
def test_what_cannot_be_shared_is_refused(sizes, error, reason):
    with pytest.raises(error, match=reason):
        _check(*sizes)


def test_experts_and_replicas_that_divide_are_taken():
    _check(4, 2, 4, 8, 0)


def test_a_job_without_experts_is_refused(tmp_path):
    with pytest.raises(LumosError, match="shows no experts whose weights are multiplied together"):
        answer_changes(*job_of(tmp_path, (512, 512), (512, 512)), Changes(parse_settings(["ep=2"])), force=True)


def in_two_experts(o):
    """By what the time of a multiplication for eight experts is multiplied where a rank has two of them."""
    return model_ratio(o, _with_experts(8, 2, o, o), A100.accelerator, A100.accelerator).best


@pytest.mark.parametrize("shapes", [((65536, 4096), (8, 4096, 8192)), ((4096, 65536), (65536, 8192))])
def test_large_groups_take_as_long_in_fewer_experts(shapes):
    """8,192 tokens for each of eight experts, or 32,768 for each of two: the arithmetic is the same."""
    assert in_two_experts(grouped(*shapes)) == pytest.approx(1.0, rel=0.05)


def test_small_groups_read_fewer_weights():
    """Sixteen tokens an expert: the time is that of reading the weights, a quarter of which is left."""
    assert in_two_experts(grouped((128, 4096), (8, 4096, 8192))) == pytest.approx(0.25, rel=0.15)


@pytest.mark.parametrize("shapes", [((128, 4096), (8, 4096, 8192)), ((4096, 128), (128, 8192))])
def test_a_rank_of_four_has_a_quarter_of_the_experts_for_as_many_tokens(shapes):
    """Two of eight matrices, and the ends of two groups of tokens; the tokens and their arithmetic are the same."""
    part = _with_experts(8, 2, grouped(*shapes), grouped(*shapes))
    assert part.shapes == (shapes[0], (2, *shapes[1][1:]) if len(shapes[1]) == 3 else shapes[1], (2,))
    multiplied = {operations(o.name, o.shapes, []) for o in (part, grouped(*shapes))}
    assert multiplied == {2 * 128 * 4096 * 8192}


def test_the_fullest_rank_is_in_the_interval():
    exchange, copied = _times(8 << 20, 4, Rates(A100.accelerator, A100, {}, None, stated=True))
    assert exchange.high >= exchange.best * (1 + IMBALANCE)
    assert (copied.low, copied.high) == (0, 2 * copied.best)
