"""Rows of a drawn step that show which axis is which: views of tensors, and sums of the stream. They launch nothing."""

from typing import NamedTuple


class View(NamedTuple):
    """An operator's name, the shapes of its inputs and the values of its arguments."""

    name: str
    dims: list
    values: list


def apart(rows):
    """The rows of a drawn step that are no views, each with the views between it and the next."""
    out = []
    for row in rows:
        (out[-1][1] if isinstance(row, View) else out).append(row if isinstance(row, View) else (row, []))
    return out


def events(views, at, step=0.5):
    """The views from `at` us on, one every `step` us."""
    for i, each in enumerate(views):
        args = {"Input Dims": each.dims, "Concrete Inputs": each.values, "Input type": ["c10::BFloat16"] * len(each.dims)}
        yield {"ph": "X", "cat": "cpu_op", "name": each.name, "pid": 0, "tid": 1, "ts": at + step * i, "dur": 0.8 * step, "args": args}


def view(shape, sizes):
    return View("aten::view", [shape, []], ["", str(list(sizes))])


def transpose(shape):
    """Positions and heads change places."""
    return View("aten::transpose", [shape, [], []], ["", "1", "2"])


def split(shape, sizes):
    """A tensor in parts along its last axis."""
    return View("aten::split_with_sizes", [shape, [], []], ["", str(list(sizes)), "-1"])


def halves(shape):
    """[batch, heads, positions, width] as two halves of the positions."""
    return View("aten::split", [shape, [], []], ["", str(shape[2] // 2), "2"])


def added(*shape):
    """The residual sum: what a part of a layer gives is added to the stream."""
    return View("aten::add", [list(shape), list(shape), []], ["", "", "1"])


def into_heads(batch, seq, heads, width, parts=1):
    """What a projection gives, [tokens, heads * parts * width], as so many tensors [batch, heads, seq, width]."""
    yield view([batch * seq, heads * parts * width], [batch, seq, heads, parts * width])
    if parts > 1:
        yield split([batch, seq, heads, parts * width], [width] * parts)
    for _ in range(parts):
        yield transpose([batch, seq, heads, width])


def into_three(batch, seq, heads, width):
    """The same of queries, keys and values together, [tokens, 3 * heads * width]."""
    yield split([batch * seq, 3 * heads * width], [heads * width] * 3)
    for _ in range(3):
        yield from into_heads(batch, seq, heads, width)


def out_of_heads(batch, seq, heads, width):
    """What attention gives, as the next projection takes it."""
    yield transpose([batch, heads, seq, width])
    yield view([batch, seq, heads, width], [batch * seq, heads * width])
