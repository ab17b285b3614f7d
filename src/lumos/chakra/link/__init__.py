"""The operators of an execution trace joined to the kernels of a profiler trace.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
