"""What operators launch that are bound by memory: which kernels, and which of their tensors each reads and writes."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from lumos.operators.table import OperatorKind, kind_of, operator_table, own_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_TERM = re.compile(r"(?:(?P<factor>\d+) )?(?P<side>in|out)(?:(?P<all>\*)|(?P<first>\d+)(?P<on>\+)?)")


class LaunchedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kernel_class": "class"}):
    """One kernel that an operator launches. channels_last: the kernel for images that lie so, where that has another name. kernel_class:
    which coefficients of the memory-bound model it has. reads, writes: terms as the table explains them. copies: it only copies, and is as
    fast as element-wise work where rows stay rows."""

    kernel: str
    kernel_class: str
    channels_last: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    copies: bool = False

    @property
    def of_results(self) -> bool:
        """Whether what it reads and writes depends on the results of the operator."""
        return any("out" in term for term in (*self.reads, *self.writes))

    def moves(self, inputs: Sequence[int], results: Sequence[int]) -> int:
        """The bytes that it reads and writes. inputs, results: of the operator's tensors."""
        return sum(_bytes(term, inputs, results) for term in (*self.reads, *self.writes))


@cache
def _by_kind() -> dict[OperatorKind, LaunchedKernel]:
    return msgspec.convert(operator_table()["kernels"], dict[OperatorKind, LaunchedKernel])


@cache
def _by_name() -> dict[str, tuple[LaunchedKernel, ...]]:
    out: dict[str, tuple[LaunchedKernel, ...]] = {}
    for entry in operator_table()["launches"]:
        kernel = msgspec.convert({key: value for key, value in entry.items() if key != "operators"}, LaunchedKernel)
        out |= {name: (*out.get(name, ()), kernel) for name in entry["operators"]}
    return out


def has_own_kernels(name: str) -> bool:
    """Whether the table says of an operator itself what it launches, and not by its kind."""
    return own_name(name) in _by_name()


@cache
def kernels_of(name: str) -> tuple[LaunchedKernel, ...] | None:
    """What an operator launches by the table, in order, nothing where it only describes memory; None where the table does not say it."""
    if has_own_kernels(name):
        return _by_name()[own_name(name)]
    kind = kind_of(name)
    if kind is OperatorKind.VIEW:
        return ()
    return (_by_kind()[kind],) if kind in _by_kind() else None


def _bytes(term: str, inputs: Sequence[int], results: Sequence[int]) -> int:
    match = _TERM.fullmatch(term)
    assert match is not None, f"operators.toml: {term!r} is no term"
    tensors = inputs if match["side"] == "in" else results
    first = int(match["first"] or 0)
    chosen = tensors[first:] if match["all"] or match["on"] else tensors[first : first + 1]
    return int(match["factor"] or 1) * sum(chosen)
