"""What the parts of a model do on one rank: their work as blocks, what it costs, and the memory that it needs.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
