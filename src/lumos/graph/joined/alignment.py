"""The alignment of two ranks' sequences of collectives, so that a row missing on one does not shift all later matches."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from lumos.trace.table import Int64

#: The ends of one collective on two ranks of one host differ by less than this (ns). Where labels repeat, the ends decide
#: which entries belong together.
ENDS_TOGETHER = 200_000
#: Share of the shorter sequence that must have a partner by its end before partners by end are preferred to those by order.
_MOST = 0.8


def align_collectives(reference: Sequence[Hashable], other: Sequence[Hashable], reference_end: Int64, other_end: Int64) -> Int64:
    """For each entry of `reference` its partner in `other`, -1 without one: int64[len(reference)], ascending where >= 0.

    Equal sequences match one to one. Otherwise, entries of equal label that end at the same time match, if the share MOST
    does (the clocks then agree); else the longest runs of equal labels match.
    """
    if list(reference) == list(other):
        return np.arange(len(reference))
    by_end = _by_end(reference, other, reference_end, other_end)
    if (by_end >= 0).sum() >= _MOST * min(len(reference), len(other)):
        return by_end
    partner = np.full(len(reference), -1, np.int64)
    for block in SequenceMatcher(None, reference, other, autojunk=False).get_matching_blocks():
        partner[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
    return partner


def _by_end(reference: Sequence[Hashable], other: Sequence[Hashable], reference_end: Int64, other_end: Int64) -> Int64:
    """Partners by nearest end, in order, among entries of equal label."""
    partner = np.full(len(reference), -1, np.int64)
    if not len(other):
        return partner
    taken = -1
    order = np.argsort(other_end, kind="stable")
    at = np.searchsorted(other_end[order], reference_end)
    for i, place in enumerate(at):
        near = [int(order[k]) for k in (place - 1, place) if 0 <= k < len(order)]
        near = [j for j in near if j > taken and other[j] == reference[i] and abs(other_end[j] - reference_end[i]) <= ENDS_TOGETHER]
        if near:
            taken = min(near, key=lambda j: abs(int(other_end[j] - reference_end[i])))
            partner[i] = taken
    return partner
