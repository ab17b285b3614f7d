"""The parts of an all-to-all, where ranks send and receive different numbers of elements.

Execution traces say what each rank sends to each other; profilers before torch 2.3 only how much in all. Parts that a recording
lacks, or that contradict each other because the files are of different steps, are filled in so that every rank sends and receives as
many elements as recorded: in proportion to both, rounded down, and the rest from the first rank to the last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.proxy.program import Program, RecordedCollective, RecordedOperator
    from lumos.trace.table import Int64


def fill_splits(program: Program) -> list[Diagnostic]:
    """Give the all-to-alls of a program parts that fit together on all ranks of their group. The program is changed in place.

    Returns a diagnostic for each group where parts had to be filled in, or where members issued different numbers of them.
    """
    issued: dict[int, dict[int, list[RecordedOperator]]] = {}
    for rank in program.ranks:
        for operator in rank.walk():
            if operator.collective is not None and operator.collective.kind is CollectiveKind.ALL_TO_ALL:
                issued.setdefault(operator.collective.group, {}).setdefault(rank.rank, []).append(operator)
    notes = []
    for group, by_rank in issued.items():
        members = sorted(program.groups[group]) if group >= 0 and program.groups[group] else list(range(program.world_size))
        if not set(members) <= {rank.rank for rank in program.ranks}:
            continue  # a rank that was not recorded may have sent anything
        calls = [by_rank.get(member, []) for member in members]
        if len({len(one) for one in calls}) > 1:
            counts = f"{min(map(len, calls))} to {max(map(len, calls))} all-to-alls"
            notes.append(Diagnostic("transfers-unpaired", f"the ranks of group {members} issue {counts}: their parts are as recorded"))
            continue
        filled = sum(_fit(together) for together in zip(*calls, strict=True))
        if filled:
            which = f"{filled} of {len(calls[0])} all-to-alls of group {members}"
            notes.append(Diagnostic("splits-filled", f"the parts of {which} were not recorded, or differ: filled in from what ranks sent"))
    return notes


def _fit(together: Sequence[RecordedOperator]) -> bool:
    """Make the parts of one all-to-all fit; whether they had to be filled in. together: its operator on each member, in order."""
    calls = [operator.collective for operator in together if operator.collective is not None]
    ranks = len(calls)
    if _is_even(calls) or _agree(calls):
        return False
    sent, received = [call.elements_in for call in calls], [call.elements_out for call in calls]
    equal = [sum(sent) // ranks + (rank < sum(sent) % ranks) for rank in range(ranks)]
    parts = split_shares(sent, received if sum(sent) == sum(received) else equal)
    for rank, (operator, call) in enumerate(zip(together, calls, strict=True)):
        ins, outs = tuple(parts[rank].tolist()), tuple(parts[:, rank].tolist())
        operator.collective = replace(call, elements_in=sum(ins), elements_out=sum(outs), splits_in=ins, splits_out=outs)
    return True


def _is_even(calls: Sequence[RecordedCollective]) -> bool:
    """Whether all ranks send equal parts and none says otherwise."""
    sizes = {size for call in calls for size in (call.elements_in, call.elements_out)}
    return len(sizes) == 1 and sizes.pop() % len(calls) == 0 and not any(call.splits_in or call.splits_out for call in calls)


def _agree(calls: Sequence[RecordedCollective]) -> bool:
    """Whether every rank receives what the others send it."""
    ranks = len(calls)
    if any(len(call.splits_in) != ranks or len(call.splits_out) != ranks for call in calls):
        return False
    return all(calls[a].splits_in[b] == calls[b].splits_out[a] for a in range(ranks) for b in range(ranks))


def split_shares(sent: Sequence[int], received: Sequence[int]) -> Int64:
    """Elements from each rank (row) to each rank (column), int64[n, n], with these sums of rows and of columns, which have one total."""
    total = sum(sent)
    parts = np.outer(np.array(sent, np.int64), np.array(received, np.int64)) // max(total, 1)
    rows, columns = np.array(sent) - parts.sum(axis=1), np.array(received) - parts.sum(axis=0)
    row = column = 0
    while row < len(rows) and column < len(columns):
        moved = min(rows[row], columns[column])
        parts[row, column] += moved
        rows[row] -= moved
        columns[column] -= moved
        row, column = (row + 1, column) if not rows[row] else (row, column + 1)
    return parts
