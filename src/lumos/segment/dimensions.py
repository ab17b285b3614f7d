"""The sizes of a measured model, read from the shapes of its operators; and what those shapes become under other sizes.

Every dimension of a shape is one of the sizes or a product of them (tokens = micro-batch · sequence, 3 · hidden, …). Its value
and its position decide which: leading dimensions are batch and sequence, the others features. Inside layers the features are
hidden, heads and feed-forward width; outside, vocabulary and hidden. A dimension that matches no size stays as it is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.cost.operators import elements
from lumos.segment.batch import batch, batched, batched_product, convolution_work, is_recurrent
from lumos.segment.products import ShapedOperator, factors, multiplying, product
from lumos.segment.units import NODE
from lumos.trace.table import Category, Int64, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.cost.operators import Shape
    from lumos.segment.products import FactorPlaces

_ATTENTION = re.compile(r"aten::(_scaled_dot_product|scaled_dot_product|_?flash_attention|_efficient_attention|_cudnn_attention)")

#: Operators that models apply to activations and their gradients, not to weights, even where a tensor has the shape of one.
_OF_ACTIVATIONS = re.compile(
    r"aten::((relu6?|leaky_relu|threshold|gelu|silu|elu|tanh|sigmoid|hardtanh|hardswish|mish|softplus|dropout|native_dropout|sum)_?"
    r"|\w+_backward(_data)?)$"
)

#: Tokens from which a number of elements that is a multiple of them is taken to hold a value, or several, for each.
_FLAT = 64


class Sizes(NamedTuple):
    """Sizes of one rank's part of the model, 0 where not found. heads: of the queries; kv_heads: of keys and values."""

    micro_batch: int = 0
    seq: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 0


class Shapes:
    """The operators of a trace by row; equal ones are parsed once.

    operators: the distinct ones. of_row: int32, for every row of the trace its index in `operators`, -1 without shapes.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.of_row = np.full(len(trace), -1, np.int32)
        self.operators: tuple[ShapedOperator, ...] = ()
        column = trace.args.get("Input Dims")
        if column is None or not len(column.rows):
            return
        types = trace.dense("Input type")[column.rows]
        self._multiplying = multiplying(trace)
        keys = np.stack((trace.name[column.rows].astype(np.int64), column.values.astype(np.int64), types))
        order = np.lexsort(keys)
        new = np.append(True, (np.diff(keys[:, order], axis=1) != 0).any(axis=0))
        self.of_row[column.rows[order]] = np.cumsum(new) - 1
        self.operators = tuple(self._parse(*key) for key in keys[:, order[new]].T.tolist())

    def __getitem__(self, row: int) -> ShapedOperator | None:
        """None where the row has no shapes."""
        index = int(self.of_row[row])
        return self.operators[index] if index >= 0 else None

    def rows(self) -> Int64:
        """Rows of operators with shapes, in file order."""
        found: Int64 = np.flatnonzero((self.of_row >= 0) & (self.trace.category == Category.OPERATOR))
        return found

    def own(self) -> Int64:
        """Rows of the multiplications and look-ups that no other of them contains, which launch the kernels. PyTorch's DTensor dispatches
        an operator on what ranks share again on the rank's own part: a row of the whole holds one of the part."""
        working = np.array([o.name == "aten::embedding" or factors(o) is not None for o in self.operators] or [False], bool)
        trace, rows = self.trace, self.rows()
        rows = rows[working[self.of_row[rows]]]
        order = rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))]
        lane, start, end = trace.lane[order], trace.start[order], trace.start[order] + trace.duration[order]
        holds = np.append((lane[1:] == lane[:-1]) & (start[1:] < end[:-1]), False)[: len(order)]
        found: Int64 = order[~holds]
        return found

    def counted(self, rows: Int64 | None = None) -> Iterator[tuple[ShapedOperator, int]]:
        """Every distinct operator, with the number of its rows among `rows` (default: all)."""
        counts = np.bincount(self.of_row[self.rows() if rows is None else rows], minlength=len(self.operators))
        return ((o, count) for o, count in zip(self.operators, counts.tolist(), strict=True) if count)

    def _parse(self, name: int, dims: int, types: int) -> ShapedOperator:
        values = json.loads(self.trace.strings[dims])
        kinds = list(map(str, json.loads(self.trace.strings[types]))) if types >= 0 else []
        kinds += [""] * (len(values) - len(kinds))
        inputs = [(shape, kind) for value, kind in zip(values, kinds, strict=False) for shape in _shapes(value)]
        shapes, dtypes = tuple(shape for shape, _ in inputs), tuple(kind for _, kind in inputs)
        return ShapedOperator(self.trace.strings[name], shapes, dtypes, name in self._multiplying)


def _shapes(value: object) -> list[Shape]:
    """The shapes of one input: one of a tensor, one for each tensor of a list."""
    if not isinstance(value, list) or all(isinstance(v, int) for v in value):
        return [tuple(value) if isinstance(value, list) else ()]
    return [tuple(v) if isinstance(v, list) and all(isinstance(x, int) for x in v) else () for v in value]


def is_attention(name: str) -> bool:
    """Whether an operator computes a whole attention."""
    return bool(_ATTENTION.match(name))


def positions_first(name: str) -> bool:
    """Whether an attention operator takes [batch, position, head, width], and not [batch, head, position, width]."""
    return bool(re.search(r"_(flash|efficient)_attention_(forward|backward)", name)) and "scaled_dot_product" not in name


def sizes(trace: Trace) -> Sizes:
    """Read the sizes from the shapes of a rank's operators."""
    attention: Counter[tuple[int, int, int, int, int]] = Counter()
    tables: Counter[tuple[Shape, Shape]] = Counter()
    products: Counter[tuple[int, int, int]] = Counter()
    shapes = Shapes(trace)
    for o, count in shapes.counted(_forward(trace, shapes.rows())):
        if is_attention(o.name) and "backward" not in o.name and len(o.shapes) > 1 and len(o.shapes[0]) == 4:
            q, k = o.shapes[0], o.shapes[1]
            heads, length = (2, 1) if positions_first(o.name) else (1, 2)
            attention[q[0], q[length], q[heads], k[heads], q[3]] += count
    for o, count in shapes.counted(_forward(trace, shapes.own())):
        found = product(o)
        if found is not None:
            products[found.m, found.n, found.k] += count
        elif len(o.shapes[0]) == 2:
            tables[o.shapes[0], o.shapes[1]] += count
    shown = _sizes(attention, tables, products)
    shown = shown._replace(ffn=_of_experts(shapes, shown.hidden) or shown.ffn)
    if not shown.micro_batch:
        shown = shown._replace(micro_batch=batch(shapes.counted()))
    plain = not attention and not tables and not any(convolution_work(o) or is_recurrent(o.name) for o, _ in shapes.counted())
    return shown._replace(hidden=_width(products, shown.micro_batch)) if plain else shown


def _width(products: Counter[tuple[int, int, int]], rows: int) -> int:
    """The width of a model of linear layers alone: that of most of the results that the next layer takes in; 0 where none is."""
    forward = {(n, k): c for (m, n, k), c in products.items() if m == rows}
    taken = {k for _, k in forward}
    widths: Counter[int] = Counter()
    for (n, _), count in forward.items():
        widths[n] += count if n in taken else 0
    found = widths.most_common(2)
    return found[0][0] if found and found[0][1] and (len(found) < 2 or found[1][1] < found[0][1]) else 0


def _forward(trace: Trace, rows: Int64) -> Int64:
    """Those of rows that are in no node of a backward pass, whose multiplications have the sizes of others; all, if all are in one."""
    nodes = np.flatnonzero(trace.is_any(Category.OPERATOR) & trace.named(NODE.match))
    outside = rows[innermost(trace, nodes, rows) < 0]
    return outside if len(outside) else rows


def _of_experts(shapes: Shapes, hidden: int) -> int:
    """The feed-forward width of experts that one operator multiplies by, [experts, in, out]; 0 where there are none. Their first matrices
    are twice as wide where they have a gate, and in a backward pass all are transposed, so it is the smallest that fits."""
    matrices = [o.shapes[1] for o, _ in shapes.counted() if "grouped_mm" in o.name and len(o.shapes) > 1 and len(o.shapes[1]) == 3]
    found = {depth for _, depth, width in matrices if width == hidden}
    out_of_hidden = {width for _, depth, width in matrices if depth == hidden}
    return min((x for x in found if {x, 2 * x} & out_of_hidden), default=0)


def _sizes(
    attention: Counter[tuple[int, int, int, int, int]], tables: Counter[tuple[Shape, Shape]], products: Counter[tuple[int, int, int]]
) -> Sizes:
    batch = seq = heads = kv = head_dim = hidden = vocab = 0
    if attention:
        batch, seq, heads, kv, head_dim = attention.most_common(1)[0][0]
    if tables:
        table, index = max(tables, key=lambda t: t[0][0])
        vocab, hidden = table
        if len(index) == 2 and not batch:
            batch, seq = index
    tokens = batch * seq
    forward = Counter({(n, k): c for (m, n, k), c in products.items() if m == tokens})
    if not hidden and heads:
        width = heads * head_dim
        into = Counter({n: c for (n, k), c in forward.items() if k == width})
        hidden = into.most_common(1)[0][0] if into else width
    attended = {hidden, heads * head_dim, 3 * hidden, (heads + 2 * kv) * head_dim, kv * head_dim, vocab}
    up = {n for n, k in forward if k == hidden}
    inner = [x for n, x in forward if n == hidden and x not in attended - {vocab} and (x in up or 2 * x in up)]
    ffn = max(inner, key=lambda x: forward[hidden, x], default=0)
    if not ffn and heads * head_dim not in (0, hidden) and forward[hidden, hidden]:
        ffn = hidden  # as wide as the model, which no matrix of the attention is on both sides
    calls = attention.most_common(1)[0][1] if attention else 0
    kv = _keys(forward, hidden, heads, head_dim, ffn, calls) if kv == heads else kv
    if not vocab and hidden:
        out = [n for (n, k) in forward if k == hidden and n not in (*attended, ffn, 2 * ffn) and n > hidden]
        vocab = max(out, default=0)
    return Sizes(batch, seq, hidden, heads, kv, head_dim, ffn, vocab)


def _keys(forward: Counter[tuple[int, int]], hidden: int, heads: int, head_dim: int, ffn: int, calls: int) -> int:
    """The heads of keys and values where attention reads them repeated for every head of the queries. Two narrower projections of the
    residual stream for each of its calls show them. calls: rows of attention, of which a call has up to three inside each other."""
    narrow = ((n, c) for (n, k), c in forward.items() if k == hidden and 0 < n < heads * head_dim and n != ffn)
    found = (n // head_dim for n, c in narrow if n % head_dim == 0 and c in (2 * calls, calls, 2 * calls // 3))
    return next((kv for kv in found if heads % kv == 0), heads)


class Resize:
    """Changes the shapes of a model with sizes `old` to those that it has with sizes `new`. weights: shapes known to be of weights."""

    def __init__(self, old: Sizes, new: Sizes, weights: frozenset[Shape] = frozenset()) -> None:
        self.old, self.new, self.weights = old, new, weights
        pairs = _features(old, new)
        self._inside = {a: b for a, b in reversed([*pairs["layer"], *pairs["outer"]]) if a}
        self._outside = {a: b for a, b in reversed([*pairs["outer"], *pairs["layer"]]) if a}

    def operator(self, o: ShapedOperator, in_layer: bool, of_weights: bool = False) -> ShapedOperator:
        """The operator with its new shapes. in_layer: it belongs to a layer. of_weights: its inputs are only weights (an optimizer's
        operator)."""
        found = factors(o)
        if of_weights:
            shapes = tuple(self.weight(s, in_layer) for s in o.shapes)
        elif found is not None:
            shapes = self._product(o, found, in_layer)
        elif is_attention(o.name):
            shapes = tuple(self._attended(s) if len(s) > 2 else s for s in o.shapes)
        else:
            scores = "softmax" in o.name or "masked_fill" in o.name
            shapes = tuple(self(s, in_layer, scores, activation=self._pointwise(o)) for s in o.shapes)
        return o._replace(shapes=shapes)

    def weight(self, shape: Shape, in_layer: bool) -> Shape:
        """The new shape of a weight: all dimensions are features, but for the rows of a table of positions."""
        features = self._inside if in_layer else self._outside
        rest = tuple(features.get(x, x) for x in shape)
        old = self.old
        if in_layer and self.square and shape == (old.hidden, old.ffn):
            return self.new.hidden, self.new.ffn
        if not in_layer and len(shape) == 2 and shape[0] == old.seq and shape[1] == old.hidden and old.seq not in (old.hidden, old.vocab):
            return self.new.seq, rest[1]
        return rest

    def __call__(self, shape: Shape, in_layer: bool, scores: bool = False, activation: bool = False) -> Shape:
        """The new shape of an activation. scores: its last two dimensions are sequences (attention's scores). activation: it is no weight,
        even if it has the shape of one."""
        if not shape:
            return shape
        old, new, n = self.old, self.new, len(shape)
        features = self._inside if in_layer else self._outside
        rest = tuple(features.get(x, x) for x in shape)
        b, s, tokens = old.micro_batch, old.seq, old.micro_batch * old.seq
        if not s:
            return rest if shape in self.weights and not activation else self._without_sequence(shape, rest)
        if n >= 2 and shape[:2] == (b, s):
            return (new.micro_batch, new.seq, *self._split(shape[2:], rest[2:]))
        if n >= 2 and shape[:2] == (s, b) and n == 3:
            return (new.seq, new.micro_batch, *rest[2:])
        if n == 2 and shape == (b, s + 1):
            return new.micro_batch, new.seq + 1
        if n == 4 and shape[0] == b and s in shape[1:]:
            return (new.micro_batch, *self._heads(shape[1:], scores))
        if n == 5 and s in shape and b in shape[:2]:
            lead = shape.index(b)
            rest = self._heads(shape[lead + 1 :], scores)
            return (*shape[:lead], new.micro_batch, *(x if x == 3 else y for x, y in zip(shape[lead + 1 :], rest, strict=True)))
        if n >= 3 and shape[0] == 1 and s in shape[1:]:  # shared by the whole batch, like a table of positions
            return (1, *self._heads(shape[1:], scores))
        if n == 3 and shape[0] == b * old.heads and s in shape[1:]:
            return (new.micro_batch * new.heads, *self._heads(shape[1:], scores))
        if tokens in shape and n <= 2:
            at = shape.index(tokens)
            return (*rest[:at], new.micro_batch * new.seq, *rest[at + 1 :])
        if not in_layer and n <= 2 and shape[0] == s and shape[0] not in (old.hidden, old.vocab):
            return (new.seq, *rest[1:])
        if n == 1 and tokens >= _FLAT and shape[0] % tokens == 0 and shape not in self.weights and rest == shape:  # flattened
            return (shape[0] // tokens * new.micro_batch * new.seq,)
        return rest if rest != shape else self._batched_only(shape)

    def _pointwise(self, o: ShapedOperator) -> bool:
        """Whether an operator works on activations alone: it is one that does, and all of its tensors that have a size are alike."""
        return bool(_OF_ACTIVATIONS.match(o.name)) and len({s for s in o.shapes if s and elements(s) > 1}) == 1

    def _without_sequence(self, shape: Shape, rest: Shape) -> Shape:
        """The new shape of an activation of a model without sequences: its batch, and other dimensions as in `rest`, its new features."""
        batch_of = self.old.micro_batch
        shown = batched(shape, batch_of, self.new.micro_batch, frozenset())
        first = shown[:1] if batch_of and shape[0] % batch_of == 0 else rest[:1]
        return (*first, *(y if y != x else z for x, y, z in zip(shape[1:], shown[1:], rest[1:], strict=True)))

    def _batched_only(self, shape: Shape) -> Shape:
        return batched(shape, self.old.micro_batch, self.new.micro_batch, self.weights)

    def _product(self, o: ShapedOperator, found: FactorPlaces, in_layer: bool) -> tuple[Shape, ...]:
        """New shapes of a multiplication. One of its dimensions counts tokens: the first of rows, columns and depth that has their
        value. Where a feature has the same value, the choice between the two does not change the amount of arithmetic."""
        first, second, transposed = found
        a, b = o.shapes[first], o.shapes[second]
        if len(b) != 2:
            return self._batched(o, in_layer, first, second)
        out = [self.weight(s, in_layer) for s in o.shapes]
        square = in_layer and self.square
        if len(a) > 2:
            out[first] = self(a, in_layer)
            if square and b == (self.old.hidden, self.old.hidden):
                wide = self.new.hidden, self.new.ffn
                out[second] = wide[::-1] if transposed else wide
            return tuple(out)
        tokens, new_tokens = self.old.micro_batch * self.old.seq, self.new.micro_batch * self.new.seq
        if not self.old.seq and self.old.hidden != self.new.hidden:
            tokens, new_tokens = self.old.micro_batch, self.new.micro_batch
        rows, depth, columns = a[0], a[1], b[0] if transposed else b[1]
        if not tokens or tokens not in (rows, depth, columns):
            resized = tuple(self.weight(s, in_layer) for s in o.shapes)
            return batched_product(o._replace(shapes=resized), self.old.micro_batch, self.new.micro_batch, self.weights)
        m, k, n = out[first][0], out[first][1], out[second][0] if transposed else out[second][1]
        if rows == tokens:
            m, k, n = new_tokens, *self._both(square, (depth, columns), (k, n))
        elif columns == tokens:
            m, k, n = *self._both(square, (rows, depth), (m, k)), new_tokens
        else:
            m, n = self._both(square, (rows, columns), (m, n))
            k = new_tokens
        out[first], out[second] = (m, k), (n, k) if transposed else (k, n)
        return tuple(out)

    @property
    def square(self) -> bool:
        """Whether the feed-forward part is as wide as the model, and nothing else in a layer: a matrix of two such dimensions is its."""
        old = self.old
        return 0 < old.hidden == old.ffn != old.heads * old.head_dim > 0

    def _both(self, square: bool, were: Shape, are: Shape) -> Shape:
        """The two features of a multiplication, in either order where both are those of a square matrix."""
        return (self.new.hidden, self.new.ffn) if square and were == (self.old.hidden, self.old.ffn) else are

    def _batched(self, o: ShapedOperator, in_layer: bool, first: int, second: int) -> tuple[Shape, ...]:
        """New shapes of a multiplication per head: the scores, or their product with the values. Where sequence and head width are
        equal, the two cannot be distinguished, but both do the arithmetic of sequence · width · sequence."""
        a, b, old, new = o.shapes[first], o.shapes[second], self.old, self.new
        if a != b or set(a[1:]) != {old.seq} or old.seq != old.head_dim or a[0] != old.micro_batch * old.heads:
            return tuple(self(s, in_layer) for s in o.shapes)
        out = list(o.shapes)
        heads = new.micro_batch * new.heads
        out[first], out[second] = (heads, new.seq, new.head_dim), (heads, new.head_dim, new.seq)
        return tuple(out)

    def _attended(self, shape: Shape) -> Shape:
        """New shape of queries, keys, values, their gradients, and the sums of attention. Batch comes first; with four dimensions the
        last is the width of a head."""
        wide = len(shape) == 4
        middle = tuple(self._head(x, False) for x in shape[1 : 3 if wide else len(shape)])
        return (self.new.micro_batch if shape[0] == self.old.micro_batch else shape[0], *middle, *(self._head(x, True) for x in shape[3:]))

    def _heads(self, shape: Shape, scores: bool) -> Shape:
        """Dimensions of a tensor split by heads. The last is the width of a head, or a sequence where the tensor holds scores."""
        return (*(self._head(x, False) for x in shape[:-1]), self._head(shape[-1], not scores))

    def _head(self, x: int, width: bool) -> int:
        """A dimension of a tensor split by heads. width: take it for the head width where sequence and head width are equal."""
        old, new = self.old, self.new
        table = {old.kv_heads: new.kv_heads, old.heads: new.heads, old.head_dim: new.head_dim, old.seq: new.seq}
        if width:
            table[old.head_dim] = new.head_dim
        return table.get(x, x)

    def _split(self, shape: Shape, rest: Shape) -> Shape:
        """The dimensions after batch and sequence: features, or heads and their width."""
        return rest if len(shape) == 1 else self._heads(shape, False) if shape else ()


def _features(old: Sizes, new: Sizes) -> dict[str, list[tuple[int, int]]]:
    def qkv(s: Sizes) -> int:
        return (s.heads + 2 * s.kv_heads) * s.head_dim

    layer = [
        (old.hidden, new.hidden),
        (old.ffn, new.ffn),
        (3 * old.hidden, 3 * new.hidden),
        (qkv(old), qkv(new)),
        (old.heads * old.head_dim, new.heads * new.head_dim),
        (old.kv_heads * old.head_dim, new.kv_heads * new.head_dim),
        (2 * old.ffn, 2 * new.ffn),
        (0 if old.ffn else 4 * old.hidden, 4 * new.hidden),  # the four gates of an LSTM, side by side
    ]
    return {"layer": layer, "outer": [(old.vocab, new.vocab), (old.hidden, new.hidden)]}
