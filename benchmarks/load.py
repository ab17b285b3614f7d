"""How many processes share the machine with a benchmark.

Time of the process on its core leaves out when others have the core, but not what they do to caches and to memory: figures from a busy
machine are larger than those from a quiet one.
"""

from __future__ import annotations

import os


def busy() -> str:
    """The runnable processes of the last minute, this one among them, in words."""
    return f"{os.getloadavg()[0]:.0f} runnable processes on {os.cpu_count()} cores at the end"
