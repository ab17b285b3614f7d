"""How much the tasks of a job compute and move, and the tensors that they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Int32, Int64

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from lumos.trace.chakra.schema import IOInfo
    from lumos.vocabulary import DType


class Tensors(NamedTuple):
    """The inputs and the outputs of a task, each None where unknown."""

    inputs: IOInfo | None = None
    outputs: IOInfo | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """What n tasks compute and move.

    operations: int64[n], floating-point operations; bytes: int64[n], read and written in the device's memory. ABSENT is unknown.
    tensors: int32[n], index into `table`, ABSENT where the tensors are not known. dtype: the type in which most operations are made,
    None where no operation has a known one.
    """

    operations: Int64
    bytes: Int64
    tensors: Int32
    table: Sequence[Tensors] = ()
    dtype: DType | None = None

    def taken(self, task: Int64) -> Amounts:
        """The amounts of the tasks `task` (int64[m], ABSENT for one without any), in that order."""
        known = task >= 0

        def column(values: Int64 | Int32) -> Int64:
            return np.where(known, values[np.maximum(task, 0)], ABSENT) if len(values) else np.full(len(task), ABSENT, np.int64)

        return Amounts(
            column(self.operations).astype(np.int64),
            column(self.bytes).astype(np.int64),
            column(self.tensors).astype(np.int32),
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
