"""Sets of other sizes drawn from what recorded sets have in common.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
