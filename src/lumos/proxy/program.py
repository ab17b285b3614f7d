"""What a proxy benchmark runs: the operators of one step of every rank, with descriptions of their arguments.

A program is plain data and is written to `trace.json`, the only file of a benchmark with anything from the trace. It contains the
operators as recorded, nested as they called each other. Which of them run, and for which ones their parents or children run
instead, is decided where the benchmark runs, because that depends on what the torch there can run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lumos.vocabulary import CollectiveKind

#: Format and version of `trace.json`; the benchmark refuses any other.
FORMAT, VERSION = "lumos-proxy", 1

#: `Storage.bound` of floating point values of which an operator takes a root or a logarithm.
NON_NEGATIVE = 2

#: Prefixes of names that look like those of operators, but are ranges that PyTorch puts around operators.
_RANGES = ("torch::autograd", "torch::distributed", "torch.distributed", "autograd::engine")


def is_operator(name: str) -> bool:
    """Whether a name is that of an operator of torch's dispatcher: "namespace::name"."""
    return "::" in name and " " not in name and not name.startswith(_RANGES)


@dataclass(slots=True)
class Storage:
    """Memory of tensors. device: "cpu" or "accelerator".

    bound: integers are drawn from [0, bound); where it is negative, they ascend from 0 to -bound. Floats are normally
    distributed, or absolute values of such numbers where it is NON_NEGATIVE.
    """

    nbytes: int
    device: str
    bound: int = 1

    def json(self) -> list[Any]:
        return [self.nbytes, self.device, self.bound]


@dataclass(frozen=True, slots=True)
class StandIn:
    """A view of a storage. dtype: torch's name. strides, offset: in elements. storage: index into the rank's storages."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int

    def json(self) -> list[Any]:
        return [self.dtype, list(self.shape), list(self.strides), self.offset, self.storage]


#: How the names of operators end that take the tensor to write first, and then the one to read: c10d::alltoall_base_ and its like.
OUTPUT_FIRST = "_base_"


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective or point-to-point transfer, with the arguments of the process group's call.

    group: index into `Program.groups`, -1 unknown. elements_in, elements_out: of this rank's input and output. peer: root,
    source or destination, as a rank of the group, -1 none. splits_in, splits_out: elements for each rank, or empty. end_ns: when
    the transfer ended, from the step's start; -1 unknown.
    """

    kind: CollectiveKind
    dtype: str
    elements_in: int
    elements_out: int
    group: int = -1
    peer: int = -1
    splits_in: tuple[int, ...] = ()
    splits_out: tuple[int, ...] = ()
    end_ns: int = -1


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """How a compiled kernel was launched. file: its source, a plain file name. grid: the function of torch's inductor that gives the
    grid, and the sizes that it takes; None where the source knows them itself (torch 2.7 and later)."""

    file: str
    grid: tuple[str, tuple[int, ...]] | None = None

    def json(self) -> dict[str, Any]:
        return {"file": self.file, "grid": self.grid}


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The source of one compiled kernel, as a benchmark takes it along."""

    text: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


@dataclass(slots=True)
class RecordedOperator:
    """One recorded operator, or a range that the framework put around operators.

    inputs: None where the arguments were not recorded; else one entry per argument: `{"tensor": i}`, a list of these, or
    a plain value (None: absent or unknown). outputs: indices into the rank's tensors; None where unknown. start_ns: from
    the step's start, -1 where there are no times. device_ns: duration of the device work that it launched itself. stream: the
    stream of that work. kernel: whether that work includes kernels. after: operators whose device work or transfer it waits for.
    backward: the operator of the backward pass that uses what this one saved. synchronize: whether it is a call that waits for
    a device or stream. compiled: how it was launched, where it is a kernel of torch.compile whose source was named.
    Operators are referred to by their number in pre-order.
    """

    name: str
    schema: str = ""
    inputs: list[Any] | None = None
    outputs: list[int] | None = None
    start_ns: int = -1
    duration_ns: int = 0
    device_ns: int = 0
    stream: int = -1
    kernel: bool = False
    after: list[int] = field(default_factory=list)
    backward: int = -1
    collective: RecordedCollective | None = None
    synchronize: bool = False
    compiled: CompiledKernel | None = None
    children: list[RecordedOperator] = field(default_factory=list)

    def walk(self) -> Iterator[RecordedOperator]:
        """This operator and everything that it called, in pre-order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class RankProgram:
    """One rank's step. recorded_ns: its measured time (`analyze.loop.steps`: the period where there is one) by the rank's own
    completions, -1 unknown. threads: intra-op threads, 0 unknown. before_ns: the part of recorded_ns before the first operator."""

    rank: int
    step: str
    recorded_ns: int
    on_accelerator: bool
    threads: int
    operators: list[RecordedOperator]
    tensors: list[StandIn]
    storages: list[Storage]
    malloc: dict[str, str] = field(default_factory=dict)  # glibc's settings in the recording, which affect the cost of new memory
    before_ns: int = 0

    def walk(self) -> Iterator[RecordedOperator]:
        """All operators in pre-order, which is the order of their numbers."""
        for operator in self.operators:
            yield from operator.walk()


@dataclass(slots=True)
class Program:
    """A whole benchmark. groups: the ranks of every process group, in order. sources: of compiled kernels, by the names of their files."""

    ranks: list[RankProgram]
    groups: list[tuple[int, ...]]
    world_size: int
    source: str  # where the arguments come from: "profiler" or "execution trace"
    max_memory_bytes: int = 0  # limit for tensors; 0: set by the device
    sources: Mapping[str, KernelSource] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """The content of `trace.json`."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "world_size": self.world_size,
            "max_memory_bytes": self.max_memory_bytes,
            "groups": [list(group) for group in self.groups],
            "kernels": {file: source.sha256 for file, source in self.sources.items()},
            "ranks": [_rank_json(rank) for rank in self.ranks],
        }


def _rank_json(rank: RankProgram) -> dict[str, Any]:
    names: dict[str, int] = {}
    return {
        "rank": rank.rank,
        "step": rank.step,
        "recorded_ns": rank.recorded_ns,
        "before_ns": rank.before_ns,
        "on_accelerator": rank.on_accelerator,
        "threads": rank.threads,
        "malloc": rank.malloc,
        "operators": [_operator_json(operator, names) for operator in rank.operators],
        "names": list(names),
        "tensors": [tensor.json() for tensor in rank.tensors],
        "storages": [storage.json() for storage in rank.storages],
    }


def _operator_json(operator: RecordedOperator, names: dict[str, int]) -> dict[str, Any]:
    """Fields with their default value are left out, because most operators have few others."""
    out: dict[str, Any] = {"name": names.setdefault(operator.name, len(names))}
    if operator.schema:
        out["schema"] = operator.schema
    if operator.inputs is not None:
        out["inputs"] = operator.inputs
    if operator.outputs is not None:
        out["outputs"] = operator.outputs
    out["start_ns"], out["duration_ns"] = operator.start_ns, operator.duration_ns
    for key, default in (("device_ns", 0), ("stream", -1), ("kernel", False), ("backward", -1), ("synchronize", False)):
        if getattr(operator, key) != default:
            out[key] = getattr(operator, key)
    if operator.after:
        out["after"] = operator.after
    if operator.collective is not None:
        out["collective"] = {name: getattr(operator.collective, name) for name in RecordedCollective.__slots__}
    if operator.compiled is not None:
        out["compiled"] = operator.compiled.json()
    if operator.children:
        out["children"] = [_operator_json(child, names) for child in operator.children]
    return out
