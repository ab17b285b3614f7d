"""A layout of measured blocks: which measured pieces every rank runs, in which order, how much longer or shorter.

`measured_layout` takes a segmented graph as it is; changes are functions from one layout to another (`change`); `place`
assembles a layout into a graph again. Without a change the graph comes back task for task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lumos.diagnostics import Diagnostic
from lumos.segment.segment import Piece, Segmentation

Factors = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a measured piece.

    inner: a run that is not the last microbatch of its step, so that it neither exchanges gradients nor begins the step.
    beside: index of the piece on whose CPU thread it runs (recomputation runs where the backward pass does); -1 its own.
    extra: work added to its last compute task, ns (gradients that are added to others).
    """

    piece: int
    inner: bool = False
    beside: int = -1
    extra: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredLayout:
    """What the ranks of a changed job run.

    ranks: per rank the instances in order. factor: float64[n], by which every task of the measured graph is multiplied;
    low, high: the same at the ends of its 80 % interval. modelled: tasks whose new duration rests on a model alone.
    awaited: (task, the task that must not begin before it ends), for waits that the measured run was too quick to show.
    """

    segmentation: Segmentation
    ranks: tuple[tuple[Instance, ...], ...]
    factor: Factors
    low: Factors
    high: Factors
    modelled: frozenset[int] = frozenset()
    awaited: tuple[tuple[int, int], ...] = ()
    changes: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default_factory=tuple)

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.segmentation.pieces


def measured_layout(found: Segmentation) -> MeasuredLayout:
    """The layout of the job as it was measured."""
    ranks: list[list[Instance]] = [[] for _ in found.graph.ranks]
    for i, piece in enumerate(found.pieces):
        ranks[piece.rank].append(Instance(i))
    ones = np.ones(len(found.graph))
    return MeasuredLayout(found, tuple(map(tuple, ranks)), ones, ones, ones)
