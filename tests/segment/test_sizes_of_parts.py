"""Sizes of a rank's part, where the recording has rows of the whole as well."""

from __future__ import annotations

import json

import pytest

from lumos.segment.dimensions import positions_first, sizes
from lumos.trace import read

#: Two sequences of 8 tokens, a model 64 wide, of whose 4 heads of 16 and 2 of keys, and of whose 256 of feed-forward, a rank has half.
TOKENS, HIDDEN = 16, 64
PARTS = {"queries": (32, 64), "keys": (16, 64), "values": (16, 64), "out": (64, 32), "up": (128, 64), "down": (64, 128)}
WHOLE = {"queries": (64, 64), "keys": (32, 64), "values": (32, 64), "out": (64, 64), "up": (256, 64), "down": (64, 256)}


def rows(at, end, *named):
    """Rows inside each other, the outermost first: names and input shapes."""
    for depth, (name, dims) in enumerate(named):
        args = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        yield {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at + depth, "dur": end - 2 * depth, "args": args}


def recording(tmp_path, attended, parts=PARTS):
    """A layer as DTensor runs it, forward and, where parts are given, the gradients of its inputs. attended: the rows of its attention."""
    events, at = [], 0
    for name, (n, k) in parts.items():
        wn, wk = WHOLE[name]
        events += rows(
            at,
            20,
            ("aten::linear", [[2, 8, wk], [wn, wk]]),
            ("aten::mm", [[TOKENS, wk], [wk, wn]]),
            ("aten::mm", [[TOKENS, k], [k, n]]),
        )
        at += 40
        if name == "values":
            events += rows(at, 20, *attended)
            at += 40
    for n, k in parts.values() if parts is not PARTS else ():
        node = "autograd::engine::evaluate_function: MmBackward0"
        events += rows(at, 20, (node, []), ("aten::mm", [[TOKENS, n], [n, k]]))
        at += 40
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read(str(path)).traces[0]


@pytest.mark.parametrize("stem", ["flash", "efficient"])
def test_sizes_are_those_of_the_rows_that_launch(tmp_path, stem):
    """Keys and values are repeated for both heads of the queries before the attention, whose innermost row has positions first."""
    outer = [[2, 2, 8, 16]] * 3
    inner = [[2, 8, 2, 16]] * 3
    found = sizes(
        recording(tmp_path, [(f"aten::_scaled_dot_product_{stem}_attention", outer), (f"aten::_{stem}_attention_forward", inner)])
    )
    assert (found.micro_batch, found.seq, found.hidden) == (2, 8, 64)
    assert (found.heads, found.kv_heads, found.head_dim, found.ffn) == (2, 1, 16, 128)


def test_a_feed_forward_part_as_wide_as_the_model_is_not_taken_for_the_keys(tmp_path):
    """The gradient of the keys' input multiplies by a matrix that leads from their width to the model's, as a feed-forward part's does."""
    parts = PARTS | {"up": (64, 64), "down": (64, 64)}
    found = sizes(recording(tmp_path, [("aten::_scaled_dot_product_flash_attention", [[2, 2, 8, 16]] * 3)], parts))
    assert (found.hidden, found.kv_heads, found.ffn) == (64, 1, 64)


def test_only_the_innermost_operators_of_attention_have_positions_first():
    assert positions_first("aten::_flash_attention_backward")
    assert positions_first("aten::_efficient_attention_forward")
    assert not positions_first("aten::_scaled_dot_product_flash_attention")
    assert not positions_first("aten::_scaled_dot_product_efficient_attention_backward")
