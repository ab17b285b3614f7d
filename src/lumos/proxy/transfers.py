"""The transfers of a profiled step: what each operator that issues one sends, to whom, and when it ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.joined.collectives import is_cpu_collective, issuers
from lumos.graph.joined.messages import integer, text
from lumos.proxy.arguments import TensorSpec, map_tensors, recorded_arguments, torch_name
from lumos.proxy.program import OUTPUT_FIRST, RecordedCollective, RecordedOperator, lift_transfers
from lumos.trace.collectives import listed_numbers
from lumos.trace.kineto_values import Size
from lumos.trace.table import ABSENT, Trace
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.graph.table import Step

#: Operators that give a transfer to a process group. NCCL's own row about the transfer is inside them.
_COLLECTIVE = re.compile(r"(c10d|_c10d_functional)::|record_param_comms")


def give_transfers(trace: Trace, step: Step, of_row: Mapping[int, RecordedOperator], groups: Mapping[str, int]) -> None:
    """Give every operator that issues a transfer the description of that transfer, with its end and its type where it ran on a CPU: an
    operator that takes a list of tensors does not say of which type they are, the row of the thread that moves the bytes does."""
    end_ns: dict[int, int] = {}
    moved_by: dict[int, int] = {}
    on_cpu = np.flatnonzero(is_cpu_collective(trace)).astype(np.int32)
    if len(on_cpu):
        for row, issuer in zip(on_cpu.tolist(), issuers(trace, on_cpu).tolist(), strict=True):
            end_ns[issuer] = int(trace.start[row] + trace.duration[row]) - step.start
            moved_by[issuer] = row
    for row, operator in of_row.items():
        if _COLLECTIVE.match(operator.name):
            operator.collective = _collective(trace, row, operator, groups, moved_by.get(row, row), end_ns.get(row, -1))
    for operator in of_row.values():
        lift_transfers(operator)


def _collective(
    trace: Trace, row: int, operator: RecordedOperator, groups: Mapping[str, int], moved_by: int, end_ns: int
) -> RecordedCollective | None:
    """The transfer that an operator in `row` issues. moved_by: the row that says of which type its tensors are."""
    named = text(trace, row, "Collective name") or operator.name
    kind = CollectiveKind.in_name(named)
    if kind is CollectiveKind.UNKNOWN:
        return None
    target, spec = _output_and_input(trace, row, operator.name)
    stated = text(trace, row, "dtype")
    carried = _output_and_input(trace, moved_by, "")[1] or spec
    dtype = (torch_name(stated) if stated else None) or (carried.dtype if carried else "float32")
    read, written = (int(np.prod(one.shape)) if one else 0 for one in (spec, target))
    elements_in, elements_out = integer(trace, row, "In msg nelems"), integer(trace, row, "Out msg nelems")
    name = text(trace, row, "Process Group Name")
    return RecordedCollective(
        kind=kind,
        dtype=dtype,
        elements_in=read if elements_in == ABSENT else elements_in,
        elements_out=written if elements_out == ABSENT else elements_out,
        group=groups.get(name or "", groups.get("", -1)),
        peer=max(integer(trace, row, "Src Rank"), integer(trace, row, "Dst Rank")),
        splits_in=listed_numbers(text(trace, row, "In split size"), Size),
        splits_out=listed_numbers(text(trace, row, "Out split size"), Size),
        end_ns=end_ns,
    )


def _output_and_input(trace: Trace, row: int, name: str) -> tuple[TensorSpec | None, TensorSpec | None]:
    """What a transfer writes and what it reads: one tensor for both, except where an operator takes first the one, then the other."""
    arguments = recorded_arguments(
        trace, [int(trace.dense(k)[row]) for k in ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")]
    )
    tensors: list[TensorSpec] = []
    map_tensors(arguments or [], lambda _, spec: tensors.append(spec))
    if name.endswith(OUTPUT_FIRST) and len(tensors) > 1:
        return tensors[0], tensors[1]
    return (tensors[0], tensors[0]) if tensors else (None, None)
