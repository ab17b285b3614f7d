"""The calls of a recorded program: its operators, and autograd's rows around them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumos.operators.table import Shape

#: How the name of autograd's rows begins that stand for a node of the backward pass.
BACKWARD_NODE = "autograd::engine::evaluate_function"
#: The row in which autograd adds a gradient to that of a weight.
GATHERS = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class OperatorCall:
    """One operator of a recording. inputs: by argument, the shapes of the tensors in it: one of a tensor, several of a list, none of
    anything else. lists: which arguments are lists. values: of the arguments, as the profiler writes them. parent: the call that it is in,
    -1 for none. sequence: autograd's number, -1 without one. forward: whether it stands in a forward pass, where the number is that of
    the next node. strides: by argument, how far apart the neighbours along each axis of a tensor lie in memory, in elements; nothing where
    the recording does not say."""

    name: str
    inputs: tuple[tuple[Shape, ...], ...]
    lists: frozenset[int]
    values: tuple[str, ...]
    parent: int
    sequence: int
    forward: bool
    strides: tuple[Shape, ...] = ()

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of every input that is one tensor; () for others."""
        return tuple(of[0] if len(of) == 1 and i not in self.lists else () for i, of in enumerate(self.inputs))

    def strides_of(self, argument: int) -> Shape:
        """The strides of an input that is one tensor; () where they are not known."""
        known = self.strides[argument] if argument < len(self.strides) and argument not in self.lists else ()
        return known if len(known) == len(self.shapes[argument]) else ()
