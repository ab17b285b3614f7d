"""Hide the structure of a sample: what stands between two communications becomes blocks, cut anew at random places.

The step, the communication and its overlap with compute stay. Which operators ran, how many, on how many threads and streams, and what
depended on what, is gone. What remains is the pattern of the communication, which follows from the plan; how much that gives away is
measured (`disclosure`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.build import graph_of
from lumos.chakra.forms.coarse import coarse
from lumos.chakra.lower import lower
from lumos.graph.edges import distinct
from lumos.graph.lists import list_of, offsets
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: A block is cut into one to this many pieces. Blocks shorter than SHORT ns stay whole.
MOST_PIECES = 4
SHORT = 4_000


def hidden(graph: Graph, seed: int = 0) -> Graph:
    """The graph with blocks cut at random in place of its operators. The same seed gives the same cuts."""
    blocks = coarse(lower(graph))
    names = (*["communication"] * (len(blocks.names) - 1), blocks.names[-1])
    return graph_of(cut_blocks(replace(blocks, names=names), np.random.default_rng(seed)))


def cut_blocks(workload: Workload, rng: np.random.Generator) -> Workload:
    """The workload with its compute nodes cut into pieces that run one after the other: the first waits for what the node waited for."""
    compute = (workload.type == NodeType.COMP) & (workload.duration >= SHORT)
    pieces = np.where(compute, rng.integers(1, MOST_PIECES + 1, len(workload)), 1)
    of = np.repeat(np.arange(len(workload)), pieces)
    first = offsets(pieces)[:-1]
    last = first + pieces - 1
    begin = _begins(workload, of, first, rng)
    inside = np.setdiff1d(np.arange(len(of)), first)
    before = np.concatenate((last[workload.dep], inside - 1))
    after = np.concatenate((first[list_of(workload.dep_offset)], inside))
    dep_offset, dep = distinct(before, after, len(of))
    end = np.append(begin[1:], 0)
    end[last] = workload.start + workload.duration
    columns = ("type", "on_cpu", "kind", "name", "queue", "release", "operations", "bytes")
    facts = workload.communication
    return replace(
        workload,
        **{name: getattr(workload, name)[of] for name in columns},
        rank_offset=offsets(pieces)[workload.rank_offset],
        start=begin,
        duration=end - begin,
        dep_offset=dep_offset,
        dep=dep,
        communication=replace(facts, node=first[facts.node]),
    )


def _begins(workload: Workload, of: Int64, first: Int64, rng: np.random.Generator) -> Int64:
    """When each piece begins: the first with its node, the others at random places within it, in order."""
    begin = workload.start[of] + np.rint(rng.random(len(of)) * workload.duration[of]).astype(np.int64)
    begin[first] = workload.start
    return begin[np.lexsort((begin, of))]
