"""Sequences that a model works through in chunks of a length of their own, as state-space models and linear attention do.

Within a chunk every position meets every other, and between chunks a state is handed on. So a sequence of another length has more chunks,
and none of another length. A trace shows chunks by tensors of four dimensions and more, the batch first, in which two neighbours are their
number and their length. Of several pairs whose product is the sequence it is the one that most operators have, as heads and their width
may make up the same number.

Limits: where the number of chunks is also that of something else, such as heads, only dimensions beside a chunk's length count.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.cost.operators import Shape
    from lumos.segment.dimensions import Sizes
    from lumos.segment.products import ShapedOperator

#: The fewest dimensions of a tensor that is cut into chunks: batch, chunks, positions, and what each position has.
_DIMENSIONS = 4


class Chunks(NamedTuple):
    """The chunks of a sequence: how many, and how many positions each has."""

    number: int
    length: int

    def resized(self, shape: Shape, old: Sizes, new: Sizes) -> Shape | None:
        """The shape with the chunks of the sequences of `new`; None where it does not show chunks of those of `old`."""
        if old.seq in shape or len(shape) < _DIMENSIONS - 1:
            return None
        number, after = self.number, -(-new.seq // self.length)
        if len(shape) == _DIMENSIONS - 1:  # what batches, chunks and heads multiply each, or what is handed on between all chunks
            if self.length in shape[1:] and shape[0] % (old.micro_batch * number) == 0:
                return (shape[0] // (old.micro_batch * number) * new.micro_batch * after, *shape[1:])
            handed_on = shape[0] % old.micro_batch == 0 and number + 1 in shape[1:]
            return (shape[0] // old.micro_batch * new.micro_batch, *self._between(shape[1:], after)) if handed_on else None
        if shape[0] != old.micro_batch:
            return None
        beside = [at for at in range(1, len(shape) - 1) if shape[at : at + 2] == (number, self.length)]
        places = beside or ([at for at in range(1, len(shape)) if shape[at] == number] if number not in (old.heads, old.kv_heads) else [])
        rest = [*shape[1:]]
        if places:
            rest[places[0] - 1] = after
        elif number + 1 in rest:
            rest = [*self._between(shape[1:], after)]
        else:
            return None
        return (new.micro_batch, *rest)

    def _between(self, shape: Shape, after: int) -> Shape:
        """The dimensions of states before, between and after chunks, one more than there are chunks."""
        return tuple(after + 1 if x == self.number + 1 else x for x in shape)


def chunks_of(operators: Iterable[tuple[ShapedOperator, int]], sizes: Sizes) -> Chunks | None:
    """The chunks into which the sequences of a model are cut, as its operators show, each given with how often it occurs; None where they
    are not."""
    pairs = Counter[Chunks]()
    for o, count in operators:
        for shape in o.shapes:
            if len(shape) >= _DIMENSIONS and shape[0] == sizes.micro_batch and sizes.seq not in shape:
                found = {Chunks(x, y) for x, y in pairwise(shape[1:]) if x > 1 and y > 1 and x * y == sizes.seq}
                pairs.update(dict.fromkeys(found, count))
    return pairs.most_common(1)[0][0] if pairs else None
