"""What the shapes of a measured model's operators become under other sizes.

Every dimension of a shape is one of the sizes or a product of them (tokens = micro-batch · sequence, 3 · hidden, …). Its value
and its position decide which: leading dimensions are batch and sequence, the others features. Inside layers the features are
hidden, heads and feed-forward width; outside, vocabulary and hidden. A dimension that matches no size stays as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumos.cost.operators import elements
from lumos.segment.batch import batched, batched_product
from lumos.segment.dimensions import Sizes, is_attention
from lumos.segment.experts import ResizedExperts
from lumos.segment.products import ShapedOperator, factors, routed

if TYPE_CHECKING:
    from lumos.cost.operators import Shape
    from lumos.segment.chunks import Chunks
    from lumos.segment.products import FactorPlaces

#: Operators that models apply to activations and their gradients, not to weights, even where a tensor has the shape of one.
_OF_ACTIVATIONS = re.compile(
    r"aten::((relu6?|leaky_relu|threshold|gelu|silu|elu|tanh|sigmoid|hardtanh|hardswish|mish|softplus|dropout|native_dropout|sum)_?"
    r"|\w+_backward(_data)?)$"
)

#: Tokens from which a number of elements that is a multiple of them is taken to hold a value, or several, for each.
_FLAT = 64


#: Operators of two tensors, of which one may be repeated along the leading dimensions of the other.
_BROADCASTING = re.compile(r"aten::(mul|add|sub|div)_?$")


class Resize:
    """Changes the shapes of a model with sizes `old` to those that it has with sizes `new`. weights: shapes known to be of weights.
    routed: the numbers of tokens that experts multiply together, which follow the number of all tokens. chunks: those into which the
    model cuts its sequences; None where it does not."""

    def __init__(
        self,
        old: Sizes,
        new: Sizes,
        weights: frozenset[Shape] = frozenset(),
        routed: frozenset[int] = frozenset(),
        chunks: Chunks | None = None,
    ) -> None:
        self.old, self.new, self.weights, self.chunks = old, new, weights, chunks
        self._experts = ResizedExperts(old, new, routed)
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
        elif routed(o):
            shapes = self._experts.product(o)
        elif "conv" in o.name:
            window = max((w[-1] for w in o.shapes if w in self.weights and len(w) == 3), default=1)
            shapes = tuple(self._padded(s, window) or self(s, in_layer) for s in o.shapes)
        elif is_attention(o.name):
            shapes = tuple(self._attended(s) if len(s) > 2 else s for s in o.shapes)
        else:
            scores = "softmax" in o.name or "masked_fill" in o.name
            between = self._experts.between(o)
            shapes = _broadcast(o, tuple(self(s, in_layer, scores, self._pointwise(o), between) for s in o.shapes))
        return o._replace(shapes=shapes)

    def weight(self, shape: Shape, in_layer: bool) -> Shape:
        """The new shape of a weight: all dimensions are features, but for the rows of a table of positions."""
        if in_layer and (matrices := self._experts.matrices(shape)) is not None:
            return matrices
        features = self._inside if in_layer else self._outside
        rest = tuple(features.get(x, x) for x in shape)
        old = self.old
        if in_layer and self.square and shape == (old.hidden, old.ffn):
            return self.new.hidden, self.new.ffn
        if not in_layer and len(shape) == 2 and shape[0] == old.seq and shape[1] == old.hidden and old.seq not in (old.hidden, old.vocab):
            return self.new.seq, rest[1]
        return rest

    def __call__(self, shape: Shape, in_layer: bool, scores: bool = False, activation: bool = False, between: bool = False) -> Shape:
        """The new shape of an activation. scores: its last two dimensions are sequences (attention's scores). activation: it is no weight,
        even if it has the shape of one. between: it is between the two matrices of experts, if it has a row for each of their tokens."""
        if not shape:
            return shape
        old, new, n = self.old, self.new, len(shape)
        if shape in self.weights:
            matrices = self._experts.matrices(shape) if in_layer else None
            if matrices is not None:
                return matrices
        elif (sent := self._experts.activation(shape, between)) is not None:
            return sent
        features = self._inside if in_layer else self._outside
        rest = tuple(features.get(x, x) for x in shape)
        b, s, tokens = old.micro_batch, old.seq, old.micro_batch * old.seq
        if not s:
            return rest if shape in self.weights and not activation else self._without_sequence(shape, rest)
        if self.chunks is not None and shape not in self.weights and (cut := self.chunks.resized(shape, old, new)) is not None:
            return cut
        if n >= 2 and shape[:2] == (b, s):
            return (new.micro_batch, new.seq, *self._split(shape[2:], rest[2:]))
        if n >= 2 and shape[:2] == (s, b) and n == 3:
            return (new.seq, new.micro_batch, *rest[2:])
        if n == 3 and (by_channel := self._padded(shape, 1)) is not None:
            return by_channel
        if n == 2 and shape == (b, s + 1):
            return new.micro_batch, new.seq + 1
        if not in_layer and s > 1 and n >= 2 and shape[:2] == (b, s - 1):  # the loss of every token but the first
            return (new.micro_batch, new.seq - 1, *rest[2:])
        if not in_layer and s > 1 and n <= 2 and shape[0] == b * (s - 1) and rest[0] == shape[0]:
            return (new.micro_batch * (new.seq - 1), *rest[1:])
        if n == 4 and shape[0] == b and s in shape[1:]:
            return (new.micro_batch, *self._heads(shape[1:], scores))
        if n == 4 and (at := self._packed(shape)) is not None:
            both = (new.micro_batch, new.seq) if shape[at] == b else (new.seq, new.micro_batch)
            return (*shape[:at], *both, *shape[at + 2 : 3], rest[3])
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

    def _padded(self, shape: Shape, window: int) -> Shape | None:
        """The new shape of a tensor with channels before positions, of which there are as many more as a convolution's window reaches
        beyond the ends of a sequence; None for other tensors."""
        old, new = self.old, self.new
        known = old.seq in self._inside or old.seq in self._outside
        if len(shape) != 3 or shape[0] != old.micro_batch or not 0 <= shape[2] - old.seq < window or not old.seq or known:
            return None
        return None if shape in self.weights else (new.micro_batch, shape[1], shape[2] - old.seq + new.seq)

    def _packed(self, shape: Shape) -> int | None:
        """Where batch and positions are in a tensor that holds keys and values, or queries too, side by side: before or after their number,
        which is 2 or 3, in either order. None for other tensors."""
        both = {self.old.micro_batch, self.old.seq}
        return next((at for at, number in ((1, shape[0]), (0, shape[2])) if number in (2, 3) and set(shape[at : at + 2]) == both), None)

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
        """The dimensions after batch and sequence: features, or heads and their width. One that is as long as the sequence is a width."""
        if len(shape) < 2:
            return rest
        return tuple(x if x == self.old.seq != self.old.head_dim else y for x, y in zip(shape, self._heads(shape, False), strict=True))


def _broadcast(o: ShapedOperator, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The new shapes of an operator, in which a vector that was as long as the rows of the other tensor is so again: a weight, whose length
    may be the number of tokens as well."""
    wide = max(range(len(shapes)), key=lambda i: len(shapes[i]), default=0)
    if not _BROADCASTING.match(o.name) or not shapes or len(shapes[wide]) < 2:
        return shapes
    return tuple(shapes[wide][-1:] if was == o.shapes[wide][-1:] else new for was, new in zip(o.shapes, shapes, strict=True))


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
