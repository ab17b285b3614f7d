"""What the operators of experts become under other sizes: those that multiply tokens by the matrix of the expert that each goes to.

A matrix of an expert has the width of the model on one side and the experts' own width on the other, twice that where a gate is beside it.
So its sides are told apart by each other, also where the two widths are equal, or one is that of queries, keys and values together. Of the
tokens on their way through the experts the last dimension is either. Where the two are equal the operator decides: nonlinearities, products
of two such tensors, and their joining work on what is between an expert's two matrices; everything else on what goes in or comes out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumos.cost.operators import elements
from lumos.segment.products import routed

if TYPE_CHECKING:
    from lumos.cost.operators import Shape
    from lumos.segment.dimensions import Sizes
    from lumos.segment.products import ShapedOperator

#: Operators that models apply to what is between the two matrices of an expert, where all of their tensors are alike.
_BETWEEN = re.compile(r"aten::((relu6?|leaky_relu|gelu|silu|elu|tanh|sigmoid|hardswish|mish|softplus)_?(_backward)?|mul_?|cat)$")


class ResizedExperts:
    """Changes the shapes of experts with sizes `old` to those that they have with sizes `new`. tokens: the numbers of tokens that experts
    multiply together, which follow the number of all tokens."""

    def __init__(self, old: Sizes, new: Sizes, tokens: frozenset[int]) -> None:
        self.old, self.new = old, new
        before, after = (s.micro_batch * max(s.seq, 1) for s in (old, new))
        self.tokens = {number: round(number * after / before) for number in tokens} if before else {}

    def product(self, o: ShapedOperator) -> tuple[Shape, ...]:
        """New shapes of a multiplication for several experts: of tokens by their matrices, or of features by tokens, by features."""
        a, b = o.shapes[:2]
        tokens = self.tokens.get(routed(o), routed(o))
        if len(b) == 3:
            depth, width = self._sides(b[1], b[2])
            return ((tokens, depth), (b[0], depth, width), *o.shapes[2:])
        rows, columns = self._sides(a[0], b[1])
        return ((rows, tokens), (tokens, columns), *o.shapes[2:])

    def matrices(self, shape: Shape) -> Shape | None:
        """The new shape of the matrices of all experts, [experts, in, out] or [experts, out, in]; None for other tensors."""
        if not self.tokens or len(shape) != 3 or not (self._fits(*shape[1:]) or self._fits(*shape[:0:-1])):
            return None
        return (shape[0], *self._sides(*shape[1:]))

    def activation(self, shape: Shape, between: bool) -> Shape | None:
        """The new shape of a tensor that has a row for each token that an expert gets; None for other tensors. between: it is what is
        between an expert's two matrices, if its width allows that."""
        if not shape or shape[0] not in self.tokens:
            return None
        return (self.tokens[shape[0]], *(self._width(x, between) for x in shape[1:]))

    def between(self, o: ShapedOperator) -> bool:
        """Whether an operator works on what is between the two matrices of an expert."""
        return bool(_BETWEEN.match(o.name)) and len({s for s in o.shapes if s and elements(s) > 1}) == 1

    def _fits(self, model: int, inner: int) -> bool:
        """Whether two widths can be those of the model and of the experts, in this order."""
        return model == self.old.hidden and inner in (self.old.ffn, 2 * self.old.ffn)

    def _sides(self, x: int, y: int) -> tuple[int, int]:
        """The two sides of an expert's matrix, in either order. Where both may be the width of the model, the first is."""
        if self._fits(x, y):
            return self.new.hidden, self._inner(y)
        return (self._inner(x), self.new.hidden) if self._fits(y, x) else (self._width(x, False), self._width(y, False))

    def _inner(self, x: int) -> int:
        """The experts' own width, or twice that."""
        return self.new.ffn * x // self.old.ffn if self.old.ffn else x

    def _width(self, x: int, between: bool) -> int:
        """A width beside tokens: that of the model, the experts' own, or twice that; any other stays."""
        inner = self.old.ffn > 0 and x in (self.old.ffn, 2 * self.old.ffn)
        if inner and (between or x != self.old.hidden):
            return self._inner(x)
        return self.new.hidden if x == self.old.hidden else x
