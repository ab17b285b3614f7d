"""What a compiled part of a script launches: chains of memory-bound operators as one kernel each.

A script's compiled functions run operator by operator here, and the record says which call, or whose backward pass, each is part of.

As in TorchInductor (torch/_inductor/scheduler.py), an element-wise operator, a reduction, a normalisation or a copy is not run where it
stands, but as part of the kernel that is first needed by an operator which cannot be fused (a multiplication, attention, …) or by the end
of the range. Such a kernel writes what ever took memory, as the record says it (`process/operators/compiled.py`), and is none where that is
nothing. What never did is made again from what it was made from, wherever it is read. Operators on complex numbers are left alone
(torch/_inductor/lowering.py). Limits: kernels that only share what they read stay apart, and breaks of the graph are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import NORMALISATION, POINTWISE, REDUCTION, STRIDED
from lumos.emulation.device.launch import DeviceEngine, Launch, in_lines, nbytes, results_of, tensors_of
from lumos.emulation.record import enclosed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.emulation.record import Operator, Process, Tensor


def compiled(process: Process) -> dict[int, int]:
    """The region of every operator that belongs to a compiled function or to its backward pass: its own, or that of what it calls or is
    called by."""
    regions = {i: call.region for i, call in enumerate(process.operators) if call.region >= 0}
    nested = list(enclosed((call.thread, call.begin, call.end, i) for i, call in enumerate(process.operators))) if regions else []
    for i, around in nested:
        if i in regions:
            regions |= {other: regions[i] for other in around if other not in regions}
    return regions | {i: regions[around[-1]] for i, around in nested if i not in regions and around and around[-1] in regions}


#: Classes of kernels that are fused, the one that a kernel of several takes first.
_CLASSES = (NORMALISATION, REDUCTION, POINTWISE, STRIDED)
_NAMES = {NORMALISATION: "triton_per_fused", REDUCTION: "triton_red_fused", POINTWISE: "triton_poi_fused", STRIDED: "triton_poi_fused"}
#: Words of a fused kernel's name, so that it stays readable.
_WORDS = 4
#: What is made of more than so many is written (`realize_reads_threshold` of torch/_inductor/config.py, where several read it).
_MOST_READS = 4
#: Operators that write their first tensor without reading it.
_OVERWRITE = ("copy", "fill", "zero")


class _Piece(NamedTuple):
    """A memory-bound operator that waits to be fused. reads, writes: bytes by storage."""

    name: str
    kernel_class: str
    reads: dict[int, int]
    writes: dict[int, int]


def launched(process: Process, kernels: Callable[[Operator], list[Launch]]) -> tuple[list[list[Launch]], dict[int, int]]:
    """What each operator of a process launches, and the region of those that were compiled, by their index."""
    regions = compiled(process)
    own = [kernels(operator) for operator in process.operators]
    return (_Fusion(process, own, regions).run() if regions else own), regions


class _Fusion:
    """Goes through the operators and exchanges in their order, and keeps what is to be fused until it is needed."""

    def __init__(self, process: Process, own: Sequence[list[Launch]], regions: dict[int, int]) -> None:
        self.process, self.regions, self.out = process, regions, [list(launches) for launches in own]
        self.pieces = {i: piece for i in regions if (piece := _piece(process.operators[i], self.out[i])) is not None}
        self.in_memory = {allocation.storage for allocation in process.allocations if allocation.bytes > 0}
        self.waiting: set[int] = set()
        self.makers: dict[int, list[int]] = defaultdict(list)
        self.sources: dict[int, dict[int, int]] = {}  # of a storage that is never written: what it is made from again, with bytes

    def run(self) -> list[list[Launch]]:
        operators = self.process.operators
        moments: list[tuple[int, int, set[int]]] = [(exchange.begin, -1, set(exchange.storages)) for exchange in self.process.exchanges]
        for i, operator in enumerate(operators):
            works = operator.leaf and self.out[i]
            moments.append((operator.begin, i, {tensor.storage for tensor in tensors_of(operator.inputs)} if works else set()))
        moments.sort(key=lambda moment: moment[0])
        ends = {self.regions[i]: i for _, i, _ in moments if i in self.regions}
        last = -1  # the operator of a region that came last
        for _, i, reads in moments:
            if i in self.pieces:
                self.out[i] = []
                self.waiting.add(i)
                for storage in self.pieces[i].writes:
                    self.makers[storage].append(i)
            elif self.waiting and (needed := self._needed(reads)):
                at = i if i in self.regions else last
                self.out[at] = [*self._kernels(needed), *self.out[at]] if at == i else [*self.out[at], *self._kernels(needed)]
            if i in self.regions:
                last = i
                if ends[self.regions[i]] == i:
                    self.out[i] += self._kernels({other for other in self.waiting if self.regions[other] == self.regions[i]})
        return self.out

    def _needed(self, storages: set[int]) -> set[int]:
        """The waiting operators that make these storages, or what they are made from."""
        needed: set[int] = set()
        todo = list(storages)
        while todo:
            for i in self.makers.get(todo.pop(), ()):
                if i in self.waiting and i not in needed:
                    needed.add(i)
                    todo += self.pieces[i].reads
        return needed

    def _kernels(self, chosen: set[int]) -> list[Launch]:
        """One kernel for each group of the chosen operators that pass something on to each other."""
        self.waiting -= chosen
        groups: list[list[int]] = []
        for i in sorted(chosen):
            touched = self.pieces[i].reads.keys() | self.pieces[i].writes.keys()
            joined = [group for group in groups if any(touched & self.pieces[other].writes.keys() for other in group)]
            groups = [group for group in groups if group not in joined] + [[*(other for group in joined for other in group), i]]
        made = (self._kernel([self.pieces[i] for i in sorted(group)]) for group in groups)
        return [launch for launch in made if launch is not None]

    def _kernel(self, pieces: list[_Piece]) -> Launch | None:
        made: dict[int, dict[int, int]] = {}  # of each storage: what it is made from, with bytes
        sizes: dict[int, int] = {}
        reads: dict[int, int] = {}
        for piece in pieces:
            own: dict[int, int] = {}
            for storage, size in piece.reads.items():
                _add(own, made[storage] if storage in made else self.sources.get(storage, {storage: size}))
            _add(reads, own)
            sizes |= piece.writes
            if len(own) > _MOST_READS:
                self.in_memory |= piece.writes.keys()
            made |= dict.fromkeys(piece.writes, {} if len(own) > _MOST_READS else own)  # the same kernel has at hand what it writes
        self.sources |= {storage: own for storage, own in made.items() if storage not in self.in_memory}
        written = sum(size for storage, size in sizes.items() if storage in self.in_memory)
        if not written:
            return None
        kernel_class = min((piece.kernel_class for piece in pieces), key=_CLASSES.index)
        words = "_".join(list(dict.fromkeys(piece.name for piece in pieces))[:_WORDS])
        return Launch(f"{_NAMES[kernel_class]}_{words}", Traffic(sum(reads.values()) + written, 1, kernel_class))


def _piece(operator: Operator, launches: Sequence[Launch]) -> _Piece | None:
    """An operator that can be fused; None where it launches nothing or something else."""
    traffic = [launch.work for launch in launches if isinstance(launch.work, Traffic) and launch.engine is not DeviceEngine.FILL]
    fusable = len(traffic) == len(launches) > 0 and all(work.kernel_class in _CLASSES for work in traffic)
    name = operator.name.rpartition("::")[2].strip("_")
    inputs, results = list(tensors_of(operator.inputs)), results_of(operator)
    if not fusable or name.startswith("foreach") or any(tensor.dtype.startswith("complex") for tensor in (*inputs, *results)):
        return None
    if operator.name.endswith("_") and name in _OVERWRITE:
        inputs = inputs[1:]
    kernel_class = min((work.kernel_class for work in traffic), key=_CLASSES.index)
    if name == "cat":  # its own kernel counts what it moves for neighbours that lie apart, as no fused one does
        kernel_class = STRIDED
    if kernel_class == STRIDED and in_lines((*inputs, *results)):
        kernel_class = POINTWISE
    return _Piece(name, kernel_class, _by_storage(inputs), _by_storage(results))


def _add(reads: dict[int, int], more: dict[int, int]) -> None:
    """Add what is read to what is read already: a kernel reads each storage once."""
    for storage, size in more.items():
        reads[storage] = max(reads.get(storage, 0), size)


def _by_storage(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Bytes of each storage that the tensors show: different parts of it add up, and the same part counts once."""
    sizes: dict[int, int] = defaultdict(int)
    for tensor in dict.fromkeys(tensors):
        sizes[tensor.storage] += nbytes(tensor)
    return dict(sizes)
