"""Findings as values: what is odd or missing in an input, and what the answer is still worth.

A diagnostic never changes an answer. It is collected beside it (`Trace.diagnostics`, `Graph.diagnostics`) and every
verb prints or returns it, so that nothing is repaired, assumed or left out silently.
"""

from __future__ import annotations

from typing import NamedTuple


class Diagnostic(NamedTuple):
    """One finding. `code` is a stable kebab-case word scripts may match; `message` says what, where and what it costs."""

    code: str
    message: str
