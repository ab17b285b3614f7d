"""Operators of the script, run on tensors without data."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
