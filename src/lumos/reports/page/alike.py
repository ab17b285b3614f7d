"""Which ranks of a drawing look alike, so that a page can show one of each kind instead of a thousand.

Two ranks are alike where they have the same kinds of lanes and where, in the coarsest level of the drawing, at most a few cells differ in
the class of their work or by much in how busy they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.trace.table import Int8

#: The largest share of the cells in which ranks that are alike may differ, and what is a difference in how busy a cell is, of 255.
DIFFERENT_CELLS, DIFFERENT_BUSY = 0.1, 64
#: The class of a cell in which nothing ran.
NO_CLASS = 255


def ranks_alike(lanes: Sequence[tuple[int, str]], label: Int8, busy: Int8) -> list[list[int]]:
    """The ranks in groups that are alike, by the first rank of each; a rank joins the first group whose first rank it is like.

    lanes: the rank and the kind of each lane, by rank. label, busy: uint8[lanes, bins], the coarsest level of a drawing.
    """
    rows: dict[int, list[int]] = {}
    for number, (rank, _) in enumerate(lanes):
        rows.setdefault(rank, []).append(number)
    groups: dict[tuple[str, ...], list[list[int]]] = {}
    for rank, own in rows.items():
        known = groups.setdefault(tuple(lanes[i][1] for i in own), [])
        for group in known:
            first = rows[group[0]]
            by_much = np.abs(busy[first].astype(np.int16) - busy[own].astype(np.int16)) > DIFFERENT_BUSY
            used = (label[own] != NO_CLASS) | (label[first] != NO_CLASS)
            if ((label[first] != label[own]) | by_much).sum() <= DIFFERENT_CELLS * used.sum():
                group.append(rank)
                break
        else:
            known.append([rank])
    return sorted((group for known in groups.values() for group in known), key=lambda group: group[0])
