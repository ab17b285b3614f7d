"""Write a linked pair of files as one `.et`: the profiler's times and kernels with the execution trace's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.chakra.lower import lower
from lumos.chakra.write import encode_rank
from lumos.graph.build import rank_graph
from lumos.output_files import new_file
from lumos.trace.chakra_wire import Attribute, IOInfo, encode_io, encode_once, varint

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.chakra.link.link import Linked
    from lumos.trace.execution_trace import ExecutionTrace
    from lumos.trace.table import Trace

#: The attributes that are copied from an operator of the execution trace besides its tensors, and their types in Chakra.
_ATTRIBUTES = (("rf_id", "uint64"), ("seq_id", "int64"), ("fw_parent", "uint64"), ("op_schema", "string"), ("kernel_backend", "string"))


def write_linked(path: Path, observed: ExecutionTrace, trace: Trace, linked: Linked) -> int:
    """Write the rank's nodes to `path`, operators and their kernels with inputs and outputs. Returns how many were written.

    A kernel has the inputs and outputs of the operator that launched it. LumosError where the file cannot be written.
    """
    workload = lower(rank_graph(trace))
    assert workload.event is not None
    node_of = linked.node.copy()
    node_of[linked.kernel] = linked.kernel_node
    more = {}
    done: set[int] = set()
    for i, row in enumerate(workload.event.tolist()):
        if row >= 0 and node_of[row] >= 0 and row not in done:
            done.add(row)  # an operator that calls others becomes several nodes; the first gets its tensors
            more[i] = _fields(observed, int(node_of[row]))
    with new_file(path) as file:
        file.writelines(encode_rank(workload, 0, more=more))
    return len(workload)


def _fields(observed: ExecutionTrace, node: int) -> bytes:
    attrs = observed.attrs[node]
    attributes = [Attribute("et_id", "uint64", int(observed.id[node]))]
    for name, kind in _ATTRIBUTES:
        value = attrs.get(name)
        if isinstance(value, str if kind == "string" else int) and value not in ("", None):
            attributes.append(Attribute(name, kind, value))
    encoded = b"".join(b"\x52" + varint(len(m)) + m for m in map(encode_once, attributes))
    return encode_io(8, IOInfo(*observed.inputs[node])) + encode_io(9, IOInfo(*observed.outputs[node])) + encoded
