"""What training costs to run: money and energy for the tokens that count, and the share of time that failures leave.

A failure anywhere stops the whole job, which starts again from its last checkpoint. With failures that come at random at a constant
rate, mean time M between those of the job, checkpoints that take δ each after τ of work, and R to run again, work of length T takes

    M · exp(R / M) · (exp((τ + δ) / M) − 1) · T / τ

(J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22, 2006).
Goodput is T over that time, at the interval between checkpoints that Daly gives as the best one.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import TYPE_CHECKING, NamedTuple

from lumos.cost.cluster import RentalPrice, rental_price

if TYPE_CHECKING:
    from lumos.cost.cluster import Cluster

_JOULES_PER_KWH = 3.6e6
_SECONDS_PER_DAY = 86400.0
_TRILLION = 1e12
#: Attempts of which so many mean times between failures must pass without one never end; their exponential would overflow.
_HOPELESS = 500.0


class Operating(NamedTuple):
    """What a job costs to run. None where the cluster's file does not say what it takes to know.

    goodput: share of the time in which training makes progress that is kept. checkpoint_every_s: work between two checkpoints, seconds.
    dollars_per_trillion_tokens, kwh_per_trillion_tokens: for tokens of kept progress. power_w: watts of one device. whole_power: whether
    that includes the device's share of host, network and cooling; otherwise it is the accelerator's own limit.
    """

    goodput: float | None
    checkpoint_every_s: float | None
    dollars_per_trillion_tokens: float | None
    kwh_per_trillion_tokens: float | None
    power_w: float | None
    whole_power: bool


def operating(cluster: Cluster, devices: int, tokens_per_s_per_gpu: float) -> Operating:
    """What a job of `devices` devices of `cluster` costs to run at this rate without failures (tokens per second and device)."""
    costs = cluster.operation
    share = every = None
    if costs.mtbf_hours is not None and costs.checkpoint_s is not None and costs.restart_s is not None:
        mean = 3600 * costs.mtbf_hours / devices
        every = checkpoint_interval(mean, costs.checkpoint_s)
        share = goodput(mean, costs.checkpoint_s, costs.restart_s, every)
    kept = tokens_per_s_per_gpu * (1.0 if share is None else share)
    device_s = _TRILLION / kept if kept else None  # None: no progress is kept
    power = costs.power_w or cluster.accelerator.power_w
    return Operating(
        goodput=share,
        checkpoint_every_s=every,
        dollars_per_trillion_tokens=None if costs.price_per_hour is None or device_s is None else device_s / 3600 * costs.price_per_hour,
        kwh_per_trillion_tokens=None if power is None or device_s is None else device_s * power / _JOULES_PER_KWH,
        power_w=power,
        whole_power=costs.power_w is not None,
    )


def checkpoint_interval(mean_s: float, checkpoint_s: float) -> float:
    """The seconds of work between two checkpoints that waste least. mean_s: between failures of the job. checkpoint_s: of a checkpoint."""
    part = checkpoint_s / (2 * mean_s)
    if part >= 1:
        return mean_s
    return sqrt(2 * checkpoint_s * mean_s) * (1 + sqrt(part) / 3 + part / 9) - checkpoint_s


def goodput(mean_s: float, checkpoint_s: float, restart_s: float, every_s: float) -> float:
    """The share of time that is kept progress, with checkpoints after every `every_s` seconds of work; see the module's formula."""
    if (restart_s + every_s + checkpoint_s) / mean_s > _HOPELESS:
        return 0.0
    return every_s / (mean_s * exp(restart_s / mean_s) * (exp((every_s + checkpoint_s) / mean_s) - 1))


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
