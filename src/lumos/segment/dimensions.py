"""The sizes of a measured model, read from the shapes of its operators.

Multiplications, attention and tables of embeddings show them by the places of their dimensions (`segment.resized` says what shapes become
under other sizes).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.segment.batch import batch, convolution_work
from lumos.segment.products import Product, ShapedOperator, factors, multiplying, product
from lumos.segment.recurrence import is_recurrent
from lumos.segment.units import NODE
from lumos.trace.once import once_a_trace
from lumos.trace.table import Category, Int64, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumos.cost.operators import Shape

_ATTENTION = re.compile(r"aten::(_scaled_dot_product|scaled_dot_product|_?flash_attention|_efficient_attention|_cudnn_attention)")


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

    operators: the distinct ones. of_row: int32, for every row of the trace its index in `operators`, -1 without shapes. rows: int64, those
    of operators with shapes, in file order. own: int64, those of the multiplications and look-ups that no other of them contains, which
    launch the kernels. PyTorch's DTensor dispatches an operator on what ranks share again on the rank's own part: a row of the whole holds
    one of the part.
    """

    def __init__(self, trace: Trace) -> None:
        self.of_row = np.full(len(trace), -1, np.int32)
        self.operators: tuple[ShapedOperator, ...] = ()
        column = trace.args.get("Input Dims")
        if column is not None and len(column.rows):
            types = trace.dense("Input type")[column.rows]
            keys = np.stack((trace.name[column.rows].astype(np.int64), column.values.astype(np.int64), types))
            order = np.lexsort(keys)
            new = np.append(True, (np.diff(keys[:, order], axis=1) != 0).any(axis=0))
            self.of_row[column.rows[order]] = np.cumsum(new) - 1
            products = multiplying(trace)
            self.operators = tuple(
                _parse(trace, name, dims, kinds, name in products) for name, dims, kinds in keys[:, order[new]].T.tolist()
            )
        self.rows: Int64 = np.flatnonzero((self.of_row >= 0) & (trace.category == Category.OPERATOR))
        self.own = self._own(trace)
        for column_of in (self.of_row, self.rows, self.own):
            column_of.setflags(write=False)

    def __getitem__(self, row: int) -> ShapedOperator | None:
        """None where the row has no shapes."""
        index = int(self.of_row[row])
        return self.operators[index] if index >= 0 else None

    def counted(self, rows: Int64 | None = None) -> Iterator[tuple[ShapedOperator, int]]:
        """Every distinct operator, with the number of its rows among `rows` (default: all)."""
        counts = np.bincount(self.of_row[self.rows if rows is None else rows], minlength=len(self.operators))
        return ((o, count) for o, count in zip(self.operators, counts.tolist(), strict=True) if count)

    def _own(self, trace: Trace) -> Int64:
        working = np.array([o.name == "aten::embedding" or factors(o) is not None for o in self.operators] or [False], bool)
        rows = self.rows[working[self.of_row[self.rows]]]
        order = rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))]
        lane, start, end = trace.lane[order], trace.start[order], trace.start[order] + trace.duration[order]
        holds = np.append((lane[1:] == lane[:-1]) & (start[1:] < end[:-1]), False)[: len(order)]
        found: Int64 = order[~holds]
        return found


@once_a_trace
def shapes_of(trace: Trace) -> Shapes:
    """The operators of a trace, parsed once."""
    return Shapes(trace)


def _parse(trace: Trace, name: int, dims: int, types: int, multiplies: bool) -> ShapedOperator:
    values = json.loads(trace.strings[dims])
    kinds = list(map(str, json.loads(trace.strings[types]))) if types >= 0 else []
    kinds += [""] * (len(values) - len(kinds))
    inputs = [(shape, kind) for value, kind in zip(values, kinds, strict=False) for shape in _shapes(value)]
    shapes, dtypes = tuple(shape for shape, _ in inputs), tuple(kind for _, kind in inputs)
    return ShapedOperator(trace.strings[name], shapes, dtypes, multiplies)


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


@once_a_trace
def sizes(trace: Trace) -> Sizes:
    """Read the sizes from the shapes of a rank's operators."""
    attention: Counter[tuple[int, int, int, int, int]] = Counter()
    keys: dict[tuple[int, int, int, int, int], set[int]] = defaultdict(set)
    tables: Counter[tuple[Shape, Shape]] = Counter()
    products: Counter[tuple[int, int, int]] = Counter()
    batched: Counter[Product] = Counter()
    shapes = shapes_of(trace)
    for o, count in shapes.counted(_forward(trace, shapes.rows)):
        if is_attention(o.name) and "backward" not in o.name and len(o.shapes) > 1 and len(o.shapes[0]) == 4:
            q, k = o.shapes[0], o.shapes[1]
            heads, length = (2, 1) if positions_first(o.name) else (1, 2)
            call = q[0], q[length], q[heads], k[heads], q[3]
            attention[call] += count
            keys[call].add(k[length])
    for o, count in shapes.counted(_forward(trace, shapes.own)):
        found = product(o)
        if found is not None:
            products[found.m, found.n, found.k] += count
            batched[found] += count
        elif len(o.shapes[0]) == 2:
            tables[o.shapes[0], o.shapes[1]] += count
    shown = _sizes(_of_whole_parts(attention, keys) if attention else _of_scores(batched, tables), tables, products)
    shown = shown._replace(ffn=_of_experts(shapes, shown.hidden) or shown.ffn)
    if not shown.micro_batch:
        shown = shown._replace(micro_batch=batch(shapes.counted()))
    plain = not attention and not tables and not any(convolution_work(o) or is_recurrent(o.name) for o, _ in shapes.counted())
    return shown._replace(hidden=_width(products, shown.micro_batch)) if plain else shown


def _of_whole_parts(
    attention: Counter[tuple[int, int, int, int, int]], keys: Mapping[tuple[int, int, int, int, int], set[int]]
) -> Counter[tuple[int, int, int, int, int]]:
    """The calls of attention, of which those with half of a rank's queries count as those with all of them: so do ranks that share causal
    sequences attend to the keys of other ranks, which are twice as many. keys: how many keys each call has."""
    out: Counter[tuple[int, int, int, int, int]] = Counter()
    for call, count in attention.items():
        whole = (call[0], 2 * call[1], *call[2:])
        out[whole if keys[call] == {2 * call[1]} and whole[1] in keys.get(whole, ()) else call] += count
    return out


def _of_scores(products: Counter[Product], tables: Counter[tuple[Shape, Shape]]) -> Counter[tuple[int, int, int, int, int]]:
    """The calls of attention that is computed as two multiplications for every head of every sequence: [queries, width] by [width, keys]
    gives the scores, and these by [keys, width] the result. The tokens that the embedding reads, [sequences, length], tell heads from
    sequences."""
    read = {index for _, index in tables if len(index) == 2}
    out: Counter[tuple[int, int, int, int, int]] = Counter()
    for scores, count in products.items():
        queries, keys, width, of = scores
        if keys == width or queries != keys or Product(queries, width, keys, of) not in products:
            continue
        for rows, length in read:
            if length == queries and of % rows == 0:
                out[rows, queries, of // rows, of // rows, width] += count
    return out


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
        hidden = max(into, key=lambda n: _around(forward, n), default=width)
    attended, together = {hidden, heads * head_dim, kv * head_dim}, {3 * hidden, (heads + 2 * kv) * head_dim}
    up = {n for n, k in forward if k == hidden}
    found = [x for n, x in forward if n == hidden and x not in attended and (x in up or 2 * x in up)]
    inner = [x for x in found if x not in together or _queries_apart(forward, hidden, heads * head_dim, forward[hidden, x])]
    ffn = max(inner, key=lambda x: forward[hidden, x], default=0)
    if not ffn and heads * head_dim not in (0, hidden) and forward[hidden, hidden]:
        ffn = hidden  # as wide as the model, which no matrix of the attention is on both sides
    calls = attention.most_common(1)[0][1] if attention else 0
    kv = _keys(forward, hidden, heads, head_dim, ffn, calls) if kv == heads else kv
    if not vocab and hidden:
        out = [n for (n, k) in forward if k == hidden and n not in (*attended, *together, ffn, 2 * ffn) and n > hidden]
        vocab = max(out, default=0)
    return Sizes(batch, seq, hidden, heads, kv, head_dim, ffn, vocab)


def _around(forward: Counter[tuple[int, int]], width: int) -> int:
    """How many multiplications read or write something so wide, which of a residual stream all in its layers do."""
    return sum(count for each, count in forward.items() if width in each)


def _queries_apart(forward: Counter[tuple[int, int]], hidden: int, width: int, layers: int) -> bool:
    """Whether queries are projected by a multiplication of their own in every layer, so that none is as wide as queries, keys and values
    together. Where the queries are as wide as the model, the projection out of the attention has the same sizes."""
    return forward[width, hidden] >= layers * (2 if width == hidden else 1)


def _keys(forward: Counter[tuple[int, int]], hidden: int, heads: int, head_dim: int, ffn: int, calls: int) -> int:
    """The heads of keys and values where attention reads them repeated for every head of the queries. Two narrower projections of the
    residual stream for each of its calls show them. calls: rows of attention, of which a call has up to three inside each other."""
    narrow = ((n, c) for (n, k), c in forward.items() if k == hidden and 0 < n < heads * head_dim and n != ffn)
    found = (n // head_dim for n, c in narrow if n % head_dim == 0 and c in (2 * calls, calls, 2 * calls // 3))
    return next((kv for kv in found if heads % kv == 0), heads)
