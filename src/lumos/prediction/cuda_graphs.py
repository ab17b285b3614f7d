"""CUDA graphs in a layout: each pass over the layers is launched by one call.

A graph holds one pass (forward, or backward with what it recomputes) of one microbatch over consecutive layers of a rank.
Exchanges of parameters and gradients, and pipeline transfers, end a graph, and another one begins after them. One graph launch
replaces the host work of all its kernels, which then run in the order of their streams. Embedding, head, loss and optimizer
are not captured.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from lumos.blocks.block import Block, Times
from lumos.prediction.layout import Blocks, Item, Layout
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

#: CPU time of launching an instantiated graph once more: a fixed part and a part for each node, ns. Best guess: NVIDIA's figures
#: for CUDA 11.8; low: their figures for straight-line graphs since CUDA 12.6 ("Constant Time Launch for Straight-Line CUDA Graphs and Other
#: Performance Enhancements", NVIDIA technical blog, 2024); high: hipGraphLaunch of 421 nodes under the profiler, 507 µs, in the
#: public MI300 trace of vLLM.
LAUNCH = ((2000.0, 200.0), (2500.0, 1.0), (2000.0, 1200.0))


def graph_launch(nodes: int) -> Times:
    """CPU time of launching a graph of `nodes` kernels."""
    times = [round(fixed + per_node * nodes) for fixed, per_node in LAUNCH]
    return Times(times[0], min(times), max(times))


def captured(layout: Layout) -> Layout:
    """The layout with its passes over layers captured: the host time of each pass is that of one graph launch."""
    blocks = Blocks()

    def number(item: Item, nodes: int) -> int:
        """The number of the item's block: unchanged (nodes < 0), launching a graph (nodes > 0), or inside one (nodes = 0)."""
        block = layout.blocks[item.block]
        return blocks.number(blocks.make((item.block, nodes), lambda: _with_graph_launch(block, nodes)))

    def rearranged(items: Sequence[Item]) -> tuple[Item, ...]:
        out: list[Item] = []
        last: list[int] = []  # the last new item of each old one
        for inside, group in groupby(items, key=_captured_pass):
            run = list(group)
            nodes = sum(len(layout.blocks[i.block].ops) * i.repeat for i in run) if inside else -1
            for item in run:
                waits = tuple(last[w] for w in item.waits)
                if nodes > 0 and item.repeat > 1:  # only the first repetition launches the graph
                    out.append(replace(item, block=number(item, nodes), waits=waits, repeat=1))
                    out.append(replace(item, block=number(item, 0), waits=(len(out) - 1,), repeat=item.repeat - 1, host_waits=False))
                else:
                    out.append(replace(item, block=number(item, nodes), waits=waits))
                nodes = min(nodes, 0)
                last.append(len(out) - 1)
        return tuple(out)

    stages = tuple(rearranged(items) for items in layout.stages)
    return replace(layout, blocks=tuple(blocks.blocks), stages=stages)


def _captured_pass(item: Item) -> tuple[Phase, int] | None:
    return (item.phase, item.microbatch) if item.layer >= 0 and item.phase in (Phase.FORWARD, Phase.BACKWARD) else None


def _with_graph_launch(block: Block, nodes: int) -> Block:
    """The block with the host time of launching a graph of `nodes` kernels (0: the graph is launched already; negative: unchanged)."""
    if nodes < 0:
        return block
    first = graph_launch(nodes).best if nodes else 0
    return replace(block, before=0, ops=tuple(replace(op, host=first if i == 0 else 0) for i, op in enumerate(block.ops)))
