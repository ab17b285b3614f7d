"""How a figure that misses what is to be reached says so, alike in every table."""

from __future__ import annotations


def marked(text: str, reached: bool) -> str:
    """A figure as text, marked where it was not reached."""
    return text if reached else f"{text} (missed)"
