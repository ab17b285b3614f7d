"""An emulated job at the prices of a recording, simulated: its loop, and where the time of each task comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import Steady, steady, with_other_durations
from lumos.scripted.carry import PriceSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from lumos.cost.estimate import Float64
    from lumos.scripted.carry import Carried, RankPrices
    from lumos.scripted.script import Kindred, Script
    from lumos.trace.table import Int64


@dataclass(frozen=True, eq=False)
class PricedJob:
    """loop: what the job takes. low_ns, high_ns: a step of it at the ends of the prices' intervals. scaled, modelled: bool by task of the
    job, whether a part of its time was scaled, or more than half of it modelled."""

    loop: Steady
    low_ns: float
    high_ns: float
    scaled: NDArray[np.bool_]
    modelled: NDArray[np.bool_]


def at_prices(script: Script, carried: Carried, calls: Mapping[str, float], *, repeat: bool | None) -> PricedJob:
    """Simulate a job. calls: what calls that order work take, by name, ns. repeat: whether its steps are a loop."""

    def durations(end: int, kindred: Kindred, prices: RankPrices) -> Float64:
        return kindred.durations((prices.best, prices.low, prices.high)[end], calls)

    best, low, high = (_of_ranks(script, carried, partial(durations, end)) for end in range(3))
    scaled, modelled = (_from(script, carried, source) for source in (PriceSource.SCALED, PriceSource.MODELLED))
    owners = replace(script.owners, graph=script.priced(best))
    loop = steady(owners, repeat=repeat)
    ends = [
        with_other_durations(loop, prices).step_time_ns if not np.array_equal(prices, best) else loop.step_time_ns
        for prices in (low, high)
    ]
    return PricedJob(loop, min(*ends, loop.step_time_ns), max(*ends, loop.step_time_ns), scaled > 0, 2 * modelled > best)


def _from(script: Script, carried: Carried, source: PriceSource) -> Int64:
    """How much of each task's time comes from this source, ns."""

    def of(kindred: Kindred, prices: RankPrices) -> Float64:
        return kindred.durations(np.where(prices.source == source, prices.best, 0.0), None)

    return _of_ranks(script, carried, of)


def _of_ranks(script: Script, carried: Carried, of: Callable[[Kindred, RankPrices], Float64]) -> Int64:
    made: dict[int, Float64] = {}
    for prices, kind in zip(carried.ranks, script.ranks.of, strict=True):
        if id(prices) not in made:
            made[id(prices)] = of(script.kinds[kind], prices)
    whole: Int64 = np.rint(np.concatenate([made[id(prices)] for prices in carried.ranks])).astype(np.int64)
    return whole
