"""Text workloads of ASTRA-sim 1.0: a line for each layer, read as the nodes of all ranks, which a network file beside it counts.

The first line names the policy of parallelism, the second the number of layers. Each layer has a name, a reserved number, and for its
forward pass, input gradients and weight gradients the cycles of compute (1 ns each) and the type and bytes of a collective; then the delay
after each collective, ns. Forward, a layer awaits the collective of the one before it. Backward, that of the input gradients runs beside
the compute of the weight gradients, and theirs beside all that follows; with data parallelism the weight gradients come first. A
recommender's embedding meets the others at the first layer behind the last bottom one, whose number follows the policy.

Source: github.com/astra-sim/astra-sim, examples/text_converter/text_workloads/README.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from lumos.characters import is_whole
from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.trace.blocks import unpacked_blocks
from lumos.trace.chakra.companions import Companion, companions, yaml_lists
from lumos.trace.chakra.et import trace_of
from lumos.trace.chakra.schema import Attribute, ChakraNode, CollectiveType, Metadata, NodeType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lumos.trace.table import Trace


class Policy(StrEnum):
    """How a network, or a layer of it, is spread over the ranks."""

    MICRO = "MICRO"
    DATA = "DATA"
    MODEL = "MODEL"
    DATA_MODEL = "HYBRID_DATA_MODEL"
    MODEL_DATA = "HYBRID_MODEL_DATA"
    TRANSFORMER = "HYBRID_TRANSFORMER"
    DLRM = "HYBRID_DLRM"
    DLRM_ENHANCED = "HYBRID_DLRM_ENHANCED"
    CUSTOMIZED = "HYBRID_CUSTOMIZED"
    INFERENCE = "DISTRIBUTED_INFERENCE"


class Meeting(Enum):
    """Which ranks meet: none, all, those that lie next to one another, or those at the same place among their neighbours."""

    NONE, ALL, INNER, OUTER = range(4)


_RECOMMENDERS = (Policy.DLRM, Policy.DLRM_ENHANCED)
#: Which ranks exchange the outputs, the input gradients and the weight gradients of a layer.
_SPANS = {
    **dict.fromkeys((Policy.MICRO, Policy.DATA, *_RECOMMENDERS), (Meeting.NONE, Meeting.NONE, Meeting.ALL)),
    **dict.fromkeys((Policy.DATA_MODEL, Policy.TRANSFORMER), (Meeting.INNER, Meeting.INNER, Meeting.OUTER)),
    Policy.MODEL_DATA: (Meeting.OUTER, Meeting.OUTER, Meeting.INNER),
    Policy.MODEL: (Meeting.ALL, Meeting.ALL, Meeting.NONE),
    Policy.INFERENCE: (Meeting.ALL, Meeting.NONE, Meeting.NONE),
}
_KINDS = {kind.name.replace("_", ""): kind for kind in CollectiveType}
_PHASES = ("forward", "input_gradient", "weight_gradient")
_FIELDS = "a name, a reserved number, three times a time, a collective and its bytes, and a delay"
#: The most nodes that are made: some GB.
_MOST_NODES = 5_000_000


class Layer(NamedTuple):
    """A line of the file. The tuples have the forward pass, the input gradients and the weight gradients. compute: ns. kind: None where
    nothing is exchanged. size: bytes. delay: ns after each collective."""

    name: str
    compute: tuple[int, ...]
    kind: tuple[CollectiveType | None, ...]
    size: tuple[int, ...]
    span: tuple[Meeting, ...]
    delay: int


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` names a policy on its first line and a number of layers on its second."""
    return re.match(rb"\s*(?:MICRO|DATA|MODEL|HYBRID_[A-Z_]+|DISTRIBUTED_INFERENCE)\b[^\n]*\n\s*\d{1,9}\s", head) is not None


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> tuple[Trace, ...]:
    """Read the traces of all ranks that run the workload. TraceError, with the line, the reason and what to do, where it is broken or no
    network file beside it says how many ranks there are."""
    text = b"".join(unpacked_blocks(path, progress)).decode(errors="replace")
    (first, header), (second, told), *rows = [(at, line.split()) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if header[0] not in list(Policy):
        raise TraceError(f"{path}: line {first}: {header[0]} is not read; known are {', '.join(Policy)}")
    if len(rows) != int(told[0]):
        raise TraceError(f"{path}: line {second}: says {told[0]} layers, and {len(rows)} follow; write the number that there are")
    policy, sizes = Policy(header[0]), _network(path)
    world = prod(sizes)
    inner = _setting(path, first, header, "model_parallel_NPU_group:") if policy is Policy.TRANSFORMER else sizes[0]
    if not inner or world % inner:
        raise TraceError(f"{path}: line {first}: groups of {inner} do not divide the {world} ranks of the network; change one of them")
    top = 1 + _setting(path, first, header, policy) if policy in _RECOMMENDERS else 0
    if top and top >= len(rows):
        raise TraceError(f"{path}: line {first}: no layer follows number {top - 1}, the last bottom layer; give its place, from 0")
    layers = [_layer(path, number, fields, policy, not index) for index, (number, fields) in enumerate(rows)]
    run = _Run({Meeting.NONE: 0, Meeting.ALL: world, Meeting.INNER: inner, Meeting.OUTER: world // inner})
    run.step(policy, layers, top)
    if world * len(run.nodes) > _MOST_NODES or not run.nodes:
        why = f"{world:,} ranks with {len(run.nodes):,} nodes each" if run.nodes else "no layer does anything"
        raise TraceError(f"{path}: {why}; give a smaller network file, or other layers")
    return tuple(_traces(path, run, world, inner))


def _network(path: Path) -> tuple[int, ...]:
    """How many ranks lie along each dimension, innermost first, by the network file beside the workload."""
    file = companions(path.parent).get(Companion.NETWORK)
    counts = [] if file is None else yaml_lists(file.read_text(errors="replace")).get("npus_count", [])
    if not counts or not all(is_whole(n) and int(n) for n in counts):
        where = f"{path.parent} has no network file" if file is None else f"{file} has no numbers in npus_count"
        raise TraceError(f"{path}: a text workload does not say how many ranks run it, and {where}; put net.yml (npus_count: [ 8 ]) there")
    return tuple(map(int, counts))


def _setting(path: Path, line: int, header: Sequence[str], before: str) -> int:
    """The number behind a word of the first line."""
    following = header[header.index(before) + 1 :][:1] if before in header else []
    if not following or not is_whole(following[0]):
        raise TraceError(f"{path}: line {line}: {header[0]} needs a number behind {before!r}; write it there")
    return int(following[0])


def _layer(path: Path, line: int, fields: Sequence[str], policy: Policy, is_first: bool) -> Layer:
    wanted, more = (13, ", then its policy") if policy is Policy.CUSTOMIZED else (12, "")
    if len(fields) != wanted:
        raise TraceError(f"{path}: line {line}: {len(fields)} fields instead of {wanted} ({_FIELDS}{more}); write all of them")
    compute, kind, size, delay = fields[2:9:3], fields[3:10:3], fields[4:11:3], fields[11]
    wrong = [text for text in (*compute, *size, delay) if not is_whole(text) or int(text) >> 52]
    if wrong:
        raise TraceError(f"{path}: line {line}: {wrong[0]!r} is no whole number of ns or bytes below 2^52; write one")
    unknown = [text for text in kind if text not in (*_KINDS, "NONE")]
    if unknown:
        raise TraceError(f"{path}: line {line}: {unknown[0]} is no collective; write NONE or one of {', '.join(_KINDS)}")
    own = fields[-1] if policy is Policy.CUSTOMIZED else policy
    if own not in _SPANS:
        raise TraceError(f"{path}: line {line}: {own} is no policy of a layer; write one of {', '.join(_SPANS)}")
    spans = (Meeting.ALL,) * 3 if is_first and policy in _RECOMMENDERS else _SPANS[Policy(own)]
    return Layer(fields[0], tuple(map(int, compute)), tuple(map(_KINDS.get, kind)), tuple(map(int, size)), spans, int(delay))


@dataclass(slots=True)
class _Run:
    """What every rank runs. size: how many ranks a span has. spans: of the nodes that are collectives. left_out: how many collectives have
    no ranks to meet. last: the compute that the next one follows."""

    size: Mapping[Meeting, int]
    nodes: list[ChakraNode] = field(default_factory=list)
    spans: dict[int, Meeting] = field(default_factory=dict)
    left_out: int = 0
    last: int = 0

    def step(self, policy: Policy, layers: Sequence[Layer], top: int) -> None:
        """Add a training step. top: the first layer that awaits the embedding of a recommender, 0 where there is none."""
        awaited = embedded = 0
        for index, layer in enumerate(layers):
            if policy is Policy.MICRO:
                self.exchange(layer, 2)
                continue
            self.compute(layer, 0, awaited if index == top or not top else 0)
            awaited = self.exchange(layer, 0) if not index or not top else awaited
        for index, layer in [] if policy in (Policy.INFERENCE, Policy.MICRO) else reversed([*enumerate(layers)]):
            if policy is Policy.DATA or top:
                self.compute(layer, 2, 0 if index else embedded)
                self.exchange(layer, 2)
                if index:
                    self.compute(layer, 1)
                embedded = self.exchange(layers[0], 1) if top and index == top else embedded
            else:
                self.compute(layer, 1, awaited)
                awaited = self.exchange(layer, 1) if index else 0
                self.compute(layer, 2)
                self.exchange(layer, 2)

    def compute(self, layer: Layer, phase: int, awaited: int = 0) -> None:
        """Add the compute of a phase, behind the last one and the node that it awaits."""
        self.last = self._add(f"{layer.name}_{_PHASES[phase]}", {self.last, awaited}, layer.compute[phase])

    def exchange(self, layer: Layer, phase: int) -> int:
        """Add the collective of a phase behind the last compute, and its delay; returns what is awaited of it, 0 where there is none."""
        kind, size, span = layer.kind[phase], layer.size[phase], layer.span[phase]
        if kind is None or not size or self.size[span] < 2:
            self.left_out += kind is not None and size > 0
            return 0
        name = f"{layer.name}_{_PHASES[phase]}"
        facts = (Attribute("comm_type", "int64", int(kind)), Attribute("comm_size", "int64", size))
        number = self._add(f"{name}_{kind.name.lower()}", {self.last}, 0, facts, NodeType.COLL)
        self.spans[number] = span
        late = (Attribute("is_cpu_op", "bool", True),)
        return self._add(f"{name}_delay", {number}, layer.delay, late) if layer.delay else number

    def _add(self, name: str, awaited: set[int], ns: int, attrs: tuple[Attribute, ...] = (), kind: NodeType = NodeType.COMP) -> int:
        number, deps = len(self.nodes) + 1, tuple(sorted(awaited - {0}))
        exact = Attribute("duration_ns", "int64", ns)
        self.nodes.append(ChakraNode(number, name, kind, data_deps=deps, duration_micros=(ns + 500) // 1000, attrs=(exact, *attrs)))
        return number


def _traces(path: Path, run: _Run, world: int, inner: int) -> Iterator[Trace]:
    """The traces of all ranks, of which `inner` lie next to one another."""
    text = f"{path}: {run.left_out} collectives are of passes in which the policy and the network let no ranks meet; left out"
    for rank in range(world):
        block, position = divmod(rank, inner)
        number = {Meeting.ALL: 0, Meeting.INNER: 1 + block, Meeting.OUTER: 1 + world // inner + position}
        members = {Meeting.INNER: range(rank - position, rank - position + inner), Meeting.OUTER: range(position, world, inner)}
        named = {span: Attribute("pg_name", "string", str(at)) for span, at in number.items()}
        own = [replace(n, attrs=(*n.attrs, named[run.spans[n.id]])) if n.id in run.spans else n for n in run.nodes]
        trace = trace_of(path, Metadata(), own, rank=rank)
        groups = [{"pg_name": named[span].value, "ranks": list(members[span])} for span in set(run.spans.values()) - {Meeting.ALL}]
        notes = () if rank or not run.left_out else (Diagnostic("collectives-left-out", text),)
        yield replace(trace, metadata={**trace.metadata, "distributedInfo": {"pg_config": groups}}, diagnostics=trace.diagnostics + notes)
