"""What the graph of a rank had to infer from its rows, as diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.diagnostics import Diagnostic
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.trace.table import Trace


def inferred_waits(trace: Trace, work: DeviceWork, waits: StreamWaits, depth: int) -> list[Diagnostic]:
    """What of launches and waits had to be inferred. What is not known of them is evidence, with the share of a step that it leaves open.
    depth: of the queue of launches, 0 without a limit."""
    where = f"rank {trace.rank}"
    found = [Diagnostic("queue-full", f"{where}: launches wait for a place in a queue of {depth}")] if depth else []
    orphans = int((work.call == ABSENT).sum())
    if orphans:
        found.append(
            Diagnostic(
                "launch-missing",
                f"{where}: {orphans} of {len(work)} pieces of device work have no launch call in the trace;"
                " they follow the order of their stream alone",
            )
        )
    if not len(work):
        found.append(Diagnostic("no-device-work", f"{where}: no device work recorded; the replay covers the CPU threads alone"))
    if waits.inferred:
        known = f"{waits.inferred} waits between streams were inferred from the order of calls; record with CUDA sync events to know them"
        found.append(Diagnostic("stream-waits-inferred", f"{where}: {known}"))
    return found
