"""Results as one HTML file, and what the local explorer shows.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
