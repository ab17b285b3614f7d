"""Which options the profiler of this torch has beyond those of torch 2.1.

They are tried, not derived from the version number: experimental options come and go between releases, and vendors back-port
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Options to turn on where they exist.
#: enable_cuda_sync_events: rows that say which work a synchronising call waited for, and which event a stream waited for.
#: trace_only: torch does not make its own event objects, which take several times the memory of the trace and are not used here.
WANTED = ("enable_cuda_sync_events", "trace_only")


def experimental_config(torch: Any, wanted: Sequence[str] = WANTED) -> Any:
    """A profiler configuration with every wanted option that this torch has, or None where it has no such configuration."""
    factory = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    if factory is None:
        return None
    return factory(**{option: True for option in wanted if _accepts(factory, option)})


def _accepts(factory: Any, option: str) -> bool:
    try:
        factory(**{option: True})
    except TypeError:  # the native constructor does not have this keyword
        return False
    return True
