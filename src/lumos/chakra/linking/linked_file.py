"""Write a linked pair of files as one `.et`: the profiler's times and kernels with the execution trace's tensors.

The peers of a rank's collectives are in other ranks' files. So in the file of one rank collectives are compute of the time that they
took; `linked_job` writes all ranks as one set, in which they meet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.lower import lower
from lumos.chakra.work.recorded import recorded_work
from lumos.chakra.write import encode_ranks
from lumos.graph.one_rank import rank_graph
from lumos.output_files import new_file
from lumos.trace.chakra.attributes import encode_once
from lumos.trace.chakra.protobuf import varint
from lumos.trace.chakra.schema import Attribute, IOInfo
from lumos.trace.chakra.wire import encode_io
from lumos.trace.table import ABSENT, Job

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.chakra.linking.link import Linked
    from lumos.chakra.work.amounts import Amounts
    from lumos.trace.execution_trace import ExecutionTrace
    from lumos.trace.table import Int32, Trace

#: The attributes that are copied from an operator of the execution trace besides its tensors, and their types in Chakra.
_ATTRIBUTES = (("rf_id", "uint64"), ("seq_id", "int64"), ("fw_parent", "uint64"), ("op_schema", "string"), ("kernel_backend", "string"))


def write_linked(path: Path, observed: ExecutionTrace, trace: Trace, linked: Linked) -> int:
    """Write the rank's nodes to `path`, operators and their kernels with inputs and outputs. Returns how many were written.

    A kernel has the inputs and outputs of the operator that launched it. LumosError where the file cannot be written.
    """
    graph = rank_graph(trace)
    workload = lower(graph, without_tensors(recorded_work(graph, Job((trace,)))))
    assert workload.event is not None
    more = fields_of(observed, linked, workload.event)
    with new_file(path) as file:
        file.writelines(next(encode_ranks(workload, more=[more])))
    return len(workload)


def without_tensors(amounts: Amounts) -> Amounts:
    """Operations and bytes alone: the tensors are those of the execution trace."""
    return replace(amounts, detail=np.full_like(amounts.detail, ABSENT), table=())


def fields_of(observed: ExecutionTrace, linked: Linked, event: Int32) -> dict[int, bytes]:
    """The encoded fields of a rank's nodes that come from its execution trace, by number of the node. event: the profiler's row of each."""
    node_of = linked.node.copy()
    node_of[linked.kernel] = linked.kernel_node
    more = {}
    done: set[int] = set()
    for i, row in enumerate(event.tolist()):
        if row >= 0 and node_of[row] >= 0 and row not in done:
            done.add(row)  # an operator that calls others becomes several nodes; the first gets its tensors
            more[i] = _fields(observed, int(node_of[row]))
    return more


def _fields(observed: ExecutionTrace, node: int) -> bytes:
    attrs = observed.attrs[node]
    attributes = [Attribute("et_id", "uint64", int(observed.id[node]))]
    for name, kind in _ATTRIBUTES:
        value = attrs.get(name)
        if isinstance(value, str if kind == "string" else int) and value not in ("", None):
            attributes.append(Attribute(name, kind, value))
    encoded = b"".join(b"\x52" + varint(len(m)) + m for m in map(encode_once, attributes))
    return encode_io(8, IOInfo(*observed.inputs[node])) + encode_io(9, IOInfo(*observed.outputs[node])) + encoded
