"""What the kernels of a changed job multiply, as its files say it: worked out by hand from the sizes of the changed model."""

from pathlib import Path

import numpy as np
import pytest

import lumos
from lumos.analyze.loop.steps import members
from lumos.chakra.gather import gather
from lumos.chakra.recorded import recorded_work
from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.vocabulary import DType

#: Six layers of GPT-2, 512 wide, with a feed-forward part of 2,048 and one table of 50,257 words for embedding and head; a process with a
#: sequence of 256 tokens, in fp32.
RECORDED = Path(__file__).parents[3] / "examples" / "foreign" / "GPT-2__fp32__host-bound"


@pytest.fixture(scope="module")
def base():
    job = lumos.read(str(RECORDED))
    return job, lumos.build(job)


def by_hand(*, layers=6, tokens=256, keys=256, share=1):
    """Operations of a step of a rank: twice for each weight and token in the forward pass and four times in the backward pass; of attention
    two products forward and five backward, of every token with every key. share: of how many ranks' layers it has one part."""
    head = 6 * tokens * 512 * 50257
    weights = 6 * tokens * 12 * 512 * 512
    attention = (2 + 5) * 2 * tokens * keys * 512
    return head + layers * (weights + attention) // share


def answered(base, *words):
    return answer_changes(*base, Changes(parse_settings(words)))


def operations(answer):
    """What the kernels of each step of the changed job multiply."""
    found = recorded_work(answer.graph, answer.recorded).operations
    owners = members(answer.graph)
    return {int(np.maximum(found[owners.tasks(part)], 0).sum()) for step in owners.job for part in step.parts}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cp=2",), by_hand(tokens=128)),
        (("cp=4", "seq=512"), by_hand(tokens=128, keys=512)),
        (("cp=2", "layers=3"), by_hand(tokens=128, layers=3)),
        (("precision=bf16",), by_hand()),
        (("tp=2",), by_hand(share=2)),
        (("tp=2", "micro_batch=4"), 4 * by_hand(share=2)),
        (("seq=512",), by_hand(tokens=512, keys=512)),
        (("dp=4",), by_hand()),
    ],
)
def test_a_step_multiplies_what_the_changed_model_does(base, words, expected):
    assert operations(answered(base, *words)) == {expected}


def test_under_autocast_multiplications_read_16_bits(base):
    half = answered(base, "precision=bf16")
    before, after = recorded_work(base[1], base[0]), recorded_work(half.graph, half.recorded)
    assert (before.dtype, after.dtype) == (DType.FP32, DType.BF16)


def test_the_set_of_a_changed_job_has_its_work(base, tmp_path):
    """Every task of the changed job is a node, in the steps that count and in those before them."""
    answer = answered(base, "cp=2", "layers=2")
    lumos.export(answer, chakra=tmp_path / "set")
    written = gather(lumos.read(tmp_path / "set")).operations
    steps, rest = divmod(int(written[written > 1].sum()), by_hand(tokens=128, layers=2))  # of what only moves bytes, 1 is written
    assert steps >= len(members(answer.graph).job)
    assert rest == 0
