"""What renting a device costs, as published on a date; `data/prices.toml` holds the prices with their sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.cost.cluster import Cluster

_DATA = Path(__file__).parent / "data" / "prices.toml"


class RentalPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars of one device and hour. date: year and month of the price, empty for one that the user states; source: whose it is."""

    dollars_per_hour: float
    date: str
    source: str


@cache
def _prices() -> Mapping[str, RentalPrice]:
    return msgspec.toml.decode(_DATA.read_bytes(), type=dict[str, RentalPrice])


def rental_price(cluster: Cluster, own: float | None = None) -> RentalPrice | None:
    """The price of a cluster's device: `own`, else what the cluster's file says, else a published one; None if there is none."""
    stated = cluster.operation.price_per_hour if own is None else own
    if stated is not None:
        return RentalPrice(stated, "", "as stated" if own is not None else f"as the file of {cluster.name} states")
    return _prices().get(cluster.accelerator.name)
