"""Compare a sample with a set that was held out operator by operator, which the distributions of all operators together cannot.

Many operators of a set last alike: one that takes too long stands where another stood, and the distributions agree. And most nodes are
short, so the few that make up the step hardly show. Here each operator of the set that was held out is compared with its own in the
sample, and weighs as much as it takes time. A sample has no names; the model numbers its operators, and one who holds the sets that were
learned from knows which is which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.synthesis.buckets import OF_LAYERS, separated
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int32, Int64

    #: The values of each operator.
    Values = Mapping[str, Int64]


def operator_names(workloads: Sequence[Workload], facts: Sequence[Mapping[str, int]] = ()) -> tuple[str, ...]:
    """The name of every label of the model that is learned from the same workloads; the model itself holds none."""
    given = separated(workloads, facts)[0]
    return tuple(dict.fromkeys(name for workload in given for name in workload.names))


def operator_distances(held_out: Workload, sample: Workload, names: Sequence[str]) -> dict[str, float]:
    """How far the operators of a sample are from those of a set: shares of the set's time, bytes and nodes that are missed.

    names: what each name of the sample stands for. Of the durations of "host", "compute" and "communication" and of the "size" of
    communication: the distance that they must move, ns or bytes, to be distributed as in the set (Wasserstein's), for each operator as
    often as the set runs it, over their sum. What only one of the two runs counts whole. Of "runs": by how many nodes a rank the operators
    differ, over all nodes of a rank.
    """
    truth, drawn = _by_class(held_out, held_out.names), _by_class(sample, [name.removesuffix(OF_LAYERS) for name in names])
    out = {key: _missed(truth[key], drawn[key]) for key in truth if truth[key]}
    ours, theirs = (_runs(found, len(w.ranks)) for found, w in ((truth, held_out), (drawn, sample)))
    out["runs"] = sum(abs(theirs.get(key, 0.0) - ours.get(key, 0.0)) for key in {*ours, *theirs}) / sum(ours.values())
    return out


def _by_class(workload: Workload, names: Sequence[str]) -> dict[str, dict[str, Int64]]:
    """The durations of every operator by the class of its nodes, ns, and the sizes of its communication, bytes."""
    compute = workload.type == NodeType.COMP
    classes = {"host": compute & workload.on_cpu, "compute": compute & ~workload.on_cpu, "communication": ~compute}
    out = {key: _grouped(workload.name[of], workload.duration[of], names) for key, of in classes.items()}
    facts = workload.communication
    return out | {"size": _grouped(workload.name[facts.node], facts.size, names)}


def _grouped(name: Int32, values: Int64, names: Sequence[str]) -> dict[str, Int64]:
    """The values of each name; names that are the same count as one."""
    found: dict[str, list[Int64]] = {}
    for i in np.unique(name).tolist():
        found.setdefault(names[i], []).append(values[name == i])
    return {key: np.concatenate(each) for key, each in found.items()}


def _missed(truth: Values, drawn: Values) -> float:
    """The share of the sum of all values by which those of the same operator differ."""
    both = truth.keys() & drawn.keys()
    moved = sum(len(truth[key]) * wasserstein(truth[key], drawn[key]) for key in both)
    alone = sum(float(values.sum()) for key, values in (*truth.items(), *drawn.items()) if key not in both)
    total = sum(float(values.sum()) for values in truth.values())
    return (moved + alone) / total if total else 0.0


def wasserstein(a: Int64, b: Int64) -> float:
    """How far the values of one sample must move on average to be distributed as those of another (the area between the cumulative
    distributions)."""
    both = np.sort(np.concatenate([a, b]))
    one, two = (np.searchsorted(np.sort(values), both[:-1], side="right") / len(values) for values in (a, b))
    return float((np.abs(one - two) * np.diff(both)).sum())


def _runs(found: Mapping[str, Values], ranks: int) -> dict[tuple[str, str], float]:
    """How many nodes of each operator a rank has on average."""
    return {(key, name): len(values) / ranks for key, of in found.items() if key != "size" for name, values in of.items()}
