"""The collectives of a recorded job beside the cost model: how fast they were, and how fast the model says they would be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lumos.analyze.collectives import CollectiveRow
from lumos.cost.cluster import Cluster, load_cluster
from lumos.cost.collective import collective
from lumos.cost.from_trace import accelerator_of
from lumos.errors import LumosError
from lumos.trace.table import Job


class Modelled(NamedTuple):
    """What the model says of one row: transfer and its 80 % interval, ns."""

    transfer_ns: float
    low_ns: float
    high_ns: float


def modelled_collectives(rows: Sequence[CollectiveRow], job: Job) -> tuple[list[Modelled | None], str]:
    """The model's transfer for each row, and on which cluster; None for rows whose bytes or ranks are unknown, that the model does
    not know, or all of them where the job's accelerator is unknown, with the reason in place of the cluster."""
    try:
        cluster = load_cluster(accelerator_of(job.traces[0]).name)
    except LumosError as error:
        return [None] * len(rows), f"{error}"
    return [_modelled(row, cluster) for row in rows], cluster.name


def _modelled(row: CollectiveRow, cluster: Cluster) -> Modelled | None:
    if row.size_bytes is None or row.ranks is None:
        return None
    try:
        found = collective(row.kind, row.ranks, row.size_bytes, cluster)
    except LumosError:  # a kind, a size of job or a link that the cluster does not describe
        return None
    return Modelled(*(float(ns) for ns in (found.time, found.low, found.high)))
