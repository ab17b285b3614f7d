"""The player of Chakra sets against a second one: random sets of compute, messages and remote memory, drawn by seed.

python -m validation.chakra_player --seed N [--sets 200]        prints the errors of the player and of the imported set's replay

The reference knows the simulator's rules and nothing of `lumos.chakra.play`: at each time it looks at every node of every
rank anew. Collectives are not in these sets: what they take is held to the simulator's own answers (`validation.chakra`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import lumos
from lumos.chakra.gather import gather
from lumos.chakra.play import play
from lumos.chakra.system_files import network_of
from lumos.errors import LumosError
from lumos.simulation import simulate
from lumos.trace.chakra.protobuf import frame
from lumos.trace.chakra.schema import Attribute, ChakraNode, Metadata, NodeType
from lumos.trace.chakra.wire import encode_metadata, encode_node

LATENCY, BANDWIDTH, MEMORY_LATENCY, MEMORY_BANDWIDTH = 700, 25.0, 300, 50


@dataclass
class Node:
    """A node of a random set, and in the reference when it was issued and ends (ns)."""

    number: int
    kind: NodeType
    on_cpu: bool = False
    micros: int = 0
    size: int = 0
    peer: int = -1
    tag: int = 0
    after: list[int] = field(default_factory=list)
    issued: int | None = None
    end: int | None = None

    def slot(self) -> str | None:
        """What the node occupies on its rank."""
        if self.kind is NodeType.RECV:
            return None
        if self.on_cpu:
            return "cpu"
        return "device" if self.kind is NodeType.COMP else "link"


def random_set(rng: np.random.Generator) -> list[list[Node]]:
    """Two to six ranks. Every dependency is on a node drawn earlier, so that the set can end; ids have no order."""
    ranks: list[list[Node]] = [[] for _ in range(int(rng.integers(2, 7)))]
    memory = rng.random() < 0.3
    for _ in range(int(rng.integers(10, 30)) * len(ranks)):
        if rng.random() < 0.5:
            rank = int(rng.integers(len(ranks)))
            kind = NodeType.MEM_LOAD if memory and rng.random() < 0.2 else NodeType.COMP
            micros = int(rng.integers(1, 60)) if kind is NodeType.COMP else 0
            cpu = kind is NodeType.COMP and rng.random() < 0.3
            _add(rng, ranks[rank], Node(0, kind, cpu, micros, int(rng.integers(1, 1 << 20))))
            continue
        source, target = (int(r) for r in rng.choice(len(ranks), 2, replace=False))
        size, tag = int(rng.integers(1, 4)) << int(rng.integers(8, 21)), int(rng.integers(3))
        _add(rng, ranks[source], Node(0, NodeType.SEND, size=size, peer=target, tag=tag))
        _add(rng, ranks[target], Node(0, NodeType.RECV, size=size, peer=source, tag=tag))
    for nodes in ranks:
        for node, number in zip(nodes, rng.permutation(len(nodes)).tolist(), strict=True):
            node.number = number + 1
    return ranks


def _add(rng: np.random.Generator, nodes: list[Node], node: Node) -> None:
    recent = range(max(len(nodes) - 6, 0), len(nodes))
    node.after = sorted({int(rng.choice(recent)) for _ in range(int(rng.integers(0, 3))) if len(recent)})
    nodes.append(node)


def write(ranks: list[list[Node]], folder: Path) -> None:
    """The files of a set: its nodes in a random place order of their own ids, and what a simulator is given beside them."""
    for rank, nodes in enumerate(ranks):
        messages = [encode_metadata(Metadata())]
        messages += [encode_node(_encoded(node, nodes)) for node in sorted(nodes, key=lambda node: node.number)]
        (folder / f"set.{rank}.et").write_bytes(b"".join(map(frame, messages)))
    (folder / "net.yml").write_text(
        f"topology: [ Switch ]\nnpus_count: [ {len(ranks)} ]\nbandwidth: [ {BANDWIDTH} ]\nlatency: [ {LATENCY} ]\n"
    )
    memory = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": MEMORY_LATENCY, "remote-mem-bw": MEMORY_BANDWIDTH}
    (folder / "mem.json").write_text(json.dumps(memory))


def _encoded(node: Node, nodes: list[Node]) -> ChakraNode:
    attrs = [Attribute("is_cpu_op", "bool", node.on_cpu)]
    if node.kind in (NodeType.SEND, NodeType.RECV):
        peer = "comm_dst" if node.kind is NodeType.SEND else "comm_src"
        values = ((peer, node.peer), ("comm_size", node.size), ("comm_tag", node.tag))
        attrs += [Attribute(name, "int64", value) for name, value in values]
    elif node.kind is NodeType.MEM_LOAD:
        attrs.append(Attribute("tensor_size", "uint64", node.size))
    after = tuple(nodes[place].number for place in node.after)
    return ChakraNode(node.number, node.kind.name, node.kind, data_deps=after, duration_micros=node.micros, attrs=tuple(attrs))


def reference(ranks: list[list[Node]]) -> list[int]:
    """When each rank ends. One event after the other: what ends next frees its slot, and its rank then fills its slots again. A message
    that is awaited ends its receive in the same event, as in the simulator's handler of arrivals."""
    running: list[tuple[int, int, Node]] = []
    arrived: dict[tuple[int, int, int, int], int] = {}
    posted: dict[tuple[int, int, int, int], list[tuple[int, Node]]] = {}

    def fill(now: int, rank: int) -> None:
        nodes = ranks[rank]
        able = [n for n in nodes if n.issued is None and all(nodes[a].end is not None for a in n.after)]
        busy = {n.slot() for _, r, n in running if r == rank}
        for node in sorted(able, key=lambda node: node.number):
            if node.kind is NodeType.RECV:
                node.issued = now
                key = (node.peer, rank, node.tag, node.size)
                if arrived.get(key):
                    arrived[key] -= 1
                    running.append((now, rank, node))
                else:
                    posted.setdefault(key, []).append((rank, node))
            elif node.slot() not in busy:
                node.issued = now
                busy.add(node.slot())
                running.append((now + _lasts(node), rank, node))

    for rank in range(len(ranks)):
        fill(0, rank)
    while running:
        now, rank, node = running.pop(min(range(len(running)), key=lambda i: running[i][0]))
        node.end = now
        fill(now, rank)
        key = (rank, node.peer, node.tag, node.size)
        if node.kind is NodeType.SEND and posted.get(key):  # the receive ends with the send, before anything else of that time
            target, receive = posted[key].pop(0)
            receive.end = now
            fill(now, target)
        elif node.kind is NodeType.SEND:
            arrived[key] = arrived.get(key, 0) + 1
    return [max(node.end if node.end is not None else -1 for node in nodes) if nodes else 0 for nodes in ranks]


def _lasts(node: Node) -> int:
    if node.kind is NodeType.SEND:
        return int(2 * LATENCY + node.size / (BANDWIDTH * 2**30 / 1e9))
    if node.kind is NodeType.MEM_LOAD:
        return MEMORY_LATENCY + int(node.size / MEMORY_BANDWIDTH)
    return node.micros * 1000


def score(rng: np.random.Generator, folder: Path) -> tuple[float, float]:
    """The largest relative error of a rank's end in one random set: of the player, and of the replay of the imported set."""
    ranks = random_set(rng)
    while not all(ranks):
        ranks = random_set(rng)
    write(ranks, folder)
    wanted = np.array(reference(ranks))
    if any(node.end is None for nodes in ranks for node in nodes):
        refused = not lumos.chakra.check(folder).ok
        return (0.0, 0.0) if refused else (np.inf, np.inf)  # messages of one tag and size meet in the order of issue, and that may hang
    workload = gather(lumos.read(folder))
    played = np.maximum.reduceat(play(workload, network_of(folder)).end, workload.rank_offset[:-1])
    job = lumos.build(lumos.read(folder))
    end = simulate(job).end
    rank = np.array([job.processors[p].rank for p in job.processor])
    replayed = np.array([end[rank == r].max() for r in job.ranks])
    return float(np.abs(played / wanted - 1).max()), float(np.abs(replayed / wanted - 1).max())


def scores(seed: int, sets: int) -> list[tuple[float, float] | str]:
    """The scores of that many sets; a text where a set was refused."""
    out: list[tuple[float, float] | str] = []
    for number in range(sets):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                out.append(score(np.random.default_rng([seed, number]), Path(scratch)))
            except LumosError as error:
                out.append(str(error))
    return out


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sets", type=int, default=200)
    given = parser.parse_args()
    found = scores(given.seed, given.sets)
    ran = np.array([one for one in found if not isinstance(one, str)])
    print(f"seed {given.seed}: {len(found)} sets, {len(found) - len(ran)} refused")
    for name, errors in zip(("player", "replay"), ran.T, strict=True):
        print(f"  {name}: {int((errors == 0).sum())} exact, {int((errors <= 0.01).sum())} within 1 %, worst {errors.max():.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
