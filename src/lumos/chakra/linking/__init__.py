"""Join the operators of an execution trace with the kernels of a profiler trace.

Nothing here is public: what users may call is in `lumos`.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
