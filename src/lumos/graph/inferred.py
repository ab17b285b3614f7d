"""What the graph of a rank had to infer from its rows, or could not know, as diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.diagnostics import Diagnostic
from lumos.graph.waits.syncs import NONE
from lumos.trace.table import ABSENT
from lumos.units import count, duration

if TYPE_CHECKING:
    from lumos.graph.launches import DeviceWork
    from lumos.graph.waits.streams import StreamWaits
    from lumos.graph.waits.syncs import Synchronisations
    from lumos.trace.table import Int64, Trace

_KNOW_WAITS = "record with CUDA sync events to know them"


def inferred_waits(
    trace: Trace, work: DeviceWork, syncs: Synchronisations, waits: StreamWaits, held_up: Int64, depth: int
) -> list[Diagnostic]:
    """What of launches and waits had to be inferred or is not known. held_up: the first work of streams that earlier work kept busy.
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
    for i in held_up.tolist():
        name = f"stream {work.streams[work.stream[i]][1]}"
        late = duration(int(work.start[i] - trace.start[work.call[i]] - trace.duration[work.call[i]]))
        message = (
            f"{where}: the first work of {name} started {late} after its launch: work from before the recording held it up,"
            " or its code was being loaded; this one start is taken from the trace"
        )
        found.append(Diagnostic("device-held-up", message))
    if not len(work):
        found.append(Diagnostic("no-device-work", f"{where}: no device work recorded; the replay covers the CPU threads alone"))
    if waits.inferred:
        message = f"{where}: {waits.inferred} waits between streams were inferred from the order of calls; {_KNOW_WAITS}"
        found.append(Diagnostic("stream-waits-inferred", message))
    if waits.unresolved:
        shown = count(waits.unresolved, "wait")
        message = f"{where}: for {shown} between streams the trace shows no awaited work, so nothing is held back; {_KNOW_WAITS}"
        found.append(Diagnostic("stream-waits-unresolved", message))
    unknown = int(((syncs.target == NONE) & (syncs.event < 0)).sum())
    if unknown:
        found.append(
            Diagnostic(
                "sync-unknown",
                f"{where}: for {count(unknown, 'synchronising call')} the trace shows no awaited work; their measured time is kept",
            )
        )
    return found
