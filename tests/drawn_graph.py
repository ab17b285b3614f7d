"""A graph of a few tasks, drawn by hand or at random."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lumos.graph.table import Collectives, Dependency, Graph, Kind, Occupancy, Processor, Waits


def drawn_graph(
    processors: Sequence[Processor],
    tasks: Sequence[tuple[int, Kind, str, int]],
    edges: Sequence[tuple[int, int, Dependency]] = (),
    sets: Sequence[Sequence[int]] = (),
    waits: Sequence[tuple[int, int]] | Waits = (),
    occupancy: Sequence[tuple[int, float, int]] = (),
    **columns: Any,
) -> Graph:
    """tasks: of each the processor, kind, name and ns. edges: between their positions, before and after. sets: of tasks that meet. waits:
    tasks, and the streams they wait for. occupancy: tasks, shares of the device and ns. columns: further ones, or in place of these."""
    ranks, names = tuple(sorted({p.rank for p in processors})), list(dict.fromkeys(name for _, _, name, _ in tasks))
    edges = sorted(edges, key=lambda edge: edge[1])
    known: dict[str, Any] = {
        "ranks": ranks,
        "processors": tuple(processors),
        "names": names,
        "duration": np.array([ns for *_, ns in tasks], np.int64),
        "processor": np.array([processor for processor, *_ in tasks], np.int32),
        "kind": np.array([kind for _, kind, *_ in tasks], np.uint8),
        "name": np.array([names.index(name) for _, _, name, _ in tasks], np.int32),
        "event": np.full(len(tasks), -1, np.int32),
        "pred_offset": np.searchsorted([after for _, after, _ in edges], np.arange(len(tasks) + 1)).astype(np.int64),
        "pred": np.array([before for before, *_ in edges], np.int32),
        "pred_kind": np.array([kind for *_, kind in edges], np.uint8),
        "lag": np.zeros((len(ranks), len(Dependency)), np.int64),
        "rendezvous_offset": np.cumsum([0, *map(len, sets)]).astype(np.int64),
        "rendezvous_task": np.array([task for members in sets for task in members], np.int32),
        "waits": waits if isinstance(waits, Waits) else Waits(*(np.array([wait[i] for wait in waits], np.int32) for i in (0, 1))),
    }
    if occupancy:
        known["occupancy"] = Occupancy(*map(np.array, zip(*occupancy, strict=True), (np.int32, np.float32, np.int64)))
    return Graph(**known | columns)


def drawn_collectives(
    rows: Sequence[tuple[int, str, int, int, int, int]], groups: Sequence[str] = (), size: Sequence[int] | None = None
) -> Collectives:
    """rows: of each communication the task, the kind's name, bytes, position of its group, sequence and peer. size: of the groups."""
    kinds = tuple(dict.fromkeys(kind for _, kind, *_ in rows))
    task, kind, nbytes, group, sequence, peer = zip(*rows, strict=True) if rows else ((),) * 6
    narrow = [np.array(column, np.int32) for column in (task, [kinds.index(name) for name in kind], group, peer)]
    wide = [np.array(column, np.int64) for column in (nbytes, sequence)]
    sizes = None if size is None else np.array(size, np.int32)
    return Collectives(narrow[0], narrow[1], wide[0], narrow[2], wide[1], narrow[3], kinds, tuple(groups), sizes)
