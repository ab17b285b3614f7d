"""The work that a change of sizes could not reach: its operator has no shapes, or shapes that do not show the change.

Such work keeps its measured time. It may as well take time in proportion to the change, so its interval reaches to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.graph.table import Kind
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.prices import TaskPrices
    from lumos.trace.table import Int64

#: Share of the work of the passes from which it is said that a change could not reach it.
WORTH_SAYING = 0.02


def unchanged_work(layout: MeasuredLayout, position: int, prices: TaskPrices, same: Int64) -> Int64:
    """The work in the passes of a rank that a change left as it was, apart from the tasks `same`, which it rightly leaves so.

    prices: those after the change. On a device its kernels count, on a CPU its operators; and exchanges of activations between
    all ranks, which no shape describes.
    """
    work = _work(layout, position)
    left: Int64 = work[(prices.best[work] == layout.prices.best[work]) & ~np.isin(work, same)]
    return left


def _work(layout: MeasuredLayout, position: int) -> Int64:
    """The work in the passes of a rank."""
    segmentation, graph = layout.segmentation, layout.segmentation.graph
    passes = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
    mine = (segmentation.owners.rank == position) & np.isin(segmentation.phase, passes)
    on_device = bool((mine & graph.on_device).any())
    works = graph.kind == (Kind.KERNEL if on_device else Kind.OPERATOR)
    facts = graph.collectives
    if facts is not None:
        works[facts.task[facts.of_kind(CollectiveKind.ALL_TO_ALL)]] = True
    found: Int64 = np.flatnonzero(mine & works)
    return found


def not_reached(layout: MeasuredLayout, tasks: Int64, changes: Sequence[str]) -> tuple[Diagnostic, ...]:
    """The diagnostic that a part of the work of the passes could not be reached; () where it is negligible."""
    duration = layout.segmentation.graph.duration
    ranks = range(len(layout.segmentation.graph.ranks))
    total = sum(int(duration[_work(layout, position)].sum()) for position in ranks)
    share = int(duration[tasks].sum()) / total if total else 0.0
    if share < WORTH_SAYING:
        return ()
    message = (
        f"{', '.join(changes)}: the shapes do not show what {share:.0%} of the work of the passes becomes; it keeps its time, and the"
        " interval takes it as anything between unchanged and in proportion"
    )
    return (Diagnostic("not-reached", message),)
