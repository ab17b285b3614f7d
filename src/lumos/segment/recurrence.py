"""What operators of recurrent layers work on, from the shapes of their inputs.

Such an operator runs all steps of a sequence through one layer, or through all of them. Its inputs are the sequence, the hidden state and
weights: matrices by which the inputs and the hidden state are multiplied, [gates · width, width].
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lumos.cost.operators import Shape
    from lumos.segment.products import ShapedOperator

_RECURRENT = re.compile(r"(aten::)?(_?\w*_rnn(_layer)?|lstm|gru|rnn_tanh|rnn_relu|_thnn_fused_(lstm|gru)_cell)(_backward)?$")


def is_recurrent(name: str) -> bool:
    """Whether an operator runs a whole recurrent layer, or the cell of one."""
    return bool(_RECURRENT.match(name))


class Recurrence(NamedTuple):
    """What an operator of recurrent layers works on. rows: sequences of the batch. inputs, state: shapes of the weights by which the
    inputs and the hidden state are multiplied, [gates · width, width]."""

    steps: int
    rows: int
    inputs: Shape
    state: Shape

    @property
    def tokens(self) -> int:
        """Rows of the inputs of all steps."""
        return self.steps * self.rows

    @property
    def weights(self) -> int:
        """Elements of the two weights."""
        return prod(self.inputs) + prod(self.state)


def recurrence(o: ShapedOperator) -> Recurrence | None:
    """The sizes of an operator of recurrent layers; None where it is none or does not show them."""
    if not is_recurrent(o.name) or not o.shapes or len(o.shapes[0]) != 3:
        return None
    leading = o.shapes[0][:2]
    rows = next((s[-2] for s in o.shapes[1:] if len(s) > 1 and s[-2] in leading), 0)
    matrices = [s for s in o.shapes[1:] if len(s) == 2 and s[0] not in leading]
    if not rows or not matrices:
        return None
    return Recurrence(leading[0] * leading[1] // rows, rows, matrices[0], matrices[min(1, len(matrices) - 1)])


def recurrent_multiplications(o: ShapedOperator) -> int:
    """Multiplications of one layer over all steps; twice as many backward, for the gradients of inputs and weights. 0 where unknown."""
    found = recurrence(o)
    return 0 if found is None else found.tokens * found.weights * (2 if "backward" in o.name else 1)
