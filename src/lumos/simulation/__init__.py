"""Simulation of a graph, which gives a timeline: by the event loop, or by sweeps over a frozen graph."""

from lumos.simulation.engine import simulate
from lumos.simulation.freeze import Frozen, freeze, sweep, sweep_groups, sweep_many, sweep_scaled
from lumos.simulation.timeline import Timeline, measured

__all__ = ["Frozen", "Timeline", "freeze", "measured", "simulate", "sweep", "sweep_groups", "sweep_many", "sweep_scaled"]
