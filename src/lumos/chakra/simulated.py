"""What an exported job takes where a simulator runs it, against the job's own replay.

A simulator runs one compute node, one host operator and one communication of a rank at a time, whatever streams and threads
the job has; and it prices communication, and in roofline mode compute, by its own files. Both change the time, so both are
said apart (`play` is the simulator's rule, `network` its prices).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.play import play
from lumos.diagnostics import Diagnostic
from lumos.trace.chakra.schema import CollectiveType, NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.chakra.astra_sim import Roof
    from lumos.chakra.network import Network
    from lumos.chakra.workload import Workload

#: Larger sets are not simulated at export: a node takes some 10 µs.
MOST_PLAYED = 400_000


class SimulatorTimes(NamedTuple):
    """How long all ranks take together, ns. replayed: in the job's own replay. ordered: one node of each sort a rank at a time, with the
    job's own times. simulated: the same with the simulator's prices."""

    replayed_ns: int
    ordered_ns: int
    simulated_ns: int


def as_simulated(workload: Workload, network: Network) -> SimulatorTimes | None:
    """The times of a set that is written with the files of `network`; None where it is too large or its ranks would hang."""
    if len(workload) > MOST_PLAYED:
        return None
    played = [play(one, network) for one in (workload, as_run(workload, network))]
    if any((one.end == ABSENT).any() for one in played):
        return None
    return SimulatorTimes(int((workload.start + workload.duration).max()), *(int(one.end.max()) for one in played))


def as_run(workload: Workload, network: Network) -> Workload:
    """The workload with the times that a simulator takes: none of communication, memory nodes and, in roofline mode, compute."""
    facts = workload.communication
    duration = workload.duration.copy()
    duration[facts.node[facts.type != CollectiveType.BROADCAST]] = ABSENT
    if network.memory is not None:
        duration[np.isin(workload.type, (NodeType.MEM_LOAD, NodeType.MEM_STORE))] = ABSENT
    if network.roofline:
        duration[of_roofline(workload)] = ABSENT
    return replace(workload, duration=duration)


def of_roofline(workload: Workload) -> Int64:
    """The compute nodes on devices whose operations or bytes are known: those that roofline mode prices."""
    known = (workload.operations != ABSENT) | (workload.bytes != ABSENT)
    return np.flatnonzero((workload.type == NodeType.COMP) & ~workload.on_cpu & known)


def under_roof(workload: Workload, roof: Roof) -> tuple[Workload, list[Diagnostic]]:
    """The workload with bytes for every compute node on a device whose work is unknown, and a diagnostic that says for how many.

    They are as many as `roof` moves in the node's recorded time: on that hardware the node takes as long as it did, on other
    hardware it follows the memory bandwidth.
    """
    compute = (workload.type == NodeType.COMP) & ~workload.on_cpu
    without = compute & (workload.operations == ABSENT) & (workload.bytes == ABSENT)
    if not without.any():
        return workload, []
    moved = np.where(without, np.rint(workload.duration * roof.memory).astype(np.int64), workload.bytes)
    share = float(workload.duration[without].sum() / max(int(workload.duration[compute].sum()), 1))
    text = (
        f"{int(without.sum())} of {int(compute.sum())} compute nodes ({share:.1%} of their time) have no known operations or bytes:"
        " written with the bytes that take their time on this cluster"
    )
    return replace(workload, bytes=moved), [Diagnostic("work-unknown", text)]


def findings(found: SimulatorTimes | None, nodes: int) -> Iterable[Diagnostic]:
    """Why a set was not simulated, where it was not."""
    if found is None:
        reason = f"it has more than {MOST_PLAYED:,} nodes" if nodes > MOST_PLAYED else "its ranks would wait for one another for ever"
        yield Diagnostic("not-simulated", f"the set was not run as a simulator would: {reason}")
