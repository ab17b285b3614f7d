"""What a compiled part of a script launches: chains of memory-bound operators as one kernel each.

A script's compiled functions run operator by operator here, inside ranges that say so. This follows what TorchInductor does with
their graph (torch/_inductor/scheduler.py): an element-wise operator, a reduction, a normalisation or a copy is not run where it stands, but
as part of the kernel that is first needed by an operator which cannot be fused (a multiplication, attention, …) or by the end of
the range. Such a kernel reads what others made and writes what others need, and nothing in between reaches memory. The backward
pass of a range makes intermediate values again from what was kept, as the partitioner of AOTAutograd does, rather than have
the forward pass write them.

Limits: kernels that only share what they read stay apart, a reduction of long rows reads its input once, and breaks of the
graph inside a range are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound import NORMALISATION, POINTWISE, REDUCTION, STRIDED
from lumos.emulate.device.launch import DeviceEngine, Launch, nbytes, results_of, tensors_of
from lumos.emulate.record import REGION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lumos.emulate.record import Operator, Process

#: Classes of kernels that are fused, the one that a kernel of several takes first.
_CLASSES = (NORMALISATION, REDUCTION, POINTWISE, STRIDED)
_NAMES = {NORMALISATION: "triton_per_fused", REDUCTION: "triton_red_fused", POINTWISE: "triton_poi_fused", STRIDED: "triton_poi_fused"}
#: Words of a fused kernel's name, so that it stays readable.
_WORDS = 4
#: Operators that write their first tensor without reading it.
_OVERWRITE = ("copy", "fill", "zero")


class Region(NamedTuple):
    """A call of a compiled function: the place of its mark, and whether it is the backward pass of that call."""

    mark: int
    backward: bool


class _Piece(NamedTuple):
    """A memory-bound operator that waits to be fused. reads, writes: bytes by storage."""

    name: str
    kernel_class: str
    reads: dict[int, int]
    writes: dict[int, int]


def launched(process: Process, kernels: Callable[[Operator], list[Launch]]) -> tuple[list[list[Launch]], dict[int, Region]]:
    """What each operator of a process launches, and the region of those that were compiled, by their index."""
    regions = compiled(process)
    own = [kernels(operator) for operator in process.operators]
    return (_Fusion(process, own, regions).run() if regions else own), regions


def compiled(process: Process) -> dict[int, Region]:
    """The region of every operator that belongs to a compiled range, or to the backward pass of one."""
    found: dict[int, Region] = {}
    marks = [(i, mark) for i, mark in enumerate(process.marks) if mark.name.startswith(REGION_PREFIX)]
    if not marks:
        return found
    forward: dict[tuple[int, int], int] = {}
    for i, operator, place in _inside(process, [(mark.thread, mark.begin, mark.end, i) for i, mark in marks]):
        found[i] = Region(place, False)
        if operator.sequence >= 0 and operator.forward_thread < 0:
            forward.setdefault((operator.thread, operator.sequence), place)
    nodes = [
        (each.thread, each.begin, each.end, forward[each.forward_thread, each.sequence])
        for each in process.operators
        if each.forward_thread >= 0 and (each.forward_thread, each.sequence) in forward
    ]
    for i, _, place in _inside(process, nodes):
        found.setdefault(i, Region(place, True))
    return found


def _inside(process: Process, spans: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, Operator, int]]:
    """The operators in spans of threads, with what the innermost span of each carries. spans: thread, begin, end, and that."""
    every = [(thread, begin, -end, -1, place) for thread, begin, end, place in spans]
    every += [(each.thread, each.begin, -each.end, i, -1) for i, each in enumerate(process.operators)]
    found: list[tuple[int, Operator, int]] = []
    open_: list[tuple[int, int, int]] = []  # thread, end, and what the span carries
    for thread, begin, end, i, place in sorted(every):
        while open_ and (open_[-1][0] != thread or open_[-1][1] < begin):
            open_.pop()
        if i < 0:
            open_.append((thread, -end, place))
        elif open_:
            found.append((i, process.operators[i], open_[-1][2]))
    return found


class _Fusion:
    """Goes through the operators in their order, and keeps what is to be fused until it is needed."""

    def __init__(self, process: Process, own: Sequence[list[Launch]], regions: dict[int, Region]) -> None:
        self.operators, self.regions = process.operators, regions
        self.out = [list(each) for each in own]
        self.order = sorted(range(len(process.operators)), key=lambda i: process.operators[i].begin)
        self.pieces = {i: piece for i in regions if (piece := _piece(process.operators[i], own[i])) is not None}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for i, operator in enumerate(process.operators):
            for storage in {tensor.storage for tensor in tensors_of(operator.inputs)} if operator.leaf and own[i] else ():
                self.readers[storage].append(i)
        self.waiting: dict[int, _Piece] = {}
        self.makers: dict[int, list[int]] = defaultdict(list)
        self.sources: dict[int, dict[int, int]] = {}  # of a storage that was never written: what it is made from again, with bytes

    def run(self) -> list[list[Launch]]:
        region, last = None, -1
        for i in self.order:
            if self.regions.get(i) != region:
                if self.waiting:
                    self.out[last] += self._kernels(set(self.waiting))
                region = self.regions.get(i)
            if region is not None:
                self._step(i)
                last = i
        if self.waiting:
            self.out[last] += self._kernels(set(self.waiting))
        return self.out

    def _step(self, i: int) -> None:
        piece = self.pieces.get(i)
        if piece is not None:
            self.out[i] = []
            self.waiting[i] = piece
            for storage in piece.writes:
                self.makers[storage].append(i)
        elif self.out[i]:
            touched = {tensor.storage for tensor in tensors_of(self.operators[i].inputs)}
            self.out[i] = [*self._kernels(self._needed(touched)), *self.out[i]]

    def _needed(self, storages: set[int]) -> set[int]:
        """The waiting operators that make these storages, or what they are made from."""
        found: set[int] = set()
        todo = list(storages)
        while todo:
            for i in self.makers.get(todo.pop(), ()):
                if i in self.waiting and i not in found:
                    found.add(i)
                    todo += self.waiting[i].reads
        return found

    def _kernels(self, chosen: set[int]) -> list[Launch]:
        """One kernel for each group of the chosen operators that pass something on to each other."""
        return [launch for group in self._groups(chosen) if (launch := self._kernel(group)) is not None]

    def _groups(self, chosen: set[int]) -> list[list[int]]:
        of: dict[int, list[int]] = {}
        groups: list[list[int]] = []
        for i in sorted(chosen, key=lambda one: self.operators[one].begin):
            piece = self.waiting[i]
            joined = [of[storage] for storage in (*piece.reads, *piece.writes) if storage in of]
            mine = joined[0] if joined else []
            if not joined:
                groups.append(mine)
            for other in joined[1:]:
                if other is not mine and other in groups:
                    mine += other
                    groups = [each for each in groups if each is not other]
                    of |= dict.fromkeys((s for s, group in of.items() if group is other), mine)
            mine.append(i)
            of |= dict.fromkeys(piece.writes, mine)
        return groups

    def _kernel(self, group: list[int]) -> Launch | None:
        pieces = [self.waiting.pop(i) for i in group]
        made: dict[int, int] = {}
        reads: dict[int, int] = {}
        for piece in pieces:
            for storage, size in piece.reads.items():
                if storage not in made:
                    for source, bytes_ in self.sources.get(storage, {storage: size}).items():
                        reads[source] = max(reads.get(source, 0), bytes_)
            made |= piece.writes
        members, here = set(group), self.regions[group[0]]
        written = {storage: size for storage, size in made.items() if self._is_kept(storage, members, here)}
        for storage in made.keys() - written.keys():
            self.sources[storage] = reads
        size = sum(reads.values()) + sum(written.values())
        if not written or not size:
            return None
        kernel_class = min((piece.kernel_class for piece in pieces), key=_CLASSES.index)
        words = "_".join(list(dict.fromkeys(piece.name for piece in pieces))[:_WORDS])
        return Launch(f"{_NAMES[kernel_class]}_{words}", Traffic(size, 1, kernel_class))

    def _is_kept(self, storage: int, group: set[int], here: Region) -> bool:
        """Whether an operator outside of the group reads it, other than one that the backward pass of the same range fuses. What nobody
        reads is a result of the script's, such as the loss."""
        readers = self.readers.get(storage, [])
        others = [i for i in readers if i not in group]
        if here.backward or not readers:
            return bool(others) or not readers
        again = Region(here.mark, True)
        return any(i not in self.pieces or self.regions[i] != again for i in others)


def _piece(operator: Operator, launches: Sequence[Launch]) -> _Piece | None:
    """An operator that can be fused; None where it launches nothing or something else."""
    traffic = [launch.work for launch in launches if isinstance(launch.work, Traffic) and launch.engine is not DeviceEngine.FILL]
    fusable = len(traffic) == len(launches) > 0 and all(work.kernel_class in _CLASSES for work in traffic)
    name = operator.name.rpartition("::")[2].strip("_")
    if not fusable or name.startswith("foreach"):
        return None
    inputs = list(tensors_of(operator.inputs))
    if operator.name.endswith("_") and name in _OVERWRITE:
        inputs = inputs[1:]
    reads, writes = ({tensor.storage: nbytes(tensor) for tensor in tensors} for tensors in (inputs, results_of(operator)))
    return _Piece(name, min((work.kernel_class for work in traffic), key=_CLASSES.index), reads, writes)
