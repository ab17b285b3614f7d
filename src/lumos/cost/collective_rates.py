"""The collectives of a recorded job compared with the cost model: how long the model says that their transfers take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.cost.cluster import Cluster, load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.from_trace import accelerator_of
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.collectives import CollectiveRow
    from lumos.trace.table import Job


class Modelled(NamedTuple):
    """The modelled transfer of one row, with its 80 % interval."""

    transfer_ns: float
    low_ns: float
    high_ns: float


def modelled_collectives(rows: Sequence[CollectiveRow], job: Job) -> tuple[list[Modelled | None], str]:
    """The modelled transfer of each row, and the name of the cluster that the model used.

    None for a row whose bytes or ranks are unknown, or whose kind has no model. Where the job's accelerator is unknown, all rows
    are None and the reason takes the place of the cluster's name.
    """
    try:
        cluster = load_cluster(accelerator_of(job.traces[0]).name)
    except LumosError as error:
        return [None] * len(rows), f"{error}"
    return [_modelled(row, cluster) for row in rows], cluster.name


def _modelled(row: CollectiveRow, cluster: Cluster) -> Modelled | None:
    if row.size_bytes is None or row.ranks is None:
        return None
    try:
        transfer = collective(row.kind, row.ranks, row.size_bytes, cluster)
    except LumosError:  # a kind without a model, or ranks or links that the cluster does not describe
        return None
    return Modelled(*(float(ns) for ns in (transfer.time, transfer.low, transfer.high)))
