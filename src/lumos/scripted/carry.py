"""The second matching: what the operators of the emulated scripts cost, from the operators of the first that stand where they do.

An operator of the changed script is looked for by its place (`places`), also without the modules that only wrap another one, in its own
layer and microbatch, then in any; then one of its name that was given the same, in the same phase, then in any, as what a checkpoint runs
again stands in the backward pass. Outside of modules, where a place is only a count, that one comes before others at its place. Where it
was given the same, it keeps the measured time; where not, measured times model(after) / model(before). What is found nowhere costs the
model times the recording's residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.prices import WHOLE_INTERVAL
from lumos.scripted.match import LoneOperators, partners_of_exchanges
from lumos.scripted.on_cpu import HostSizes
from lumos.scripted.residual import Residuals
from lumos.scripted.script import Slot

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from numpy.typing import NDArray

    from lumos.cost.estimate import Float64
    from lumos.scripted.match import Lone, Matched
    from lumos.scripted.places import ScriptPlaces
    from lumos.scripted.script import Kindred, Script
    from lumos.trace.table import Int64


class PriceSource(IntEnum):
    """Where a price comes from."""

    MEASURED = 0
    SCALED = 1
    MODELLED = 2


class RankPrices(NamedTuple):
    """What the operators and exchanges of one rank cost, ns: each float64[slots, operators or exchanges], and `PriceSource` of each."""

    best: Float64
    low: Float64
    high: Float64
    source: Int64


@dataclass(frozen=True, eq=False)
class Carried:
    """The prices of every rank of a job. of: by rank which of those that differ it has. each: those, with what has them, made one after
    the other: all of a large job do not fit into memory. new: operators that no other stands for, with their calls and ns of a step, the
    longest first; whole after `each`."""

    of: list[int]
    each: Iterator[tuple[Kindred, RankPrices]]
    new: list[Lone]


class MeasuredPrices:
    """The measured prices of a job, ready to be carried over. before: the script that they are matched with."""

    def __init__(self, before: Script, matched: Matched) -> None:
        self.before = before
        self.by_rank = {rank: (before.kinds[before.ranks.of[rank]], prices) for rank, prices in matched.prices.items()}
        self.residuals = Residuals(self.by_rank.values())
        self.sizes = HostSizes(self.by_rank.values()) if before.on_host else None
        for kindred, prices in self.by_rank.values():  # all time of the loop's own thread went to operators that have a partner
            own = np.flatnonzero([operator.thread == 0 for operator in kindred.process.operators])
            prices[: Slot.DEVICE, own] = np.nan_to_num(prices[: Slot.DEVICE, own])
        self._indexes: dict[Kindred, _Index] = {}
        self._models: dict[Kindred, RankPrices] = {}
        self._sources: dict[tuple[Kindred, Kindred], _Sources] = {}

    def carried(self, script: Script) -> Carried:
        """What a script costs, which may be `before` itself: there a recorded rank keeps what was measured."""
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        of = [numbers.setdefault((kind, self._likes(script, rank)), len(numbers)) for rank, kind in enumerate(script.ranks.of)]
        new: list[Lone] = []
        return Carried(of, self._each(script, list(numbers), new), new)

    def _each(self, script: Script, distinct: list[tuple[int, tuple[int, ...]]], new: list[Lone]) -> Iterator[tuple[Kindred, RankPrices]]:
        found = LoneOperators()
        for kind, likes in distinct:
            kindred = script.kinds[kind]
            prices, operators = _mean([self._from(kindred, like) for like in likes]), kindred.process.operators
            modelled = np.flatnonzero(prices.source[Slot.OWN, : len(operators)] == PriceSource.MODELLED)
            leaves = np.array([i for i in modelled.tolist() if operators[i].leaf], np.int64)
            spent = prices.best[: Slot.EXCHANGE, leaves].sum(axis=0)
            found.add([operators[i].name for i in leaves.tolist()], np.ones(len(leaves)), spent)
            yield kindred, prices
        new += found.longest(script.steps)

    def _likes(self, script: Script, rank: int) -> tuple[int, ...]:
        """The recorded ranks whose prices a rank takes: its own, else all of its kind, else all."""
        if rank in self.by_rank:
            return (rank,)
        if script is self.before:
            kin = tuple(recorded for recorded in self.by_rank if script.ranks.of[recorded] == script.ranks.of[rank])
            if kin:
                return kin
        return tuple(self.by_rank)

    def _from(self, kindred: Kindred, rank: int) -> RankPrices:
        """The prices of a process by those of a recorded rank."""
        source, measured = self.by_rank[rank]
        if kindred is source:
            return self._as_measured(kindred, measured)
        key = (kindred, source)
        if key not in self._sources:
            if source not in self._indexes:
                self._indexes[source] = _Index(source)
            self._sources[key] = _Sources(kindred, source, self._indexes[source], self.sizes)
        own = self._as_measured(source, measured)
        return self._sources[key].prices(own, self._modelled(kindred))

    def _as_measured(self, kindred: Kindred, measured: Float64) -> RankPrices:
        unknown = np.isnan(measured)
        model = self._modelled(kindred)
        source = np.where(unknown, PriceSource.MODELLED, PriceSource.MEASURED)
        best, low, high = (np.where(unknown, modelled, measured) for modelled in model[:3])
        return RankPrices(best, low, high, source)

    def _modelled(self, kindred: Kindred) -> RankPrices:
        """What the model and the residual say of a process, whatever rank it stands for."""
        if kindred not in self._models:
            self._models[kindred] = self._at_residuals(kindred)
        return self._models[kindred]

    def _at_residuals(self, kindred: Kindred) -> RankPrices:
        ratio = np.stack([self.residuals.columns(kindred, slot) for slot in Slot], axis=1)
        best, low, high = kindred.modelled * ratio
        if self.sizes is not None:
            n = len(kindred.process.operators)
            for end in (best, low, high):
                spread = np.divide(end[Slot.OWN, :n], best[Slot.OWN, :n], out=np.ones(n), where=best[Slot.OWN, :n] > 0)
                end[Slot.OWN, :n] = [self.sizes.new(operator) for operator in kindred.process.operators] * spread
        return RankPrices(best, low, high, np.full(best.shape, PriceSource.MODELLED))


def _mean(of_each: list[RankPrices]) -> RankPrices:
    if len(of_each) == 1:
        return of_each[0]
    best, low, high = (np.mean([prices[i] for prices in of_each], axis=0) for i in range(3))
    return RankPrices(best, low, high, np.max([prices.source for prices in of_each], axis=0))


class _Index:
    """The operators of a process by where they stand, and by what they were given. Those who look for the same get the same list."""

    def __init__(self, kindred: Kindred) -> None:
        self.by_place: dict[Hashable, list[int]] = {}
        self.by_given: dict[Hashable, list[int]] = {}
        self.given = kindred.given
        self._none: list[int] = []
        placed = kindred.placed
        for i, operator in enumerate(kindred.process.operators):
            step, its = placed.step[i], self.given[i]
            for script_place in {placed.place[i], placed.unwrapped[i]}:
                self.by_place.setdefault((step, script_place, placed.instance[i]), []).append(i)
                self.by_place.setdefault((step, script_place), []).append(i)
                self.by_given.setdefault((step, script_place, its), []).append(i)
            self.by_given.setdefault((step, placed.place[i].phase, operator.name, its), []).append(i)
            self.by_given.setdefault((step, None, operator.name, its), []).append(i)

    def sources(self, placed: ScriptPlaces, i: int, name: str, its: Hashable) -> list[int]:
        """Those that an operator of another process takes its prices from. placed: where that process' operators stand; i: the operator,
        its name and what it was given."""
        places, step = (placed.place[i], placed.unwrapped[i]), placed.step[i]
        own = (self.by_place.get((step, script_place, placed.instance[i])) for script_place in places)
        alike = (
            self.by_given.get((step, script_place, its)) or some
            for script_place in places
            if (some := self.by_place.get((step, script_place)))
        )
        same_place = next((operators for operators in own if operators), []) or next(alike, self._none)
        if (places[0].module and same_place) or any(self.given[operator] == its for operator in same_place):
            return same_place
        same_phase = self.by_given.get((step, places[0].phase, name, its), same_place)
        return same_phase or self.by_given.get((step, None, name, its), self._none)


class _Sources:
    """For the operators of one process those of another that they take their prices from, as pairs, and by what they are multiplied.

    Operators that look for the same and for which the models say the same have the same price, which is found once for all of them: the
    thousands of small operators that a loader of data makes would else have a pair with each of as many others. alike: by operator the
    number of those that it is one of; first: by that number one of them; mine: by pair that number.
    """

    def __init__(self, after: Kindred, before: Kindred, index: _Index, sizes: HostSizes | None) -> None:
        self.after, self.before = after, before
        numbers: dict[Hashable, int] = {}
        pairs: list[tuple[int, int, bool]] = []
        first: list[int] = []
        self.alike = np.full(after.modelled.shape[1], -1, np.int64)
        for i, (operator, model) in enumerate(zip(after.process.operators, after.modelled.T, strict=False)):
            its = after.given[i]
            sources = index.sources(after.placed, i, operator.name, its)
            number = self.alike[i] = numbers.setdefault((operator.name, its, model.tobytes(), id(sources)), len(numbers))
            if number == len(first):
                first.append(i)
                pairs += [(number, source, index.given[source] == its) for source in sources]
        columns = np.array(pairs, np.int64).reshape(-1, 3).T
        self.first = np.array(first, np.int64)
        self.mine, self.theirs = columns[:2]
        self.host = self._host(sizes, columns[2].astype(bool))
        known = ~np.isnan(self.host[0])
        self.mine, self.theirs, self.host = self.mine[known], self.theirs[known], self.host[:, known]
        self.exchanges = _exchanges(after, before)

    def _host(self, sizes: HostSizes | None, same: NDArray[np.bool_]) -> Float64:
        """By pair the factor of the time beyond the fixed one, its two ends, and the fixed time, ns; of an operator on a CPU. NaN where it
        says nothing."""
        out = np.ones((4, len(self.mine)))
        out[3] = 0.0
        if sizes is None:
            return out
        ours, theirs = self.after.process.operators, self.before.process.operators
        known: dict[Hashable, tuple[float, float, float, float]] = {}
        for at in np.flatnonzero(~same).tolist():
            mine, other = self.first[self.mine[at]], self.theirs[at]
            key = (ours[mine].name, self.after.given[mine], self.before.given[other])
            if key not in known:
                factor = sizes.factor(theirs[other], ours[mine])
                known[key] = (np.nan,) * 4 if factor is None else factor[:4]
            out[:, at] = known[key]
        return out

    def prices(self, before: RankPrices, model: RankPrices) -> RankPrices:
        """The prices of the process. before: of the other. model: of this one where it takes none from the other."""
        best, low, high, source = model.best.copy(), model.low.copy(), model.high.copy(), model.source.copy()
        ours, theirs = self.after.modelled[:, self.first], self.before.modelled
        size = len(self.first)
        for slot in (Slot.OWN, Slot.BEFORE, Slot.CALLS, Slot.DEVICE):
            mine, other = ours[slot, self.mine], theirs[slot, self.theirs]
            ratio = np.divide(mine, other, out=np.zeros(len(mine)), where=other > 0)
            ends = [prices[slot, self.theirs] for prices in (before.best, before.low, before.high)]
            if slot is Slot.OWN:
                fixed = np.minimum(self.host[3], ends[0])
                times = [(fixed + (end - fixed) * self.host[i]) * ratio for i, end in enumerate(ends)]
                changed = ~np.isclose(self.host[0] * ratio, 1.0)
            else:
                far = np.minimum(1.0, np.abs(np.log(np.where(ratio > 0, ratio, 1.0))) / WHOLE_INTERVAL)
                spread = far * _spread(self.after, slot, self.first[self.mine])
                times = [ends[0] * ratio, ends[1] * ratio / (1 + spread), ends[2] * ratio * (1 + spread)]
                changed = ~np.isclose(ratio, 1.0)
            usable = (other > 0) | (mine == 0)
            number = np.bincount(self.mine[usable], minlength=size)
            priced = np.flatnonzero((self.alike >= 0) & (np.append(number, 0)[self.alike] > 0))
            which = self.alike[priced]
            for end, time in zip((best, low, high), times, strict=True):
                end[slot, priced] = np.bincount(self.mine[usable], time[usable], minlength=size)[which] / number[which]
            of_pair = np.maximum(before.source[slot, self.theirs], np.where(changed, PriceSource.SCALED, PriceSource.MEASURED))
            worst = np.zeros(size, np.int64)
            np.maximum.at(worst, self.mine[usable], of_pair[usable])
            source[slot, priced] = worst[which]
        self._of_exchanges(before, (best, low, high), source)
        return RankPrices(best, low, high, source)

    def _of_exchanges(self, before: RankPrices, ends: tuple[Float64, Float64, Float64], source: Int64) -> None:
        slot = Slot.EXCHANGE
        for i, other in self.exchanges:
            ratio = self.after.modelled[slot, i] / max(self.before.modelled[slot, other], 1.0)
            for end, theirs in zip(ends, before[:3], strict=True):
                end[slot, i] = theirs[slot, other] * ratio
            source[slot, i] = max(before.source[slot, other], PriceSource.MEASURED if np.isclose(ratio, 1.0) else PriceSource.SCALED)


def _spread(after: Kindred, slot: Slot, of: Int64) -> Float64:
    """How far above the best guess the model's interval reaches, by operator, as a share."""
    parts = after.parts
    chosen = (parts.slot == slot) & (parts.of >= 0)
    size = after.modelled.shape[1]
    high = np.bincount(parts.of[chosen], (parts.ns * parts.high)[chosen], minlength=size)
    best = after.modelled[slot]
    above: Float64 = np.divide(high, best, out=np.ones(size), where=best > 0)[of] - 1
    return above


def _exchanges(after: Kindred, before: Kindred) -> list[tuple[int, int]]:
    """Exchanges of one process and those of the other that they are, by group, kind and bytes in the order of each step."""
    out: list[tuple[int, int]] = []
    for step, mine in after.exchanges.items():
        other = before.exchanges.get(step, [])
        keys = [[_key(kindred, i) for i in which] for kindred, which in ((after, mine), (before, other))]
        out += [(i, other[j]) for i, j in zip(mine, partners_of_exchanges(*keys), strict=True) if j >= 0]
    return out


def _key(kindred: Kindred, i: int) -> tuple[Hashable, ...]:
    group = kindred.process.exchanges[i].group
    return (*kindred.exchange_key(i), next((len(each.ranks) for each in kindred.process.groups if each.name == group), 0))
