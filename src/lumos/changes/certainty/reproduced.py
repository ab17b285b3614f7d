"""How well the rules of a change give back the recording itself.

A recorded pipeline is cut anew by rules that leave something out, such as what a message holds up besides the pass that needs it. The same
rules are applied to what was recorded: by how much the step then differs is what they leave out, and an answer may be off by as much.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.trust import with_evidence
from lumos.changes.answer import Answer, Changed, answer
from lumos.errors import LumosError
from lumos.graph.evidence import NEGLIGIBLE
from lumos.graph.table import Evidence
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from lumos.changes.layout.placed import Placed
    from lumos.graph.table import Graph

#: Share of the step by which it may differ at most. More says that the recording ran otherwise than the rules assume.
MOST_OFF = 0.1


def as_far_as_reproduced(found: Answer, graph: Graph, same: Placed, *, repeat: bool) -> Answer:
    """The answer, less sure by how far the recording is from what the rules make of it. same: the recording, cut by them as it is.

    Raises LumosError where that is more than a tenth of the step.
    """
    nothing = np.zeros(len(same.graph), bool)
    again = answer(graph, Changed(same.graph, same.owners, same.graph.duration, same.graph.duration, nothing, nothing, ()), repeat=repeat)
    base = again.base.step_time_s
    off = abs(again.outcome.step_time_s / base - 1) if base else 0.0
    message = (
        f"the recorded pipeline, cut by the same rules as the changed one, takes {1e3 * again.outcome.step_time_s:,.2f} ms a step and not"
        f" {1e3 * base:,.2f} ms"
    )
    if off > MOST_OFF:
        raise LumosError(f"--set: {message}, so they do not describe how this job runs; ask lumos predict")
    if off <= NEGLIGIBLE:
        return found
    return replace(found, trust=with_evidence(found.trust, (Evidence("recut-differs", message, Grade.SOUND, off),)))
