"""What a recording says of a model's prices: how many times as long its operators took, by their name.

An operator that only the changed script has is priced by the model times this, of its own name where the recording has any, else of all
work of its slot; the spread of the ratio, over the calls of that name or over all names too, is the interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.scripted.script import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.cost.estimate import Float64
    from lumos.scripted.script import Kindred

#: The ends of an 80 % interval, as shares of what was seen.
_LOW, _HIGH = 0.1, 0.9


class Residual(NamedTuple):
    """MeasuredPrices / modelled: over all together, and the ends of the interval of single calls."""

    best: float
    low: float
    high: float


#: Of what the recording says nothing: the model, with the interval that it has where a device was never measured.
UNSEEN = Residual(1.0, 0.5, 2.0)


class Residuals:
    """The ratios of a job. measured: of each recorded rank its kind and prices, NaN where nothing was measured."""

    def __init__(self, measured: Iterable[tuple[Kindred, Float64]]) -> None:
        seen: dict[tuple[int, str], list[Float64]] = {}
        alike: dict[int, tuple[Kindred, list[Float64]]] = {}
        for kindred, prices in measured:
            alike.setdefault(id(kindred), (kindred, []))[1].append(prices)
        for kindred, several in alike.values():
            times = np.stack(several, axis=-1)
            for slot in Slot:
                for name, which in _named(kindred, slot).items():
                    model = np.repeat(kindred.modelled[slot, which], len(several))
                    pairs = np.stack([times[slot, which].ravel(), model], axis=1)
                    seen.setdefault((slot, name), []).append(pairs[~np.isnan(pairs[:, 0]) & (model > 0)])
        self._ratios: dict[tuple[int, str], Residual] = {
            key: _ratio(pairs) for key, arrays in seen.items() if len(pairs := np.concatenate(arrays))
        }
        for slot in Slot:  # what another name may take is told by how names differ, whatever their share of the time
            by_name = [ratio.best for (of, name), ratio in self._ratios.items() if of == slot and name]
            if len(by_name) > 1:
                every, ends = self._ratios[slot, ""], np.quantile(by_name, (_LOW, _HIGH)).tolist()
                self._ratios[slot, ""] = Residual(every.best, min(every.low, ends[0]), max(every.high, ends[1]))

    def columns(self, kindred: Kindred, slot: Slot) -> Float64:
        """The ratios of all operators, or exchanges, of a process: float64[3, n], best, low and high."""
        out = np.ones((3, kindred.modelled.shape[1]))
        for name, which in _named(kindred, slot).items():
            if name:
                out[:, which] = np.array(self._ratios.get((slot, name)) or self._ratios.get((slot, ""), UNSEEN))[:, None]
        return out


def _named(kindred: Kindred, slot: Slot) -> dict[str, list[int]]:
    """The operators, or exchanges, of a process by their name, and all of them as ""."""
    process = kindred.process
    names = (
        [exchange.kind for exchange in process.exchanges]
        if slot is Slot.EXCHANGE
        else [operator.name for operator in process.operators]
    )
    out: dict[str, list[int]] = {"": [*range(len(names))]}
    for i, name in enumerate(names):
        out.setdefault(name, []).append(i)
    return out


def _ratio(pairs: Float64) -> Residual:
    measured, modelled = pairs.T
    best = float(measured.sum() / modelled.sum())
    ratio = measured / modelled
    order = np.argsort(ratio)
    share = np.cumsum(modelled[order]) / modelled.sum()
    low, high = (float(ratio[order][min(int(np.searchsorted(share, at)), len(order) - 1)]) for at in (_LOW, _HIGH))
    return Residual(best, min(low, best), max(high, best))
