"""Other forms of a workload: blocks instead of kernels, or the work of devices alone.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
