"""Numbers about a timeline, measured or simulated. Nothing here prints or draws."""

from __future__ import annotations

from lumos.analyze.breakdown import FourWay, StepBreakdown, breakdown
from lumos.analyze.probes import Probes, probes
from lumos.analyze.replay import ReplayResult, StepReplay, replay
from lumos.analyze.steps import Members, members, spans

__all__ = [
    "FourWay",
    "Members",
    "Probes",
    "ReplayResult",
    "StepBreakdown",
    "StepReplay",
    "breakdown",
    "members",
    "probes",
    "replay",
    "spans",
]
