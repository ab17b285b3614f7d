"""Graph to Timeline: the event loop, and frozen graphs with their sweeps."""

from __future__ import annotations

from lumos.simulate.engine import simulate
from lumos.simulate.freeze import Frozen, freeze, sweep, sweep_many, sweep_scaled
from lumos.simulate.timeline import Timeline, measured

__all__ = ["Frozen", "Timeline", "freeze", "measured", "simulate", "sweep", "sweep_many", "sweep_scaled"]
