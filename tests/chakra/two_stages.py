"""Two pipeline stages of two data-parallel ranks: a graph drawn by hand, whose simulated times are known.

The set that this graph exports to was run on ASTRA-sim's congestion-unaware back-end over a switch of 50 GiB/s and 500 ns
(ring collectives, four chunks, 1,600 GB/s of local memory): ranks 0 and 1 finished at 3,329,274 ns, 2 and 3 at 2,729,274.
"""

import numpy as np
from tests.drawn_graph import drawn_collectives, drawn_graph

from lumos.graph.table import Dependency, Graph, Kind, Processor

FINISH = (3_329_274, 3_329_274, 2_729_274, 2_729_274)
#: Ends of rank 0's nodes: forward, send, receive, backward, all-reduce, optimizer.
RANK_0 = (300_000, 379_125, 1_358_250, 1_958_250, 3_279_274, 3_329_274)

ACTIVATIONS, GRADIENTS = 4 << 20, 64 << 20

NETWORK = "topology: [ Switch ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]  # GiB/s\nlatency: [ 500.0 ]  # ns\n"

#: Per stage: (name, kind, microseconds, stream, what it depends on). Streams: compute, pipeline, data-parallel.
_STAGES = (
    [("fwd", "", 300, 0, []), ("send2", "send", 0, 1, [0]), ("recv3", "receive", 0, 1, [1]), ("bwd", "", 600, 0, [2])],
    [("recv1", "receive", 0, 1, []), ("fwd", "", 300, 0, [0]), ("bwd", "", 600, 0, [1]), ("send4", "send", 0, 1, [2])],
)


def two_stages() -> Graph:
    """The graph. Its communication has no durations; a simulator computes them."""
    names: list[str] = []
    rows = []  # name, kind, ns, processor, preds
    comm = []  # task, kind, bytes, group, sequence, peer
    by_name: dict[tuple[int, str], int] = {}
    for rank in range(4):
        stage, base = rank // 2, len(rows)
        last = 3 if stage == 0 else 2
        tasks = [*_STAGES[stage], ("coll5", "all-reduce", 0, 2, [last]), ("opt", "", 50, 0, [4])]
        for i, (name, kind, us, stream, preds) in enumerate(tasks):
            by_name[rank, name] = base + i
            if kind in ("send", "receive"):
                peer = (rank + 2) % 4
                sender = rank if kind == "send" else peer
                # Activations carry tags 100 + the sender, gradients 200 + the receiver.
                sequence = 100 + sender if sender < 2 else 200 + sender - 2
                comm.append((base + i, kind, ACTIVATIONS, -1, sequence, peer))
            elif kind:
                comm.append((base + i, kind, GRADIENTS, stage, -1, -1))
            rows.append((name, Kind.COLLECTIVE if kind else Kind.KERNEL, us * 1000, 3 * rank + stream, [base + p for p in preds]))
    names = sorted({row[0] for row in rows})
    sets = [(by_name[r, "send2"], by_name[r + 2, "recv1"]) for r in (0, 1)]
    sets += [(by_name[r + 2, "send4"], by_name[r, "recv3"]) for r in (0, 1)]
    sets += [(by_name[0, "coll5"], by_name[1, "coll5"]), (by_name[2, "coll5"], by_name[3, "coll5"])]
    return drawn_graph(
        [Processor(r, True, f"stream {s}", 0, s) for r in range(4) for s in range(3)],
        [(processor, kind, name, ns) for name, kind, ns, processor, _ in rows],
        [(before, after, Dependency.DATA) for after, row in enumerate(rows) for before in row[4]],
        sets,
        names=names,
        name=np.array([names.index(row[0]) for row in rows], np.int32),
        collectives=drawn_collectives(comm, ["stage 0", "stage 1"]),
    )
