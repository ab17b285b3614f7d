"""The other ranks of the emulated job, of which only one process runs: groups, collectives, pipeline stages, launchers."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
