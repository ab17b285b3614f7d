"""Diagnostics: findings about an input, which say what is odd or missing in it and what that means for the answer.

A diagnostic never changes an answer. It is stored with the input (`Trace.diagnostics`, `Graph.diagnostics`), and every
verb prints or returns it, so that nothing is repaired, assumed or left out silently.
"""

from typing import NamedTuple


class Diagnostic(NamedTuple):
    """One finding. `code` is a stable kebab-case word that scripts may match; `message` says what was found, where, and what
    follows from it."""

    code: str
    message: str
