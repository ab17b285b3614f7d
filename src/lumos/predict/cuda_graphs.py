"""CUDA graphs in a layout: the passes over the layers, each launched by one call.

Captured is one pass (forward, or backward with what it recomputes) of one microbatch over layers that follow each other on
a rank; exchanges of parameters and gradients and pipeline transfers between them cut it. Its host work falls away; one graph
launch in its place enqueues all of its kernels, which then follow each other in the order of their streams. Embedding,
head, loss and optimizer stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from lumos.blocks.block import Block, Times
from lumos.predict.layout import Blocks, Item, Layout
from lumos.vocabulary import Phase

#: CPU time of launching an instantiated graph again: a fixed part and one for every node, ns. Best guess: NVIDIA's figures for
#: CUDA 11.8; low: theirs for straight-line graphs since CUDA 12.6 ("Constant Time Launch for Straight-Line CUDA Graphs and Other
#: Performance Enhancements", NVIDIA technical blog, 2024); high: hipGraphLaunch of 421 nodes under the profiler, 507 µs, in the
#: public MI300 trace of vLLM.
LAUNCH = ((2000.0, 200.0), (2500.0, 1.0), (2000.0, 1200.0))


def graph_launch(nodes: int) -> Times:
    """CPU time of one graph launch with so many nodes."""
    times = [round(fixed + each * nodes) for fixed, each in LAUNCH]
    return Times(times[0], min(times), max(times))


def captured(layout: Layout) -> Layout:
    """The layout with its passes over layers captured: the host time of each is that of one graph launch."""
    blocks = Blocks()

    def number(item: Item, nodes: int) -> int:
        """The item's block as it is (nodes < 0), or in a graph, which it launches where that has `nodes` > 0."""
        block = layout.blocks[item.block]
        return blocks.number(blocks.make((item.block, nodes), lambda: _hosted(block, nodes)))

    def rearranged(items: Sequence[Item]) -> tuple[Item, ...]:
        out: list[Item] = []
        ends: list[int] = []  # the new item that ends each old one
        for inside, group in groupby(items, key=_captured_pass):
            run = list(group)
            nodes = sum(len(layout.blocks[i.block].ops) * i.repeat for i in run) if inside else -1
            for item in run:
                waits = tuple(ends[w] for w in item.waits)
                if nodes > 0 and item.repeat > 1:  # only the first of its runs launches the graph
                    out.append(replace(item, block=number(item, nodes), waits=waits, repeat=1))
                    out.append(replace(item, block=number(item, 0), waits=(len(out) - 1,), repeat=item.repeat - 1, host_waits=False))
                else:
                    out.append(replace(item, block=number(item, nodes), waits=waits))
                nodes = min(nodes, 0)
                ends.append(len(out) - 1)
        return tuple(out)

    stages = tuple(rearranged(items) for items in layout.stages)
    return replace(layout, blocks=tuple(blocks.blocks), stages=stages)


def _captured_pass(item: Item) -> tuple[Phase, int] | None:
    return (item.phase, item.microbatch) if item.layer >= 0 and item.phase in (Phase.FORWARD, Phase.BACKWARD) else None


def _hosted(block: Block, nodes: int) -> Block:
    """The block with the host time of launching a graph of `nodes` (0: it is launched already; negative: as it is)."""
    if nodes < 0:
        return block
    first = graph_launch(nodes).best if nodes else 0
    return replace(block, before=0, ops=tuple(replace(op, host=first if i == 0 else 0) for i, op in enumerate(block.ops)))
