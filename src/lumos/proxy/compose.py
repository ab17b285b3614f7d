"""Several steps, of one recording or of several, as one program whose parts run one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lumos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.proxy.program import Program, RankProgram, RecordedCollective, RecordedOperator


def composed(parts: Sequence[Program]) -> Program:
    """One program of several with the same ranks. Each rank runs its parts in their order; tensors of a part are its own.

    The recorded time is the sum of the parts', unknown where that of one is. UsageError where the parts have different ranks.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    of_all = [[rank.rank for rank in part.ranks] for part in parts]
    if any(ranks != of_all[0] or part.world_size != first.world_size for ranks, part in zip(of_all, parts, strict=True)):
        found = "; ".join(f"{len(ranks)} of {part.world_size}" for ranks, part in zip(of_all, parts, strict=True))
        raise UsageError(f"the parts of a benchmark need the same ranks of jobs of the same size; theirs are {found}")
    groups: list[tuple[int, ...]] = []
    numbers = [_group_numbers(part.groups, groups) for part in parts]
    ranks = [_in_turn(own, numbers) for own in zip(*(part.ranks for part in parts), strict=True)]
    source = first.source if len({part.source for part in parts}) == 1 else "profiler"
    sources = {file: found for part in parts for file, found in part.sources.items()}
    return replace(first, ranks=ranks, groups=groups, source=source, max_memory_bytes=0, sources=sources)


def _group_numbers(own: Sequence[tuple[int, ...]], groups: list[tuple[int, ...]]) -> dict[int, int]:
    """Where a part's groups are among those of the whole program, to which new ones are added."""
    for ranks in own:
        if ranks not in groups:
            groups.append(ranks)
    return {i: groups.index(ranks) for i, ranks in enumerate(own)} | {-1: -1}


def _in_turn(parts: Sequence[RankProgram], groups: Sequence[Mapping[int, int]]) -> RankProgram:
    """One rank's parts one after the other."""
    out = replace(parts[0], operators=[], tensors=[], storages=[], step=" + ".join(part.step for part in parts))
    count, end = 0, 0
    for part, numbers in zip(parts, groups, strict=True):
        tensors, storages = len(out.tensors), len(out.storages)
        begin = min((o.start_ns for o in part.walk() if o.start_ns >= 0), default=0)
        later = 0 if part is parts[0] else end + part.before_ns - begin
        out.operators += [_moved(root, tensors, count, later, numbers) for root in part.operators]
        out.tensors += [replace(tensor, storage=tensor.storage + storages) for tensor in part.tensors]
        out.storages += part.storages
        count += sum(1 for _ in part.walk())
        end = max((o.start_ns + o.duration_ns + later for o in part.walk() if o.start_ns >= 0), default=end)
    out.recorded_ns = sum(part.recorded_ns for part in parts) if all(part.recorded_ns > 0 for part in parts) else -1
    out.on_accelerator = any(part.on_accelerator for part in parts)
    return out


def _moved(operator: RecordedOperator, tensors: int, count: int, later: int, groups: Mapping[int, int]) -> RecordedOperator:
    """An operator and those that it called, with other numbers of tensors, operators and groups, and later by some ns."""
    return replace(
        operator,
        inputs=None if operator.inputs is None else [_renumbered(value, tensors) for value in operator.inputs],
        outputs=None if operator.outputs is None else [slot + tensors for slot in operator.outputs],
        start_ns=operator.start_ns + later if operator.start_ns >= 0 else -1,
        after=[number + count for number in operator.after],
        backward=operator.backward + count if operator.backward >= 0 else -1,
        collective=None if operator.collective is None else _transfer(operator.collective, later, groups),
        children=[_moved(child, tensors, count, later, groups) for child in operator.children],
    )


def _transfer(found: RecordedCollective, later: int, groups: Mapping[int, int]) -> RecordedCollective:
    return replace(found, group=groups[found.group], end_ns=found.end_ns + later if found.end_ns >= 0 else -1)


def _renumbered(value: Any, tensors: int) -> Any:
    """An argument whose tensors have numbers that are higher by `tensors`."""
    if isinstance(value, list):
        return [_renumbered(item, tensors) for item in value]
    if isinstance(value, dict) and "tensor" in value:
        return {**value, "tensor": value["tensor"] + tensors}
    return value
