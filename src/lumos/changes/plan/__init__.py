"""Changes of the plan of a job that was identified: assembled as `predict` assembles a job, and corrected by what was measured."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
