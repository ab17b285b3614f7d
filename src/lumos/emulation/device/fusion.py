"""What a compiled part of a script launches: chains of memory-bound operators as one kernel each.

A script's compiled functions run operator by operator here, inside ranges that say so. The backward pass of a call is no range: it is the
nodes that share a number with an operator of the range, and what runs inside them, a forward pass run again included. A compiler drops an
operator whose results nothing reads; so the record is read backwards, and an operator is needed where it makes or changes memory that a
needed operator reads later, that is communicated later, or that the script has still when the range is over.

This follows what TorchInductor does with the graph (torch/_inductor/scheduler.py): an element-wise operator, a reduction, a normalisation
or a copy is not run where it stands, but as part of the kernel that is first needed by an operator which cannot be fused (a multiplication,
attention, …) or by the end of the range. Such a kernel reads what others made and writes what others need. The backward pass of a range
makes intermediate values again from what was kept, as the partitioner of AOTAutograd does, and a kernel what is cheap to make. Operators on
complex numbers are left alone (torch/_inductor/lowering.py). Limits: kernels that only share what they read stay apart, and breaks of the
graph are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Traffic
from lumos.cost.memory_bound_model import NORMALISATION, POINTWISE, REDUCTION, STRIDED
from lumos.emulation.device.launch import DeviceEngine, Launch, in_lines, nbytes, results_of, tensors_of
from lumos.emulation.record import REGION_PREFIX, enclosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lumos.emulation.record import Operator, Process, Tensor


class Region(NamedTuple):
    """A call of a compiled function: the place of its mark, and whether it is the backward pass of that call."""

    mark: int
    backward: bool


def compiled(process: Process) -> dict[int, Region]:
    """The region of every operator that belongs to a compiled range, or to the backward pass of one."""
    found: dict[int, Region] = {}
    marks = [(i, mark) for i, mark in enumerate(process.marks) if mark.name.startswith(REGION_PREFIX)]
    if not marks:
        return found
    forward: dict[tuple[int, int], int] = {}
    for i, place in _inside(process, [(mark.thread, mark.begin, mark.end, i) for i, mark in marks]):
        operator, found[i] = process.operators[i], Region(place, False)
        if operator.sequence >= 0 and operator.forward_thread < 0:
            forward.setdefault((operator.thread, operator.sequence), place)
    nodes = [
        (each.thread, each.begin, each.end, forward[each.forward_thread, each.sequence])
        for each in process.operators
        if each.forward_thread >= 0 and (each.forward_thread, each.sequence) in forward
    ]
    for i, place in _inside(process, nodes):
        found.setdefault(i, Region(place, True))
    return found


def _inside(process: Process, spans: Sequence[tuple[int, int, int, int]]) -> Iterator[tuple[int, int]]:
    """The operators in spans of threads, by their index, with what the innermost span of each carries. spans: thread, begin, end, that."""
    every = [(thread, begin, end, -1 - place) for place, (thread, begin, end, _) in enumerate(spans)]
    every += [(each.thread, each.begin, each.end, i) for i, each in enumerate(process.operators)]
    for i, around in enclosed(every):
        within = next((each for each in reversed(around) if each < 0), 0)
        if i >= 0 > within:
            yield i, spans[-1 - within][3]


def gives_back(process: Process) -> Callable[[Region, int], bool]:
    """Whether the script has a storage still when a region is over: after the range of a forward pass, and at the end of the record for a
    backward pass, whose end has no mark."""
    freed = {each.storage: each.position for each in process.allocations if each.bytes <= 0}

    def given(region: Region, storage: int) -> bool:
        return storage not in freed or (not region.backward and freed[storage] > process.marks[region.mark].end)

    return given


def unneeded(process: Process, working: Iterable[int], regions: Mapping[int, Region]) -> set[int]:
    """The operators that a compiler drops, by their index. working: those that launch anything."""
    given_back = gives_back(process)
    moments = [(process.operators[i].begin, i) for i in working]
    moments += [(exchange.begin, -1 - i) for i, exchange in enumerate(process.exchanges)]
    read: set[int] = set()
    dropped: set[int] = set()
    for _, i in sorted(moments, reverse=True):
        if i < 0:
            read.update(process.exchanges[-1 - i].storages)
            continue
        operator = process.operators[i]
        made = {tensor.storage for tensor in results_of(operator)}
        if i in regions and made and read.isdisjoint(made) and not any(given_back(regions[i], storage) for storage in made):
            dropped.add(i)
        else:
            read.update(tensor.storage for tensor in tensors_of(operator.inputs))
    return dropped


#: Classes of kernels that are fused, the one that a kernel of several takes first.
_CLASSES = (NORMALISATION, REDUCTION, POINTWISE, STRIDED)
_NAMES = {NORMALISATION: "triton_per_fused", REDUCTION: "triton_red_fused", POINTWISE: "triton_poi_fused", STRIDED: "triton_poi_fused"}
#: Words of a fused kernel's name, so that it stays readable.
_WORDS = 4
#: Operators that write their first tensor without reading it.
_OVERWRITE = ("copy", "fill", "zero")
#: A value of element-wise work that reads so many tensors at most is made again where it is read (realize_reads_threshold in
#: torch/_inductor/config.py).
_READS = 4
#: Stands among the readers of a storage for a collective or message.
_EXCHANGE = -1


class _Piece(NamedTuple):
    """A memory-bound operator that waits to be fused. reads, writes: bytes by storage."""

    name: str
    kernel_class: str
    reads: dict[int, int]
    writes: dict[int, int]


class _Made(NamedTuple):
    """Of memory that a kernel makes: bytes of each storage that it is made from, and whether that takes a reduction."""

    sources: dict[int, int]
    reduced: bool

    @property
    def is_cheap(self) -> bool:
        return not self.reduced and len(self.sources) <= _READS


def launched(process: Process, kernels: Callable[[Operator], list[Launch]]) -> tuple[list[list[Launch]], dict[int, Region]]:
    """What each operator of a process launches, and the region of those that were compiled, by their index."""
    regions = compiled(process)
    own = [kernels(operator) for operator in process.operators]
    return (_Fusion(process, own, regions).run() if regions else own), regions


class _Fusion:
    """Goes through the operators and exchanges in their order, and keeps what is to be fused until it is needed."""

    def __init__(self, process: Process, own: Sequence[list[Launch]], regions: dict[int, Region]) -> None:
        self.process, self.regions = process, regions
        working = {i for i, operator in enumerate(process.operators) if operator.leaf and own[i]}
        dropped = unneeded(process, working, regions)
        self.out = [[] if i in dropped else list(each) for i, each in enumerate(own)]
        self.pieces = {i: piece for i in regions if (piece := _piece(process.operators[i], self.out[i])) is not None}
        self.reads = {i: {tensor.storage for tensor in tensors_of(process.operators[i].inputs)} for i in working - dropped}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for i, storages in self.reads.items():
            for storage in storages:
                self.readers[storage].append(i)
        for exchange in process.exchanges:
            for storage in exchange.storages:
                self.readers[storage].append(_EXCHANGE)
        self.given_back = gives_back(process)
        self.waiting: dict[int, _Piece] = {}
        self.makers: dict[int, list[int]] = defaultdict(list)
        self.sources: dict[int, dict[int, int]] = {}  # of a storage that was never written: what it is made from again, with bytes

    def run(self) -> list[list[Launch]]:
        operators = self.process.operators
        moments = [(operator.begin, i, self.reads.get(i, set())) for i, operator in enumerate(operators)]
        moments += [(exchange.begin, _EXCHANGE, set(exchange.storages)) for exchange in self.process.exchanges]
        moments.sort(key=lambda moment: moment[0])
        ends = {self.regions[i]: i for _, i, _ in moments if i in self.regions}
        last = -1  # the operator of a region that came last
        for _, i, reads in moments:
            if i in self.pieces:
                self._wait(i)
            elif self.waiting and (needed := self._needed(reads)):
                at = i if i in self.regions else last
                self.out[at] = [*self._kernels(needed), *self.out[at]] if at == i else [*self.out[at], *self._kernels(needed)]
            if i in self.regions:
                last = i
                if ends[self.regions[i]] == i:
                    self.out[i] += self._kernels({each for each in self.waiting if self.regions[each] == self.regions[i]})
        return self.out

    def _wait(self, i: int) -> None:
        self.out[i] = []
        self.waiting[i] = self.pieces[i]
        for storage in self.pieces[i].writes:
            self.makers[storage].append(i)

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
        for i in sorted(chosen, key=lambda one: self.process.operators[one].begin):
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
        sizes: dict[int, int] = {}
        made: dict[int, _Made] = {}
        reads: dict[int, int] = {}
        for piece in pieces:
            own, reduced = dict[int, int](), piece.kernel_class in (NORMALISATION, REDUCTION)
            for storage, size in piece.reads.items():
                sources, reduced_before = made.get(storage, _Made(self.sources.get(storage, {storage: size}), False))
                _add(own, sources)
                reduced |= reduced_before
            _add(reads, own)
            sizes |= piece.writes
            made |= dict.fromkeys(piece.writes, _Made(own, reduced))
        members, here = set(group), self.regions[group[0]]
        written = [storage for storage, found in made.items() if self._is_kept(storage, members, here, found.is_cheap)]
        self.sources |= {storage: found.sources for storage, found in made.items() if storage not in written}
        size = sum(reads.values()) + sum(sizes[storage] for storage in written)
        if not written or not size:
            return None
        kernel_class = min((piece.kernel_class for piece in pieces), key=_CLASSES.index)
        words = "_".join(list(dict.fromkeys(piece.name for piece in pieces))[:_WORDS])
        return Launch(f"{_NAMES[kernel_class]}_{words}", Traffic(size, 1, kernel_class))

    def _is_kept(self, storage: int, group: set[int], here: Region, cheap: bool) -> bool:
        """Whether an operator outside of the group reads it, other than one that makes it again: a fused one of the backward pass of the
        same range, or, where it is cheap to make, of the same pass. What nobody reads is a result of the script's, such as the loss,
        where the script has it still."""
        readers = self.readers.get(storage, [])
        if not readers:
            return self.given_back(here, storage)
        again = {Region(here.mark, True)} - {here} | ({here} if cheap else set())
        return any(i not in group and (i not in self.pieces or self.regions[i] not in again) for i in readers)


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
    found: dict[int, int] = defaultdict(int)
    for tensor in dict.fromkeys(tensors):
        found[tensor.storage] += nbytes(tensor)
    return dict(found)
