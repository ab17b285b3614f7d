"""Arguments from the texts of a profiler's row."""

import json
from typing import Any

import pytest

from lumos.proxy.arguments import TensorSpec, plain_value, read_arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("None", None), ("True", True), ("-3", -3), ("0.", 0.0), ("1e-05", 1e-05), ("[1, -2]", [1, -2]), ("[]", []),
        ("[True, False]", [True, False]), ("tanh", "tanh"), ("inf", {"float": "inf"}), ("-nan", {"float": "nan"}), ("1_000", "1_000"),
    ],
)  # fmt: skip
def test_plain_values_are_read_from_their_printed_form(text: str, value: Any) -> None:
    assert plain_value(text) == value


def test_tensors_keep_their_strides_and_are_contiguous_where_none_are_given() -> None:
    types, dims = json.dumps(["float", "long int"]), json.dumps([[2, 3], [5]])
    strided = read_arguments(types, dims, json.dumps([[1, 2], [1]]), json.dumps(["", ""]))
    assert strided == [TensorSpec("float32", (2, 3), (1, 2)), TensorSpec("int64", (5,), (1,))]
    assert read_arguments(types, dims, None, None)[0] == TensorSpec("float32", (2, 3), (3, 1))


def test_lists_of_tensors_are_read_and_unrecorded_ones_refused() -> None:
    one = read_arguments('["TensorList"]', "[[[2],[3]]]", None, '[""]')
    assert [spec.shape for spec in one[0]] == [(2,), (3,)]
    assert read_arguments('["TensorList"]', "[[]]", None, '[""]') is None


@pytest.mark.parametrize(
    "texts", [("[", "[]"), ("{}", "[]"), ('["float"]', "[]"), ('["float"]', '[["x"]]'), ('["float"]', "[[-1]]"), ("[3]", "[[]]")]
)
def test_contradictory_texts_are_refused(texts: tuple[str, str]) -> None:
    assert read_arguments(*texts, None, None) is None
