"""Two sequences of names are aligned by their longest common subsequence, the leftmost of several."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.operators import sequences
from lumos.operators.sequences import align_names

NAMES = st.lists(st.integers(0, 2), max_size=24).map(lambda names: np.array(names, np.int64))


def names(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


def by_table(a, b):
    partner = np.full(len(a), -1, np.int64)
    sequences._walk_table(a, b, partner, 0)
    return partner


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("abcd", "abcd", [0, 1, 2, 3]),
        ("abxcd", "abcd", [0, 1, -1, 2, 3]),
        ("abcd", "abxcd", [0, 1, 3, 4]),
        ("aab", "ab", [0, -1, 1]),
        ("ab", "aab", [0, 2]),
        ("abc", "xyz", [-1, -1, -1]),
        ("", "abc", []),
    ],
)
def test_pairs_that_a_person_can_align(a, b, expected):
    assert align_names(names(a), names(b)).tolist() == expected


@given(NAMES, NAMES)
def test_along_runs_and_by_the_table_the_answer_is_the_same(a, b):
    if not len(a) or not len(b):
        return
    reached = sequences._along_runs(a, b, len(a) + len(b))
    partner = np.full(len(a), -1, np.int64)
    sequences._walk_runs(a, b, reached, partner, 0)
    expected = by_table(a, b)
    assert partner.tolist() == expected.tolist()
    assert len(a) + len(b) - 2 * int((expected >= 0).sum()) == len(reached) - 1


def test_more_differences_than_allowed_are_left_to_the_table():
    assert sequences._along_runs(names("abcabc"), names("abcxabc"), 1)
    assert not sequences._along_runs(names("abcabc"), names("abxxabc"), 1)


def test_long_sequences_with_few_differences_fill_no_table(monkeypatch):
    monkeypatch.setattr(sequences, "_walk_table", lambda *_: pytest.fail("the table was filled"))
    a = np.random.default_rng(0).integers(0, 50, 60_000)
    b = np.delete(a, [100, 30_000, 59_000])
    partner = align_names(a, b)
    assert np.flatnonzero(partner < 0).shape == (3,)
    assert (a[partner >= 0] == b[partner[partner >= 0]]).all()
