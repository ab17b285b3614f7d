"""The first matching: operators by order, name and shapes, and the sharing out of what was measured."""

import numpy as np
import pytest

from lumos.scripted.match import in_two_rounds, same_sizes


def numbers(text):
    return np.array([ord(letter) for letter in text], np.int64)


def test_what_lies_between_exact_partners_is_aligned_by_name_alone():
    exact = numbers("abXcd"), numbers("abYcd")
    rough = numbers("abxcd"), numbers("abxcd")
    assert in_two_rounds(exact, rough).tolist() == [0, 1, 2, 3, 4]
    assert in_two_rounds(exact, (numbers("abxcd"), numbers("abzcd"))).tolist() == [0, 1, -1, 3, 4]


MASK, VALUES = ((4, 8), "bool"), ((4, 8), "float32")


@pytest.mark.parametrize(
    ("recorded", "same"),
    [((), True), ((MASK, VALUES), True), ((VALUES,), True), ((((4, 8), ""), VALUES), True), ((VALUES, MASK), False),
     ((((8, 8), "bool"), VALUES), False), ((MASK, ((4, 8), "bfloat16")), False), ((MASK, VALUES, VALUES), False)],
)  # fmt: skip
def test_a_recording_may_leave_out_what_stands_in_lists_and_its_types(recorded, same):
    assert same_sizes(recorded, (MASK, VALUES)) is same
