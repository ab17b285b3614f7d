"""How much the tasks of a job compute and move, the tensors that they read and write, and what else a set says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Int32, Int64

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

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
    detail: int32[n], index into `table`, ABSENT where nothing else is known of a task. dtype: the type in which most operations are made,
    None where no operation has a known one.
    """

    operations: Int64
    bytes: Int64
    detail: Int32
    table: Sequence[Details] = ()
    dtype: DType | None = None

    def taken(self, task: Int64) -> Amounts:
        """The amounts of the tasks `task` (int64[m], ABSENT for one without any), in that order."""
        known = task >= 0

        def column(values: Int64 | Int32) -> Int64:
            return np.where(known, values[np.maximum(task, 0)], ABSENT) if len(values) else np.full(len(task), ABSENT, np.int64)

        return Amounts(
            column(self.operations).astype(np.int64),
            column(self.bytes).astype(np.int64),
            column(self.detail).astype(np.int32),
            self.table,
            self.dtype,
        )


def unknown(n: int) -> Amounts:
    """The amounts of n tasks of which nothing is known."""
    return Amounts(np.full(n, ABSENT, np.int64), np.full(n, ABSENT, np.int64), np.full(n, ABSENT, np.int32))


def main_type(operations: Counter[DType | None]) -> DType | None:
    """The type in which most operations are made. operations: how many by type; None counts those of an unknown type."""
    known = [(count, dtype) for dtype, count in operations.items() if dtype is not None]
    return max(known)[1] if known else None
