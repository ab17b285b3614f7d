"""A job to its dependency graph: one rule a file.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
