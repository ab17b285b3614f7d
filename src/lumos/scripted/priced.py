"""An emulated job at the prices of a recording, simulated: its loop, and where the time of each task comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import Steady, steady, with_other_durations
from lumos.scripted.carry import PriceSource
from lumos.simulation.durations import with_durations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lumos.scripted.carry import Carried, RankPrices
    from lumos.scripted.match import Lone
    from lumos.scripted.script import Kindred, Script
    from lumos.trace.table import Int64


@dataclass(frozen=True, eq=False)
class PricedJob:
    """loop: what the job takes. low_ns, high_ns: a step of it at the ends of the prices' intervals. scaled, modelled: bool by task of the
    job, whether a part of its time was scaled, or more than half of it modelled. new: as in `Carried`."""

    loop: Steady
    low_ns: float
    high_ns: float
    scaled: NDArray[np.bool_]
    modelled: NDArray[np.bool_]
    new: list[Lone]


def at_prices(script: Script, carried: Carried, calls: Mapping[str, float], *, repeat: bool | None) -> PricedJob:
    """Simulate a job. calls: what calls that order work take, by name, ns. repeat: whether its steps are a loop."""
    of_each = [_durations(kindred, prices, calls) for kindred, prices in carried.each]
    best, low, high, scaled, modelled = (np.concatenate([of_each[i][column] for i in carried.of]) for column in range(5))
    owners = replace(script.owners, graph=with_durations(script.ranks.graph, best))
    loop = steady(owners, repeat=repeat)
    ends = [
        with_other_durations(loop, prices).step_time_ns if not np.array_equal(prices, best) else loop.step_time_ns
        for prices in (low, high)
    ]
    return PricedJob(loop, min(*ends, loop.step_time_ns), max(*ends, loop.step_time_ns), scaled > 0, 2 * modelled > best, carried.new)


def _durations(kindred: Kindred, prices: RankPrices, calls: Mapping[str, float]) -> Int64:
    """What the tasks of a rank take at the best prices and at both ends, how much of it was scaled, and modelled: ns, int64[5, tasks]."""
    ends = [kindred.durations(end, calls) for end in (prices.best, prices.low, prices.high)]
    parts = (np.where(prices.source == source, prices.best, 0.0) for source in (PriceSource.SCALED, PriceSource.MODELLED))
    return np.rint(np.stack([*ends, *(kindred.durations(part, None) for part in parts)])).astype(np.int64)
