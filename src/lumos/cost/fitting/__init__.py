"""The coefficients of the cost models, fitted to measured times."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
