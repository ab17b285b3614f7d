"""What communication and compute cost where a set does not say: the model of ASTRA-sim's analytical back-end.

The model ignores congestion. A message of n bytes takes n / bandwidth plus the latency of its hops (two through a
switch). A collective is cut into chunks, and each chunk goes through the steps of the ring algorithm; in a step every
rank sends a share to its neighbour: 2(N - 1) shares of 1/N for an all-reduce, N - 1 otherwise. Every step and every
reduction adds the endpoint delay, and reducing n bytes reads two operands and writes one, 3n bytes of local memory.

Source: ASTRA-sim (github.com/astra-sim/astra-sim), whose times for a small two-stage job this reproduces to 0.001 %;
tests/chakra/two_stages.py holds that job and its times. Limits: a group uses only the first dimension of the network, and
collectives that run at the same time do not share the bandwidth of a link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.trace.chakra_wire import CollectiveType, NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumos.chakra.workload import Workload

#: Bytes per ns of 1 GiB/s, in which networks are given.
GIB = 2**30 / 1e9


@dataclass(frozen=True, slots=True)
class Network:
    """bandwidth: GiB/s of a link. latency: ns of a hop. endpoint: ns of delay at the end of each step. chunks: parts of a
    collective. local: GB/s of local memory. peak: TFLOP/s."""

    topology: str = "Switch"
    bandwidth: float = 50.0
    latency: float = 500.0
    endpoint: float = 10.0
    chunks: int = 4
    local: float = 1600.0
    peak: float = 900.0

    def message(self, nbytes: float) -> float:
        """ns that a point-to-point message takes."""
        return nbytes / (self.bandwidth * GIB) + (2 if self.topology == "Switch" else 1) * self.latency

    def collective(self, kind: int, nbytes: float, ranks: int) -> float:
        """ns that a ring collective of `nbytes` input bytes per rank takes."""
        steps = ranks - 1
        share = nbytes if kind == CollectiveType.ALL_GATHER else nbytes / ranks
        reduces = kind in (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER, CollectiveType.REDUCE, CollectiveType.BARRIER)
        passes = 2 * steps if kind in (CollectiveType.ALL_REDUCE, CollectiveType.BARRIER) else steps
        transfer = self.chunks * passes * (self.message(share / self.chunks) + self.endpoint)
        if not reduces:
            return transfer
        reduced = share * steps
        return transfer + 3 * reduced / self.local + 3 * self.endpoint * steps

    def compute(self, operations: float, nbytes: float) -> float:
        """ns of a kernel by the roofline: the slower of its operations and its bytes."""
        return max(operations / (self.peak * 1e3), max(nbytes, 0) / self.local)


def read_network(folder: Path) -> Network | None:
    """The network of a set's folder, None where it has no network file. LumosError where the file cannot be understood."""
    network, system = folder / "net.yml", folder / "sys.json"
    if not network.is_file():
        return None
    try:
        lists = yaml_lists(network.read_text(errors="replace"))
        values: dict[str, Any] = msgspec.json.decode(system.read_bytes(), type=dict[str, Any]) if system.is_file() else {}
        return Network(
            topology=lists["topology"][0],
            bandwidth=float(lists["bandwidth"][0]),
            latency=float(lists["latency"][0]),
            endpoint=_positive(values, "endpoint-delay", 10.0, zero=True),
            chunks=int(_positive(values, "preferred-dataset-splits", 4)),
            local=_positive(values, "local-mem-bw", 1600.0),
            peak=_positive(values, "peak-perf", 900.0),
        )
    except (KeyError, IndexError, ValueError, msgspec.MsgspecError, OSError) as error:
        raise LumosError(f"{network}: the network cannot be understood ({error}); see `chakra export --astra-sim`") from error


def _positive(values: Mapping[str, Any], key: str, default: float, *, zero: bool = False) -> float:
    value = values.get(key, default)
    if not isinstance(value, (int, float)) or not (value >= 0 if zero else value > 0):
        raise ValueError(f"{key} is {value!r}")
    return float(value)


def durations(workload: Workload, network: Network | None) -> tuple[Int64, list[Diagnostic]]:
    """The duration of every node, from the cost model where the set gives none; and diagnostics that say so."""
    out = workload.duration.copy()
    missing = np.flatnonzero(out == ABSENT)
    if not len(missing):
        return out, []
    net = network or Network()
    facts = workload.communication
    row_of = dict(zip(facts.node.tolist(), range(len(facts)), strict=True))
    memo: dict[tuple[int, ...], int] = {}
    for node in missing.tolist():
        row = row_of.get(node)
        if row is None:
            out[node] = round(net.compute(int(workload.operations[node]), int(workload.bytes[node])))
            continue
        size = max(int(facts.size[row]), 0)
        ranks = len(workload.groups[facts.group[row]]) if facts.group[row] >= 0 else 0
        key = (int(workload.type[node]), int(facts.type[row]), size, ranks)
        if key not in memo:
            memo[key] = round(net.collective(key[1], size, ranks) if key[0] == NodeType.COLL else net.message(size))
        # The send takes the time; the receive ends when the data has arrived.
        out[node] = 0 if workload.type[node] == NodeType.RECV else memo[key]
    how = "from the set's network file" if network else f"on an assumed network ({net.bandwidth:g} GiB/s, {net.latency:g} ns a hop)"
    return out, [Diagnostic("costed", f"{len(missing)} nodes have no duration and were costed {how}")]


def yaml_lists(text: str) -> dict[str, list[str]]:
    """The `key: [ a, b ]` lines of a network file."""
    lines = re.finditer(r"(?m)^([\w-]+)\s*:\s*\[([^\]]*)\]", text)
    return {line[1]: [item.strip() for item in line[2].split(",") if item.strip()] for line in lines}
