"""How much the tasks of a job compute and move, the tensors that they read and write, and what else a set says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from lumos.trace.chakra.schema import Attribute, IOInfo
    from lumos.vocabulary import DType


class Details(NamedTuple):
    """What is known of a task beside its columns: its inputs and outputs, each None where unknown; the attributes that no column holds;
    and the bytes of fields that the schema lacks."""

    inputs: IOInfo | None = None
    outputs: IOInfo | None = None
    attrs: tuple[Attribute, ...] = ()
    unknown: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """What n tasks compute and move.

    operations: int64[n], floating-point operations; bytes: int64[n], read and written in the device's memory. ABSENT is unknown.
    detail: int64[n], index into `table`, ABSENT where nothing else is known of a task. dtype: the type in which most operations are made,
    None where no operation has a known one.
    """

    operations: Int64
    bytes: Int64
    detail: Int64
    table: Sequence[Details] = ()
    dtype: DType | None = None

    @classmethod
    def of(cls, columns: Int64, table: Iterable[Details], operations: Counter[DType | None]) -> Amounts:
        """columns: int64[3, n], the three of `Amounts`. operations: how many by type; None counts those of an unknown type."""
        known = [(count, dtype) for dtype, count in operations.items() if dtype is not None]
        return cls(columns[0], columns[1], columns[2], tuple(table), max(known)[1] if known else None)

    def taken(self, task: Int64) -> Amounts:
        """The amounts of the tasks `task` (int64[m], ABSENT for one without any), in that order."""
        padded = np.pad(np.stack((self.operations, self.bytes, self.detail)), ((0, 0), (0, 1)), constant_values=ABSENT)
        operations, moved, detail = padded[:, task]  # ABSENT is -1: the column behind the last
        return replace(self, operations=operations, bytes=moved, detail=detail)


def unknown(n: int) -> Amounts:
    """The amounts of n tasks of which nothing is known."""
    return Amounts(*np.full((3, n), ABSENT, np.int64))
