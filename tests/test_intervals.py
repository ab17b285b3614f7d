import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from lumos.intervals import clipped, either, union, within

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30)


def columns(pairs):
    start = np.array([s for s, _ in pairs], np.int64)
    return start, start + np.array([d for _, d in pairs], np.int64)


def points(pairs):
    """Every integer time that an interval covers, straight from the definition."""
    return {t for s, d in pairs for t in range(s, s + d)}


@given(INTERVALS, st.integers(0, 90), st.integers(0, 90))
def test_a_union_covers_each_moment_once(pairs, a, b):
    result = union(*columns(pairs))
    assert result.total == len(points(pairs))
    assert (result.end > result.start).all() and (result.start[1:] > result.end[:-1]).all()
    low, high = min(a, b), max(a, b)
    window = within(result, np.array([low]), np.array([high]))
    assert window.tolist() == [len(points(pairs) & set(range(low, high)))]


@given(INTERVALS, INTERVALS)
def test_either_is_the_union_of_both(a, b):
    assert either(union(*columns(a)), union(*columns(b))).total == len(points(a) | points(b))


@given(INTERVALS, st.integers(0, 90), st.integers(0, 90))
@example([(0, 2)], 1, 1)  # an empty window inside an interval
def test_what_is_clipped_lies_in_the_window(pairs, a, b):
    low, high = min(a, b), max(a, b)
    result = clipped(union(*columns(pairs)), low, high)
    assert {t for s, e in zip(result.start.tolist(), result.end.tolist(), strict=True) for t in range(s, e)} == points(pairs) & set(
        range(low, high)
    )
    assert (result.end > result.start).all() and (result.start[1:] > result.end[:-1]).all()
