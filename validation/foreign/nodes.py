"""Operators as PyTorch's profiler notes them: rows that hold other rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

AUTOGRAD = "autograd::engine::evaluate_function"
#: How the names of operators on lists of tensors begin.
LISTS = ("aten::_foreach_", "aten::_fused_")
#: Operators that join the tensors of a list.
JOINS = ("aten::cat", "aten::stack")
#: How the names of ranges begin that stand for what a script does with streams, and the number of the stream on which it computes.
MARK, COMPUTE = "stream: ", 7
#: How the names of ranges begin around messages that are issued together, and where they are waited for; their number follows.
MESSAGES, AWAIT = "messages", "await messages"

#: What describes a process group of one rank, in which NCCL launches nothing for what is exchanged in place.
ALONE = "alone"


class TensorList(NamedTuple):
    """The tensors of one list. dtype: as the profiler writes it. size: bytes of an element."""

    dtype: str
    size: int
    shapes: list[list[int]]

    @property
    def elements(self) -> int:
        return sum(prod(shape) for shape in self.shapes)


@dataclass
class Node:
    """One row of the profiler and those inside it. reached: whether it reached the device. annotation: whether it is a named range.

    lists: of an operator on lists of tensors, those lists; the profiler notes the shapes of short lists only. group: of a collective, what
    describes its process group. peer: of a message, the position of the other rank in it, -1 for none.
    splits: of an exchange of all ranks with all, what goes to each.
    """

    name: str
    facts: dict[str, Any]
    annotation: bool = False
    reached: bool = False
    children: list[Node] = field(default_factory=list)
    lists: list[TensorList] = field(default_factory=list)
    group: str = ""
    peer: int = -1
    splits: list[int] = field(default_factory=list)

    @property
    def dims(self) -> list[Any]:
        return list(self.facts.get("Input Dims", ()))

    @property
    def types(self) -> list[str]:
        return list(self.facts.get("Input type", ()))

    @property
    def strides(self) -> list[Any]:
        return list(self.facts.get("Input Strides", ()))

    @property
    def concrete(self) -> list[str]:
        return list(self.facts.get("Concrete Inputs", ()))
