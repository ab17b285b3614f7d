"""What a proxy benchmark runs: the operators of one step of every rank, with descriptions of their arguments.

A program is plain data and is written to `trace.json`, the only file of a benchmark with anything from the trace. It contains the
operators as recorded, nested as they called each other. Which of them run, and for which ones their parents or children run
instead, is decided where the benchmark runs, because that depends on what the torch there can run.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.vocabulary import CollectiveKind

#: Format and version of `trace.json`; the benchmark refuses any other.
FORMAT, VERSION = "lumos-proxy", 2

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


@dataclass(frozen=True, slots=True)
class StandIn:
    """A view of a storage. dtype: torch's name. strides, offset: in elements. storage: index into the rank's storages."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int


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


@dataclass(slots=True)
class RecordedOperator:
    """One recorded operator, or a range that the framework put around operators.

    inputs: None where the arguments were not recorded; else one entry per argument: `{"tensor": i}`, a list of these, or
    a plain value (None: absent or unknown). outputs: indices into the rank's tensors; None where unknown. start_ns: from
    the step's start, -1 where there are no times. device_ns: duration of the device work that it launched itself. stream: the
    stream of that work. kernel: whether that work includes kernels. after: operators whose device work or transfer it waits for.
    backward: the operator of the backward pass that uses what this one saved. synchronize: whether it is a call that waits for
    a device or stream. compiled: the file with its source, where it is a kernel of torch.compile.
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
    compiled: str = ""
    children: list[RecordedOperator] = field(default_factory=list)

    def walk(self) -> Iterator[RecordedOperator]:
        """This operator and everything that it called, in pre-order."""
        yield self
        for child in self.children:
            yield from child.walk()


def lift_transfers(operator: RecordedOperator) -> None:
    """Give an operator that issues a transfer the description that the row inside it has, which says more than the operator's own."""
    inner = [c for c in operator.walk() if c is not operator and c.collective is not None]
    if operator.name.startswith(("c10d::", "_c10d_functional::")) and inner:
        best = next((c.collective for c in inner if c.collective and c.collective.elements_in), None)
        operator.collective = best or operator.collective or inner[0].collective
        for one in inner:
            one.collective = None


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
    sources: Mapping[str, bytes] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """The content of `trace.json`."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "world_size": self.world_size,
            "max_memory_bytes": self.max_memory_bytes,
            "groups": self.groups,
            "kernels": {file: hashlib.sha256(source).hexdigest() for file, source in self.sources.items()},
            "ranks": [_rank_json(rank) for rank in self.ranks],
        }


def _rank_json(rank: RankProgram) -> dict[str, Any]:
    out = {key: getattr(rank, key) for key in ("rank", "step", "recorded_ns", "before_ns", "on_accelerator", "threads", "malloc")}
    operators = [one for root in rank.operators for one in _flat(root)]
    for number, slots in _last_uses(operators).items():
        operators[number]["last"] = slots
    tensors, storages = ([astuple(one) for one in values] for values in (rank.tensors, rank.storages))
    return {**out, "operators": operators, "tensors": tensors, "storages": storages}


#: Fields of an operator that are written where they have another value than most have.
_RARE = ("schema", "inputs", "outputs", "device_ns", "stream", "after", "backward", "synchronize", "compiled")


def _flat(operator: RecordedOperator) -> list[dict[str, Any]]:
    """An operator and all that it called, in pre-order. size: how many these are."""
    inner = [one for child in operator.children for one in _flat(child)]
    out: dict[str, Any] = {"name": operator.name, "size": 1 + len(inner)}
    out |= {"start_ns": operator.start_ns, "duration_ns": operator.duration_ns}
    out |= {key: value for key in _RARE if (value := getattr(operator, key)) != getattr(_PLAIN, key)}
    if operator.collective is not None:
        out["collective"] = asdict(operator.collective)
    elif not (is_operator(operator.name) or operator.kernel or operator.device_ns or operator.synchronize or operator.compiled):
        out["range"] = True
    return [out, *inner]


_PLAIN = RecordedOperator("")


def _last_uses(operators: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """By number of an operator, the tensors that nobody uses after it. What operator n returned counts as -1 - n where its tensors are not
    known, and is used until its backward operator has run."""
    last: dict[int, int] = {}
    for number, one in enumerate(operators):
        used = (*tensors_among(one.get("inputs")), *(one.get("outputs") or ()))
        last.update(dict.fromkeys(used, number + one["size"] - 1))
        backward = one.get("backward", -1)
        if "outputs" not in one and backward > number:
            last[-1 - number] = backward + operators[backward]["size"] - 1
    uses: dict[int, list[int]] = {}
    for tensor, number in last.items():
        uses.setdefault(number, []).append(tensor)
    return uses


def tensors_among(value: Any) -> Iterator[int]:
    """The indices of all tensors among arguments, also inside lists."""
    if isinstance(value, list):
        for item in value:
            yield from tensors_among(item)
    elif isinstance(value, dict) and "tensor" in value:
        yield value["tensor"]
