"""Which tables of runs hold sums of parts rather than single measurements.

A step of n layers is what one layer takes, n times, and what the rest takes. Published steps that differ in nothing but the number of
layers therefore lie close to a straight line; how close says what they are. Runs of equal jobs differ by a percent or so from one day to
the next. Steps that leave the line by millionths were not each timed: they were put together from the time of one layer, and all of them
together say no more than the layers that they were made from.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.prediction.validate import published_step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.prediction.validate import PublishedRun

#: A line through fewer steps says little: through two it is exact.
LEAST = 4
#: What two runs may differ in to lie on one line: the number of layers, what follows from it, and what names the row.
OWN = frozenset({"id", "model", "layers", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_memory_bytes"})
#: A source whose median line is left by less than this share of the step was composed; real runs repeat to about a hundred times that.
COMPOSED = 1e-4


#: What decides the time of one layer on one device, where the rest of a row is equal.
OF_LAYER = ("hidden", "seq_len", "tp", "micro_batch", "gpu")


class Lines(NamedTuple):
    """Lines through the steps of one source. layers: different layers that a device of its runs computes. deviations: of each line, the
    largest distance of a step from it / mean step."""

    source: str
    rows: int
    layers: int
    deviations: tuple[float, ...]

    @property
    def composed(self) -> bool:
        """Whether the source's steps were put together from parts."""
        return float(np.median(self.deviations)) < COMPOSED


def straight_lines(rows: Iterable[PublishedRun]) -> list[Lines]:
    """The sources that have steps of at least LEAST numbers of layers, all else equal, with how far these leave a straight line."""
    groups: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    kinds: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        if row.get("layers", "").strip():
            key = (row["source"], *(f"{name}={value}" for name, value in sorted(row.items()) if name not in OWN))
            groups[key][int(row["layers"])] = published_step(row)
            kinds[row["source"]].add(tuple(row.get(name, "") for name in OF_LAYER))
    found: dict[str, list[dict[int, float]]] = defaultdict(list)
    for key, steps in groups.items():
        if len(steps) >= LEAST:
            found[key[0]].append(steps)
    return [Lines(name, sum(map(len, lines)), len(kinds[name]), tuple(map(_deviation, lines))) for name, lines in found.items()]


def independent(rows: Iterable[PublishedRun]) -> list[PublishedRun]:
    """The rows, but of a source whose steps were put together from parts as many as there are parts: one for each layer that a device of
    its runs computes, each of another place among the rows with that layer, so that plans differ."""
    rows = list(rows)
    composed = {lines.source for lines in straight_lines(rows) if lines.composed}
    kinds: dict[tuple[str, ...], list[PublishedRun]] = defaultdict(list)
    for row in rows:
        if row["source"] in composed:
            kinds[(row["source"], *(row.get(name, "") for name in OF_LAYER))].append(row)
    picked = [members[i * len(members) // len(kinds)] for i, members in enumerate(kinds.values())]
    return [row for row in rows if row["source"] not in composed or any(row is one for one in picked)]


def _deviation(steps: dict[int, float]) -> float:
    layers, seconds = np.array(list(steps), float), np.array(list(steps.values()))
    slope, rest = np.polyfit(layers, seconds, 1)
    return float(np.abs(seconds - (slope * layers + rest)).max() / seconds.mean())


def described(rows: Iterable[PublishedRun]) -> list[str]:
    """A sentence for each source whose steps were put together from parts."""
    return [
        f"{lines.source}: {lines.rows} steps lie on {len(lines.deviations)} straight lines over the number of layers. The median line is "
        f"left by {float(np.median(lines.deviations)) * 1e6:.0f} millionths of the step, nine tenths of the lines by less than "
        f"{float(np.quantile(lines.deviations, 0.9)) * 1e6:.0f}. Runs that were each timed differ by a percent from one day to the next, "
        f"so these steps were put together from times of single layers, of which there are {lines.layers}: they are as many "
        "measurements as that, and as many of its rows are scored, each of another layer."
        for lines in straight_lines(rows)
        if lines.composed
    ]
