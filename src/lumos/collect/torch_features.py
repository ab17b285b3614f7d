"""What this torch's profiler can do beyond torch 2.1, found by asking it, never by its version number.

The profiler's experimental options come and go between releases, and vendors back-port them.
"""

from __future__ import annotations

from typing import Any

#: Options wanted, where they exist.
#: enable_cuda_sync_events: rows that say which work a synchronising call awaited, and which event a stream waited for.
#: trace_only: skips torch's own event objects, several times the size of the trace, which Lumos does not use.
WANTED = ("enable_cuda_sync_events", "trace_only")


def experimental_config(torch: Any) -> Any:
    """The profiler configuration with every wanted option that this torch knows, or None where it knows no such thing."""
    factory = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    if factory is None:
        return None
    return factory(**{option: True for option in WANTED if _accepts(factory, option)})


def _accepts(factory: Any, option: str) -> bool:
    try:
        factory(**{option: True})
    except TypeError:  # how a native constructor refuses a keyword
        return False
    return True
