"""The explorer: a page and an HTTP API on this machine alone.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
