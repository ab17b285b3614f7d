"""Runnable benchmarks from traces: the same operators, shapes, order and overlap, without the model's code or data.

The names below are the functions behind `lumos proxy`, with their results; the modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.on_demand import on_demand

if TYPE_CHECKING:
    from lumos.proxy.facade import Generated, generate, run

__all__ = ["Generated", "generate", "run"]

if not TYPE_CHECKING:  # a type checker would take it for an answer to every name
    __getattr__, __dir__ = on_demand(__name__)
