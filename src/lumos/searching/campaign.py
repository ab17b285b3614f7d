"""How long a training run of many steps takes with a plan, and what its devices cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.cost.prices import rental_price
from lumos.prediction.operating import operating

if TYPE_CHECKING:
    from lumos.cost.cluster import Cluster
    from lumos.cost.prices import RentalPrice

_SECONDS_PER_DAY = 86400.0


class Campaign(NamedTuple):
    """A run over `tokens` tokens. days, dollars: with the time that failures cost, where the cluster's file says how often they come; None
    where failures leave no progress, dollars also where no price is known. price: of a device and hour, with its source."""

    tokens: float
    days: float | None
    dollars: float | None
    price: RentalPrice | None


def campaign(cluster: Cluster, devices: int, rate: float, tokens: float, own_price: float | None = None) -> Campaign:
    """The run over `tokens` tokens on `devices` devices. rate: tokens per second and device. own_price: dollars of a device and hour."""
    share = operating(cluster, devices, rate).goodput
    kept = rate * devices * (1.0 if share is None else share)
    days = tokens / kept / _SECONDS_PER_DAY if kept else None
    price = rental_price(cluster, own_price)
    dollars = None if price is None or days is None else 24 * days * devices * price.dollars_per_hour
    return Campaign(tokens, days, dollars, price)
