"""What the tasks of a job compute and move: from recordings, from predicted work, from what a set says.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
