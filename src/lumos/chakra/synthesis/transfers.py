"""How long the transfers of a family of sets take: by their bytes and by how many ranks take part.

A transfer takes a time before anything moves, a time for each other rank, and a time for its bytes: all of them, their share that passes
each link of a ring, or once for each other rank (the models of collectives in Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", 2005). None of the five parts can be negative. Their weights are those of least squares of
relative errors over all sizes of an operator in all sets: the best of all choices of parts whose weights are not negative. A family has few
sets, but these have transfers of many sizes. So this predicts sizes that none of them has, where powers of the facts do not.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.synthesis.trends import node_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.chakra.synthesis.trends import OperatorKey
    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64

#: The weights of the five parts: ns, ns a rank, and three of ns a byte.
Weights = tuple[float, ...]

_PARTS = 5


#: What every transfer takes in a model, ns, before its own size and ranks are known: the middle of a symbol's durations.
REFERENCE = round(2 ** (20 + 1 / 16))


def transfer_times(weights: Weights, size: NDArray[np.float64], ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """The time of transfers, ns. size: bytes. ranks: how many take part."""
    time: NDArray[np.float64] = _parts(size, ranks) @ np.array(weights)
    return time


def fitted(workloads: Sequence[Workload]) -> dict[OperatorKey, Weights]:
    """The weights of every operator that transfers. Those whose transfers take no time are left out."""
    seen: dict[OperatorKey, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for workload in workloads:
        nodes = workload.communication.node
        columns = (workload.communication.size.tolist(), ranks_of(workload).tolist(), workload.duration[nodes].tolist())
        for operator, size, ranks, duration in zip(node_operators(workload, nodes), *columns, strict=True):
            seen[operator][size, ranks].append(duration)
    found = {}
    for operator, by_size in seen.items():
        size, ranks = np.array(list(by_size), np.float64).T
        time = np.array([np.mean(each) for each in by_size.values()])
        if (time > 0).all():
            found[operator] = _fit(_parts(size, ranks) / time[:, None])
    return found


def ranks_of(workload: Workload) -> Int64:
    """How many ranks take part in each communication."""
    return members_of(workload.groups, workload.communication.group)


def members_of(groups: Sequence[Sequence[int]], group: NDArray[np.signedinteger]) -> Int64:
    """How many ranks are members of each of these groups, given by their numbers; 2 for ABSENT, which messages have."""
    members: Int64 = np.array([2, *map(len, groups)], np.int64)[group + 1]
    return members


def _parts(size: NDArray[np.float64], ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    others = ranks - 1
    return np.stack([np.ones_like(size), others, size, size * others / ranks, size * others], axis=1)


def _fit(parts: NDArray[np.float64]) -> Weights:
    """The weights, none negative, with which the parts sum to one as nearly as can be."""
    best, weights = np.inf, np.zeros(_PARTS)
    for chosen in (list(each) for count in range(1, _PARTS + 1) for each in combinations(range(_PARTS), count)):
        scale = np.abs(parts[:, chosen]).max(axis=0)
        if not scale.all():
            continue
        solved = np.linalg.lstsq(parts[:, chosen] / scale, np.ones(len(parts)), rcond=None)[0] / scale
        error = float(np.square(parts[:, chosen] @ solved - 1).sum())
        if (solved >= 0).all() and error < best - 1e-12:
            best, weights = error, np.zeros(_PARTS)
            weights[chosen] = solved
    return tuple(weights.tolist())
