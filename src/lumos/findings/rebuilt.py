"""The price of a change to the structure of a job: its loop, cut into blocks and put together again.

This is what `lumos whatif --set` simulates where no plan is identified, without the critical paths that it compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steady import with_other_durations
from lumos.changes.answer import Changed, changed_loop
from lumos.changes.changes import Changes
from lumos.changes.layout.capture import capture, wants_graphs
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.structure import changed_layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.findings.case import Case


class Saved(NamedTuple):
    """How much shorter the step becomes, ns, and between which values that lies, as costs of the change are not known exactly."""

    worth: float
    least: float
    most: float


def saved_by(case: Case, settings: Mapping[str, str]) -> Saved:
    """What settings of the job's structure (`changes.settings`) save. Raises LumosError where the recording does not support the change."""
    segmentation = case.cut.segmentation
    placed = assemble_pieces(changed_layout(measured_layout(segmentation), case.job, Changes(settings)))
    if wants_graphs(settings, case.graph):
        placed = capture(placed, segmentation).placed
    same = np.zeros(len(placed.graph), bool)
    changed = Changed(placed.graph, placed.owners, placed.low, placed.high, same, same)
    loop = changed_loop(case.base, case.owners, changed)
    saved = [case.base.step_time_ns - with_other_durations(loop, each).step_time_ns for each in (placed.high, placed.low)]
    worth = case.base.step_time_ns - loop.step_time_ns
    return Saved(worth, min(worth, *saved), max(worth, *saved))
