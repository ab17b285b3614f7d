"""How durations and sizes follow the facts of a family of sets: its degrees of parallelism, its layers, its width.

Each operator's mean duration, and each communication's mean size, is a constant and a product of powers of the facts: a kernel takes some
time whatever it works on, and the rest follows the dimensions of its tensors. Taken are the whole powers that predict each set best from
the others. Beyond the sizes that were learned from this is a guess, and what jumps, such as a transfer that leaves a
node, it does not follow.

A transfer takes a time before anything moves, a time for each other rank, and a time for its bytes: all of them, their share that passes
each link of a ring, or once for each other rank (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005). The weights of the five parts, none negative, are those of least squares of relative errors over all sizes in all sets.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64

#: The whole powers that a product may have, and how many facts may vary at most, for all of them to be tried.
WHOLE, MOST_VARIED = (-1, 0, 1, 2), 6
#: The least part of a value that has to come from the others for these to predict it.
_OTHERS = 1e-6
#: By which share values may differ from the powers that they follow, and two misses from one another to count as alike.
FOLLOWS, ALIKE = 0.02, 0.005
#: What every transfer takes in a model, ns, before its own size and ranks are known: so short that an operator's transfers of one size have
#: one symbol, whose quantiles hold by how much they differ.
REFERENCE = 4_000

#: What one operator is: its name, whether the CPU runs it, and Chakra's node type.
OperatorKey = tuple[str, bool, int]
#: What a value is by the facts that vary: a constant, and the exponents of the facts in the product that is added to it.
Trend = tuple[float, ...]
#: The weights of the five parts of a transfer: ns, ns a rank, and three of ns a byte.
Weights = tuple[float, ...]


def varied(facts: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    """The facts in which the sets of a family differ."""
    return tuple(key for key in (facts[0] if facts else ()) if len({of_set[key] for of_set in facts}) > 1)


def middle(facts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The geometric mean over the sets of every fact in which they differ."""
    return {key: float(np.exp(np.mean([np.log(of_set[key]) for of_set in facts]))) for key in varied(facts)}


def factor(trend: Trend, keys: Sequence[str], to: Mapping[str, float], from_: Mapping[str, float]) -> float:
    """By how much a mean changes between two places in a family."""
    constant, *powers = trend
    there, here = (float(constant + prod(at[key] ** power for power, key in zip(powers, keys, strict=True))) for at in (to, from_))
    return there / here


def trends(means: Sequence[Mapping[OperatorKey, float]], facts: Sequence[Mapping[str, int]]) -> dict[OperatorKey, Trend]:
    """The trend of every operator by the facts that vary. means: for each set the mean of each operator that it runs."""
    seen: dict[OperatorKey, list[int]] = defaultdict(list)
    for i, of_set in enumerate(means):
        for operator, mean in of_set.items():
            if mean > 0:
                seen[operator].append(i)
    logs = np.array([[np.log(facts_of_one[key]) for key in varied(facts)] for facts_of_one in facts])
    return {op: _trend(logs[sets], np.array([means[i][op] for i in sets])) for op, sets in seen.items()}


def _trend(logs: NDArray[np.float64], values: NDArray[np.float64]) -> Trend:
    """The trend that predicts best each value from the others, the plainest of those that miss alike. Powers count where they hardly miss,
    or, with two values more than there are facts, by half as much as the mean: noise comes near to some of so many by chance."""
    n, keys = logs.shape
    middle: NDArray[np.float64] = logs.mean(axis=0)
    powers = np.array(sorted(product(WHOLE, repeat=keys), key=lambda powers_of_one: sum(map(abs, powers_of_one))), np.float64)
    moves, stays = np.exp(powers @ (logs - middle).T) / values, np.broadcast_to(1 / values, (len(powers), n))
    trend: Trend = tuple(0.0 for _ in range(1 + keys))
    if n < 2:
        return trend
    best = float(_left_out(moves[:1, :, None] * values.mean())[0][0])
    limit = max(FOLLOWS, best / 2 if n >= keys + 2 else 0.0)
    for parts in (moves,), (moves, stays):
        error, weights = _left_out(np.stack(parts, axis=2) * values.mean())
        first = int(np.rint(error / ALIKE).argmin())
        if error[first] <= limit and round(error[first] / ALIKE) < round(best / ALIKE):
            constant = weights[first][1] / weights[first][0] * np.exp(middle @ powers[first]) if len(parts) > 1 else 0.0
            best, trend = float(error[first]), (float(constant), *powers[first].tolist())
    return trend


def _left_out(parts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far each value's parts sum to one with weights from the other values, by the root of the mean square; and the weights from all.

    parts: float64[choices, values, parts]. A choice with a negative weight, or for which one value alone decides, misses by infinity.
    """
    inverse = np.linalg.pinv(parts.transpose(0, 2, 1) @ parts)
    weights = (inverse @ parts.sum(axis=1)[:, :, None])[:, :, 0]
    others = 1 - np.einsum("cvp,cpq,cvq->cv", parts, inverse, parts)
    missed = ((parts @ weights[:, :, None])[:, :, 0] - 1) / np.maximum(others, _OTHERS)
    usable = (weights[:, 0] > 0) & (weights >= 0).all(axis=1) & (others > _OTHERS).all(axis=1)
    return np.where(usable, np.sqrt(np.square(missed).mean(axis=1)), np.inf), weights


def means(workload: Workload, nodes: Int64, values: Int64) -> dict[OperatorKey, float]:
    """The mean of the values of these nodes, by operator."""
    values_of: dict[OperatorKey, list[int]] = defaultdict(list)
    for operator, value in zip(node_operators(workload, nodes), values.tolist(), strict=True):
        values_of[operator].append(value)
    return {operator: sum(of_operator) / len(of_operator) for operator, of_operator in values_of.items()}


def node_operators(workload: Workload, nodes: Int64) -> list[OperatorKey]:
    """The operator of each of these nodes."""
    columns = (column[nodes].tolist() for column in (workload.name, workload.on_cpu, workload.type))
    return [(workload.names[name], cpu, kind) for name, cpu, kind in zip(*columns, strict=True)]


def transfer_times(weights: Weights, size: NDArray[np.float64], ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """The time of transfers, ns. size: bytes. ranks: how many take part."""
    return np.asarray(_parts(size, ranks) @ np.array(weights))


def fitted(workloads: Sequence[Workload]) -> dict[OperatorKey, Weights]:
    """The weights of every operator that transfers. Those whose transfers take no time are left out."""
    seen: dict[OperatorKey, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for workload in workloads:
        nodes = workload.communication.node
        columns = (workload.communication.size.tolist(), workload.members().tolist(), workload.duration[nodes].tolist())
        for operator, size, ranks, duration in zip(node_operators(workload, nodes), *columns, strict=True):
            seen[operator][size, ranks].append(duration)
    weights = {}
    for operator, by_size in seen.items():
        size, ranks = np.array(list(by_size), np.float64).T
        time = np.array([np.mean(times) for times in by_size.values()])
        if (time > 0).all():
            weights[operator] = _weighed(_parts(size, ranks) / time[:, None])
    return weights


def _parts(size: NDArray[np.float64], ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    others = ranks - 1
    return np.stack([np.ones_like(size), others, size, size * others / ranks, size * others], axis=1)


def _weighed(parts: NDArray[np.float64]) -> Weights:
    """The weights, none negative, with which the parts sum to one as nearly as can be: the best of all choices of parts."""
    most = parts.shape[1]
    best, weights = np.inf, np.zeros(most)
    for chosen in (list(of_count) for count in range(1, most + 1) for of_count in combinations(range(most), count)):
        scale = np.abs(parts[:, chosen]).max(axis=0)
        if not scale.all():
            continue
        solved = np.linalg.lstsq(parts[:, chosen] / scale, np.ones(len(parts)), rcond=None)[0] / scale
        error = float(np.square(parts[:, chosen] @ solved - 1).sum())
        if (solved >= 0).all() and error < best - 1e-12:
            best, weights = error, np.zeros(most)
            weights[chosen] = solved
    return tuple(weights.tolist())
