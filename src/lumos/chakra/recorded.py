"""What the kernels of a job compute and move: as a set says it, from the shapes that the profiler wrote (record_shapes=True), or as priced.

The operations are those of the innermost operator around the kernel's launch whose operations are known (`analyze.flops`).
Inputs are those of the innermost operator with shapes. Bytes are what that operator's kernel reads and writes where this
follows from its shapes (`cost.traffic`); of products, convolutions and attention its inputs, and the output of products, once.
Others, such as lookups, need not read all of their inputs: their bytes are unknown. Of an operator that launches several
kernels each has the share of operations and bytes that it has of their time; all have its inputs. Of a predicted job, bytes are the least
that the work moves: every input read and every output written once; a backward attention kernel also reads the output and its gradient.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.flops import counted_operators, is_counted
from lumos.blocks.work import Attention, Gemm, GroupedGemm, Traffic, Work, flops
from lumos.chakra.build import timed
from lumos.chakra.gather import folder_of, gather
from lumos.chakra.system_files import network_of
from lumos.chakra.workload import Amounts, Details, unknown
from lumos.cost.operators import OperatorTime, device_work_of
from lumos.cost.traffic import traffic
from lumos.operators.shaped import ShapedOperator, elements, factors, result_shapes
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.schema import IOInfo
from lumos.trace.table import ABSENT, Category, Int64
from lumos.vocabulary import Direction, DType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.graph.table import Graph
    from lumos.operators.table import Shape
    from lumos.trace.table import Job, Trace


def amounts_of(graph: Graph, job: Job) -> Amounts:
    """What the tasks of a job's graph compute and move: as a set states it, or from the shapes that a profiler recorded."""
    if job.traces[0].metadata.get("format") != FORMAT:
        return recorded_work(graph, job)
    workload = timed(gather(job), network_of(folder_of(job)))
    detail = unknown(len(workload)).detail if workload.detail is None else workload.detail.astype(np.int64)
    return Amounts.of(np.stack((workload.operations, workload.bytes, detail)), workload.details)


def recorded_work(graph: Graph, job: Job) -> Amounts:
    """The amounts of the device work of a graph whose `event` column names rows of the job's traces, as far as shapes were recorded.

    A task whose name is not that of its row has none: a change may have put other work in its place.
    """
    columns = np.full((3, len(graph)), ABSENT, np.int64)
    table: dict[Details, int] = {}
    number = {name: i for i, name in enumerate(graph.names)}
    for position, trace in enumerate(job.traces):
        tasks = np.flatnonzero((graph.position_of_task == position) & (graph.event >= 0))
        rows = graph.event[tasks].astype(np.int64)
        same = np.array([number.get(text, ABSENT) for text in trace.strings] or [ABSENT])[trace.name[rows]] == graph.name[tasks]
        columns[:, tasks[same]] = _of_rows(trace, table)[:, rows[same]]
    return Amounts.of(columns, table)


def _of_rows(trace: Trace, table: dict[Details, int]) -> Int64:
    """By row of a trace: operations, bytes, and the index of its details, int64[3, rows]; ABSENT where unknown."""
    out = np.full((3, len(trace)), ABSENT, np.int64)
    operations, moved, detail = out
    copied = trace.args.get("bytes")
    if copied is not None:
        moves = trace.is_any(Category.MEMCPY, Category.MEMSET)[copied.rows]
        moved[copied.rows[moves]] = copied.values[moves].astype(np.int64)
    dims = trace.args.get("Input Dims")
    if dims is None:
        return out
    rows = dims.rows[trace.category[dims.rows] == Category.OPERATOR].astype(np.int64)
    pairs = list(device_work_of(trace, rows))
    calls = _calls(trace, sorted({operator for _, operator in pairs}), table)
    for row, operator in pairs:
        detail[row] = calls[operator][0]
    for row, operator, share in _shares(trace, pairs):
        if moved[row] == ABSENT and calls[operator][1] != ABSENT:
            moved[row] = round(calls[operator][1] * share)
    counted = counted_operators(trace)
    for row, operator, share in _shares(trace, list(device_work_of(trace, np.array(sorted(counted), np.int64)))):
        operations[row] = round(counted[operator][1] * share)
    return out


def _shares(trace: Trace, pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int, float]]:
    """The kernels among some device work, each with its operator and its share of the time of all of the operator's kernels."""
    kernel = trace.category == Category.KERNEL
    pairs = [(row, operator) for row, operator in pairs if kernel[row]]
    total: Counter[int] = Counter()
    for row, operator in pairs:
        total[operator] += int(trace.duration[row])
    for row, operator in pairs:
        if total[operator]:
            yield row, operator, int(trace.duration[row]) / total[operator]


def _calls(trace: Trace, operators: list[int], table: dict[Details, int]) -> Mapping[int, tuple[int, int]]:
    """Details and bytes by operator row; each distinct combination of name and texts is worked out once."""
    columns = [trace.dense(key) for key in ("Input Dims", "Input type", "Concrete Inputs")]
    keys = [(int(trace.name[row]), *(int(column[row]) for column in columns)) for row in operators]
    known = {
        (name, *said): _call(trace.strings[name], [trace.strings[i] if i >= 0 else "[]" for i in said], table)
        for name, *said in dict.fromkeys(keys)
    }
    return {row: known[key] for row, key in zip(operators, keys, strict=True)}


def _call(name: str, texts: Sequence[str], table: dict[Details, int]) -> tuple[int, int]:
    """The index of an operator's details, and the bytes of its kernels. texts: the shapes, types and values of its inputs, as recorded."""
    dims, kinds, values = texts
    inputs: list[tuple[Shape, str]] = []
    for entry, kind in zip(json.loads(dims), [*map(str, json.loads(kinds)), *[""] * len(dims)], strict=False):
        nested = [tuple(e) for e in entry if isinstance(e, list)]
        inputs += [(shape, kind.removeprefix("TensorList").strip("[]") or kind) for shape in nested or [tuple(entry)]]
    shapes, dtypes = tuple(shape for shape, _ in inputs), tuple(dtype for _, dtype in inputs)
    multiplied, moved = factors(ShapedOperator(name, shapes, dtypes)), traffic(OperatorTime(name, shapes, dtypes, 0, 1))
    sizes = [(elements(s), d) for s, text in zip(shapes, dtypes, strict=True) if s and (d := DType.parse(text)) is not None]
    read = sum(count * d.bytes for count, d in sizes)
    result = (result_shapes(name, shapes) or ())[:1] if multiplied is not None and sizes else ()
    written = sum(map(elements, result)) * (sizes[0][1].bytes if sizes else 0)
    outputs = IOInfo("[]", json.dumps(result), json.dumps(dtypes[multiplied.first :][:1])) if multiplied is not None and result else None
    detail = table.setdefault(Details(IOInfo(values, dims, kinds), outputs), len(table))
    total = round(moved[1]) if moved is not None else read + written if is_counted(name) else ABSENT
    return detail, total or ABSENT


def predicted_work(works: Sequence[Work | None]) -> Amounts:
    """The amounts of tasks by the work of each; None for host work."""
    columns = np.full((3, len(works)), ABSENT, np.int64)
    table: dict[Details, int] = {}
    known: dict[Work, tuple[int, int, int]] = {}
    for task, work in enumerate(works):
        if isinstance(work, Gemm | GroupedGemm | Attention | Traffic):
            columns[:, task] = known.get(work) or known.setdefault(work, _amounts(work, table))
    return Amounts.of(columns, table)


def _amounts(work: Gemm | GroupedGemm | Attention | Traffic, table: dict[Details, int]) -> tuple[int, int, int]:
    """Operations, bytes, and the index of the details."""
    if isinstance(work, Traffic):
        return ABSENT, work.bytes, ABSENT
    inputs, outputs = _attention(work) if isinstance(work, Attention) else _product(work)
    read, written = (sum(int(np.prod(shape)) for shape in shapes) for shapes in (inputs, outputs))
    out_bytes = work.dtype.bytes if isinstance(work, Attention) else work.out_bytes
    details = Details(_io(inputs, work.dtype), _io(outputs, work.dtype))
    return round(flops(work)), read * work.dtype.bytes + written * out_bytes, table.setdefault(details, len(table))


def _product(work: Gemm | GroupedGemm) -> tuple[list[list[int]], list[list[int]]]:
    rows, count = (work.m, work.batch) if isinstance(work, Gemm) else (work.rows, work.groups)
    lead = [count] if count > 1 else []
    return [[*lead, rows, work.k], [*lead, work.k, work.n]], [[*lead, rows, work.n]]


def _attention(work: Attention) -> tuple[list[list[int]], list[list[int]]]:
    query = [work.batch, work.heads, work.queries, work.head_dim]
    key = [work.batch, work.kv_heads, work.keys, work.head_dim]
    value = [work.batch, work.kv_heads, work.keys, work.value_dim]
    output = [work.batch, work.heads, work.queries, work.value_dim]
    if work.direction is Direction.BACKWARD:
        return [output, query, key, value, output], [query, key, value]
    return [query, key, value], [output]


def _io(shapes: list[list[int]], dtype: DType) -> IOInfo:
    return IOInfo("[]", json.dumps(shapes), json.dumps([f"Tensor({dtype.torch_name})"] * len(shapes)))
