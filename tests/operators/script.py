"""A small language model as PyTorch would record it: the operators that its layers call, forward and backward, with their input shapes.

It is drawn by hand, so that every axis is known: `Model` has a number for each size, and two models of different sizes call the same
operators in the same order.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from lumos.operators.calls import BACKWARD_NODE, GATHERS, OperatorCall


class Model(NamedTuple):
    batch: int = 2
    seq: int = 16
    heads: int = 2
    width: int = 4
    hidden: int = 10
    inner: int = 12
    vocab: int = 40


@dataclass
class Script:
    """The calls, and those that a backward pass undoes."""

    calls: list[OperatorCall] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    sequence: int = 0

    def call(self, name, *shapes, values=(), node=False, forward=True, sequence=-1, strides=()):
        if node:
            self.sequence += 1
            sequence = self.sequence
        inputs = tuple((tuple(shape),) if shape else () for shape in shapes)
        texts = tuple(map(str, (*[""] * (len(shapes) - len(values)), *values))) if len(values) < len(shapes) else tuple(map(str, values))
        parent = self.parents[-1] if self.parents else -1
        self.calls.append(OperatorCall(name, inputs, frozenset(), texts, parent, sequence, forward, strides))
        return len(self.calls) - 1

    def view(self, shape, sizes, name="aten::view"):
        return self.call(name, shape, (), values=("", list(sizes)), node=True)

    def linear(self, x, out, *, bias=True):
        """A linear layer, [..., in] to [..., out]; returns the number of its multiplication."""
        *lead, depth = x
        rows = 1
        for size in lead:
            rows *= size
        self.parents.append(self.call("aten::linear", x, (out, depth), (out,) if bias else ()))
        self.view(x, (rows, depth))
        self.call("aten::t", (out, depth), node=True)
        found = self.call("aten::addmm", (out,), (rows, depth), (depth, out), node=True)
        self.view((rows, out), (*lead, out))
        self.parents.pop()
        return found

    def layer(self, m):
        """Attention and a feed-forward part, each added to the stream; returns the numbers of the multiplications by name."""
        stream, b, s = (m.batch, m.seq, m.hidden), m.batch, m.seq
        found = {}
        for name in ("queries", "keys", "values"):
            found[name] = self.linear(stream, m.heads * m.width)
            self.view((b, s, m.heads * m.width), (b, s, m.heads, m.width))
            self.call("aten::transpose", (b, s, m.heads, m.width), (), (), values=("", 1, 2), node=True)
        found["attention"] = self.call("aten::_scaled_dot_product_flash_attention", *[(b, m.heads, s, m.width)] * 3, node=True)
        self.call("aten::transpose", (b, m.heads, s, m.width), (), (), values=("", 1, 2), node=True)
        self.view((b, s, m.heads, m.width), (b, s, m.heads * m.width), "aten::reshape")
        found["out"] = self.linear((b, s, m.heads * m.width), m.hidden)
        found["added"] = self.call("aten::add", stream, stream, node=True)
        found["up"] = self.linear(stream, m.inner)
        self.call("aten::gelu", (b, s, m.inner), node=True)
        found["down"] = self.linear((b, s, m.inner), m.hidden)
        self.call("aten::add", stream, stream, node=True)
        return found

    def backward(self, of, m_rows, out, depth):
        """The node of the backward pass of a linear layer's multiplication, and of its weight; returns its two multiplications."""
        sequence = self.calls[of].sequence
        self.parents.append(self.call(f"{BACKWARD_NODE}: AddmmBackward0", sequence=sequence, forward=False))
        self.parents.append(self.call("AddmmBackward0", (m_rows, out), sequence=sequence, forward=False))
        data = self.call("aten::mm", (m_rows, out), (out, depth))
        weight = self.call("aten::mm", (out, m_rows), (m_rows, depth))
        self.parents.pop()
        self.parents.pop()
        self.parents.append(self.call(f"{BACKWARD_NODE}: {GATHERS}", forward=False))
        self.call(GATHERS, (out, depth), forward=False)
        self.parents.pop()
        return data, weight

    def shared(self, of, shape):
        """Say that the gradient of what the call `of` takes in is added to another one: it has another use behind it."""
        self.parents.append(self.call(f"{BACKWARD_NODE}: SomeBackward0", sequence=self.calls[of].sequence, forward=False))
        self.call("aten::add", shape, shape)
        self.parents.pop()


def language_model(m, layers=4):
    """The calls of a step, and the numbers of each layer's multiplications."""
    script = Script()
    script.call("aten::embedding", (m.vocab, m.hidden), (m.batch, m.seq), node=True)
    found = [script.layer(m) for _ in range(layers)]
    script.linear((m.batch, m.seq, m.hidden), m.vocab)
    rows, stream, wide = m.batch * m.seq, (m.batch, m.seq, m.hidden), m.heads * m.width
    for numbers in reversed(found):
        for name, out, depth in (("down", m.hidden, m.inner), ("up", m.inner, m.hidden), ("out", m.hidden, wide)):
            numbers[f"{name} backward"] = script.backward(numbers[name], rows, out, depth)
        for name in ("queries", "keys", "values"):
            script.backward(numbers[name], rows, wide, m.hidden)
        for name in ("up", "queries", "keys", "values"):  # the stream that these read is read again behind them
            script.shared(numbers[name] - 2, stream)
    undone = {call.sequence for call in script.calls if call.name.startswith(BACKWARD_NODE)}
    for sequence in range(script.sequence, 0, -1):
        if sequence not in undone:
            script.call(f"{BACKWARD_NODE}: SomeBackward0", sequence=sequence, forward=False)
    return tuple(script.calls), found
