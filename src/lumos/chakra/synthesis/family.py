"""Sample sets of a family: jobs of one program with other degrees of parallelism, layers and widths, whose facts are known.

A sample takes its structure from the set that is nearest among those with as many pipeline stages and microbatches (what the ranks run,
and when, follows from these) and with the same axes of parallelism. Its ranks and communicators become those of the plan that is asked
for, its repeating part is repeated as often as there are layers, and its durations and sizes follow the trends of all sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.synthesis.buckets import LAYERS
from lumos.chakra.synthesis.grid import AXES, DATA, PIPELINE, TENSOR, grid_of, with_axes
from lumos.chakra.synthesis.layers import refilled, with_more_layers
from lumos.chakra.synthesis.sample import Drawn, Growth, generator, graph_of_structure
from lumos.chakra.synthesis.trends import factor, middle, varied
from lumos.errors import GraphError, UsageError
from lumos.model.transformer import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.chakra.synthesis.model import SetModel, SetStructure

#: The facts on which the order of what a rank runs depends: a sample has those of a set that was learned from.
STRUCTURAL = (PIPELINE, "microbatches")
#: The largest value of a fact; so their products stay within what a set can have.
LARGEST_FACT = 1_000_000


def sample_family(model: SetModel, seed: int = 0, facts: Mapping[str, int] | None = None) -> Drawn:
    """A set of the family with these facts, and otherwise those of any of its sets. The same seed gives the same set.

    UsageError where the model is of no family, or where no set was learned from that a set with these facts could be like.
    """
    rng = generator(seed)
    asked = _drawn(model, _checked(model, facts or {}), rng)
    source = _nearest(model, asked, rng)
    structure = _arranged(model, source, asked)
    try:
        drawn = graph_of_structure(model, structure, rng, _growth(model, asked, source))
        return drawn._replace(facts=asked, source=source)
    except GraphError as error:
        raise UsageError(f"{_words(asked)}: the ranks repeat different parts, so their communication would not meet ({error})") from None


def _growth(model: SetModel, facts: Mapping[str, int], source: int) -> Growth:
    """By how much durations differ from those of the model, and sizes from those of the set `source`."""
    to = middle(model.facts)
    keys = tuple(to)
    time = [factor(symbol.time, keys, facts, to) if symbol.time and not symbol.transfer else 1.0 for symbol in model.symbols]
    size = [factor(symbol.size, keys, facts, model.facts[source]) if symbol.size else 1.0 for symbol in model.symbols]
    return Growth(np.array(time), np.array(size))


def _checked(model: SetModel, facts: Mapping[str, int]) -> Mapping[str, int]:
    """The facts that are asked for. UsageError where the sets do not show how a set depends on one of them."""
    if not model.facts:
        raise UsageError("the model is of no family: learn it again and say with --facts what tells the sets apart")
    for key, value in facts.items():
        if key not in model.facts[0]:
            raise UsageError(f"--set {key}: not known of the sets that were learned from; known are {', '.join(model.facts[0])}")
        most = MOST_LAYERS if key == LAYERS else LARGEST_FACT
        if not 1 <= value <= most:
            raise UsageError(f"--set {key}={value}: must be from 1 to {most:,}")
        known = sorted({of_set[key] for of_set in model.facts})
        if len(known) == 1 and value != known[0] and key != LAYERS:
            raise UsageError(
                f"--set {key}={value}: every set that was learned from has {key} {known[0]}; learn from sets that differ in it"
            )
    return facts


def _drawn(model: SetModel, wanted: Mapping[str, int], rng: np.random.Generator) -> dict[str, int]:
    """All facts of a sample: those that are wanted, and otherwise those of any set of the same kind."""
    kinds = [of_set for of_set in model.facts if all(_kind(of_set)[key] == value for key, value in _kind(wanted).items())]
    if not kinds:
        raise UsageError(f"{_words(wanted)}: no set of that kind was learned from, but {'; '.join(map(_words, model.facts))}")
    like = kinds[int(rng.integers(len(kinds)))]
    return {key: wanted.get(key, value) for key, value in like.items()}


def _kind(facts: Mapping[str, int]) -> dict[str, int]:
    """What sets must share to have one structure: the structural facts, and on which axes they are parallel at all."""
    structural = {key: value for key, value in facts.items() if key in STRUCTURAL}
    return structural | {key: value > 1 for key, value in facts.items() if key in (TENSOR, DATA)}


def _words(facts: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _nearest(model: SetModel, facts: Mapping[str, int], rng: np.random.Generator) -> int:
    """The set of the same kind whose facts differ least, by their logarithms; of sets with the same facts any."""
    same = [i for i, of_set in enumerate(model.facts) if _kind(of_set) == _kind(facts)]
    first = min(same, key=lambda i: sum(abs(np.log(facts[key] / model.facts[i][key])) for key in facts))
    equal = [i for i in same if model.facts[i] == model.facts[first]]
    return equal[int(rng.integers(len(equal)))] if len(equal) > 1 else first


def _arranged(model: SetModel, source: int, facts: Mapping[str, int]) -> SetStructure:
    """The structure of a set that was learned from, for these facts."""
    own, structure = model.facts[source], model.structures[source]
    stages = facts.get(PIPELINE, 1)
    if LAYERS in facts and (facts[LAYERS] % stages or own[LAYERS] % stages):
        raise UsageError(f"layers {facts[LAYERS]}: not the same number for each of {stages} stages")
    grid = grid_of(structure, own)
    if LAYERS in facts:
        structure = with_more_layers(model, structure, facts[LAYERS] // stages, own[LAYERS] // stages)
    for buckets in model.buckets:
        if buckets.layer[source]:
            layer = buckets.layer[source] * factor(buckets.trend, varied(model.facts), facts, own)
            structure = refilled(model, structure, buckets, source, layer, facts[LAYERS] // stages)
    return with_axes(structure, grid, {axis: facts.get(axis, 1) for axis in AXES})
