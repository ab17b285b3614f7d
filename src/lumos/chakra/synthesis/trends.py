"""How durations and sizes follow the facts of a family of sets: its degrees of parallelism, its layers, its width.

Within a family each operator's mean duration, and each communication's smallest and largest size, is taken as a product of powers of
the facts: of one operator's transfers some may hold a layer, which grows with the square of the width, and one the embedding, which does
not. The exponents are those of least squares over the sets that run the operator, drawn to zero as far as that predicts each of these
sets best from the others: few sets leave some exponents open. Products of powers are what costs follow between the sizes of a family;
beyond the sizes that were learned from they are a guess, and what jumps, such as a transfer that leaves a node, they do not follow.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64

#: How strongly exponents may be drawn to zero: as shares of the squared logarithms of the facts, a set.
_PULLS = (1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 100.0)

#: What one operator is: its name, whether the CPU runs it, and Chakra's node type.
OperatorKey = tuple[str, bool, int]
Exponents = tuple[float, ...]


def varied(facts: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    """The facts in which the sets of a family differ."""
    return tuple(key for key in (facts[0] if facts else ()) if len({each[key] for each in facts}) > 1)


def middle(facts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The geometric mean of every fact over the sets."""
    return {key: float(np.exp(np.mean([np.log(each[key]) for each in facts]))) for key in (facts[0] if facts else ())}


def factor(exponents: Exponents, keys: Sequence[str], to: Mapping[str, float], from_: Mapping[str, float]) -> float:
    """By how much a mean changes between two places in a family."""
    return float(np.exp(sum(e * np.log(to[key] / from_[key]) for e, key in zip(exponents, keys, strict=True))))


def exponents(means: Sequence[Mapping[OperatorKey, float]], facts: Sequence[Mapping[str, int]]) -> dict[OperatorKey, Exponents]:
    """The exponents of every operator by the facts that vary. means: for each set the mean of each operator that it runs."""
    keys = varied(facts)
    seen: dict[OperatorKey, list[int]] = defaultdict(list)
    for i, of_set in enumerate(means):
        for operator, mean in of_set.items():
            if mean > 0:
                seen[operator].append(i)
    logs = np.array([[np.log(each[key]) for key in keys] for each in facts]).reshape(len(facts), len(keys))
    return {operator: _fit(logs[sets], np.log([means[i][operator] for i in sets])) for operator, sets in seen.items()}


def _fit(logs: NDArray[np.float64], values: NDArray[np.float64]) -> Exponents:
    """The exponents that predict best each value from the others (ridge regression; its error with one set left out has a closed form)."""
    n = len(values)
    x, y = logs - logs.mean(axis=0), values - values.mean()
    found = []
    for pull in _PULLS:
        solve = np.linalg.solve(x.T @ x + pull * n * np.eye(x.shape[1]), x.T)
        weight = np.maximum(1 - 1 / n - np.einsum("ij,ji->i", x, solve), _PULLS[0])  # of a set's own value in its prediction, less one
        found.append((float(np.square((y - x @ solve @ y) / weight).sum()), tuple((solve @ y).tolist())))
    return min(found)[1] if n > 1 else (0.0,) * x.shape[1]


def mean_durations(workload: Workload) -> dict[OperatorKey, float]:
    """The mean duration of every operator of a set, ns."""
    total: dict[OperatorKey, list[int]] = defaultdict(lambda: [0, 0])
    for operator, duration in zip(node_operators(workload, np.arange(len(workload))), workload.duration.tolist(), strict=True):
        total[operator][0] += duration
        total[operator][1] += 1
    return {operator: time / count for operator, (time, count) in total.items()}


def extreme_sizes(workload: Workload, pick: Callable[[float, float], float]) -> dict[OperatorKey, float]:
    """The smallest or the largest size, as `pick` does, of every communication of a set, bytes."""
    nodes, found = workload.communication.node, dict[OperatorKey, float]()
    for operator, size in zip(node_operators(workload, nodes), workload.communication.size.tolist(), strict=True):
        found[operator] = pick(found.get(operator, size), size)
    return found


def node_operators(workload: Workload, nodes: Int64) -> list[OperatorKey]:
    """The operator of each of these nodes."""
    columns = (column[nodes].tolist() for column in (workload.name, workload.on_cpu, workload.type))
    return [(workload.names[name], cpu, kind) for name, cpu, kind in zip(*columns, strict=True)]
