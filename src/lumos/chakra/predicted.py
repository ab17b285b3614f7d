"""What the kernels of a predicted job compute and move, from the work that was priced (`blocks.work`).

Bytes are the least that the work moves: every input read and every output written once. A backward attention kernel also
reads the output and its gradient and writes three gradients.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from lumos.blocks.work import Attention, Gemm, GroupedGemm, Traffic, Work, flops
from lumos.chakra.amounts import Amounts, Details
from lumos.trace.chakra.schema import IOInfo
from lumos.trace.table import ABSENT
from lumos.vocabulary import Direction, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

_Shapes = list[list[int]]


def predicted_work(works: Sequence[Work | None]) -> Amounts:
    """The amounts of tasks by the work of each; None for host work."""
    columns = np.full((3, len(works)), ABSENT, np.int64)
    table: dict[Details, int] = {}
    types: Counter[DType | None] = Counter()
    known: dict[Work, tuple[int, int, int]] = {}
    for task, work in enumerate(works):
        if isinstance(work, Gemm | GroupedGemm | Attention | Traffic):
            columns[:, task] = known.get(work) or known.setdefault(work, _amounts(work, table))
            if not isinstance(work, Traffic):
                types[work.dtype] += known[work][0]
    return Amounts.of(columns, table, types)


def _amounts(work: Gemm | GroupedGemm | Attention | Traffic, table: dict[Details, int]) -> tuple[int, int, int]:
    """Operations, bytes, and the index of the details."""
    if isinstance(work, Traffic):
        return ABSENT, work.bytes, ABSENT
    inputs, outputs = _attention(work) if isinstance(work, Attention) else _product(work)
    read, written = (sum(int(np.prod(shape)) for shape in shapes) for shapes in (inputs, outputs))
    out_bytes = work.dtype.bytes if isinstance(work, Attention) else work.out_bytes
    details = Details(_io(inputs, work.dtype), _io(outputs, work.dtype))
    return round(flops(work)), read * work.dtype.bytes + written * out_bytes, table.setdefault(details, len(table))


def _product(work: Gemm | GroupedGemm) -> tuple[_Shapes, _Shapes]:
    rows, count = (work.m, work.batch) if isinstance(work, Gemm) else (work.rows, work.groups)
    lead = [count] if count > 1 else []
    return [[*lead, rows, work.k], [*lead, work.k, work.n]], [[*lead, rows, work.n]]


def _attention(work: Attention) -> tuple[_Shapes, _Shapes]:
    query = [work.batch, work.heads, work.queries, work.head_dim]
    key = [work.batch, work.kv_heads, work.keys, work.head_dim]
    value = [work.batch, work.kv_heads, work.keys, work.value_dim]
    output = [work.batch, work.heads, work.queries, work.value_dim]
    if work.direction is Direction.BACKWARD:
        return [output, query, key, value, output], [query, key, value]
    return [query, key, value], [output]


def _io(shapes: _Shapes, dtype: DType) -> IOInfo:
    return IOInfo("[]", json.dumps(shapes), json.dumps([f"Tensor({dtype.torch_name})"] * len(shapes)))
