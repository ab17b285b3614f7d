"""Devices that wait for the CPU to launch their work, and work in pieces so small that launching them is what takes time.

A CUDA graph launches all kernels of a pass by one call; where the job cannot be cut into passes, the worth is that of a CPU that takes no
time at all. Fusing neighbouring elementwise kernels saves their launches and the memory traffic between them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from glob import escape
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.durations import matching
from lumos.changes.layout.capture import launches_graphs
from lumos.findings.finding import FindingCode
from lumos.graph.table import Kind
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.findings.case import Case, Priced

#: Kernels that a compiler can fuse with their neighbours.
ELEMENTWISE = "*elementwise*"
#: Work of the CPU that launches, without waits.
_HOST = (Kind.OPERATOR, Kind.HOST, Kind.LAUNCH, Kind.RUNTIME)


def launch_findings(case: Case) -> Iterator[Priced]:
    """The finding that the CPU sets the pace, and that kernels could be one."""
    if not case.has_device:
        return
    yield from _launch_bound(case)
    yield from _fusible(case)


def launches_seen(case: Case) -> bool:
    """Whether the recording shows the calls that launched most of the kernels."""
    kernels = np.flatnonzero(case.counted & (case.graph.kind == Kind.KERNEL))
    calls = case.owners.launch[kernels]
    return bool(2 * np.count_nonzero(case.graph.event[calls[calls >= 0]] >= 0) > len(kernels))


def _launch_bound(case: Case) -> Iterator[Priced]:
    python, calls, loading = (case.mean_part_ns(part) for part in ("host_between_operators", "host", "data_loading"))
    if not case.matters(python + calls):
        return
    kernels = case.counted & case.owners.on_device & (case.graph.kind == Kind.KERNEL)
    if not kernels.any() or not launches_seen(case):
        return
    one_call = _long_call(case)
    if one_call is not None:
        yield one_call
        return
    graphs = None if launches_graphs(case.graph) else case.ask({"cuda_graphs": "on"})
    price = graphs or case.ask({"scale": {"cpu:*": 0}})
    if price is None:
        return
    middle = float(np.median(case.graph.duration[kernels]))
    number = kernels.sum() / case.steps / len(case.graph.ranks)
    mostly = "Python between operators" if python > calls else "operators and launch calls"
    yield case.finding(
        FindingCode.LAUNCH_BOUND,
        "the devices wait for the CPU to launch their work",
        case.at_longest(case.counted & _on_host(case)),
        price,
        evidence=(
            f"devices idle {duration(python + calls)} a step, mostly for {mostly}"
            f"{f', and {duration(loading)} for data' if case.matters(loading) else ''}; {number:,.0f} kernels a step and rank,"
            f" median {duration(middle)}"
        ),
        fix=(
            "capture CUDA graphs, or compile (torch.compile, mode reduce-overhead)"
            if graphs
            else "do less before each launch: larger batches, fused operators, more graphs"
        ),
    )


def _on_host(case: Case) -> NDArray[np.bool_]:
    """The work of the CPU that launches, bool[n]."""
    return ~case.owners.on_device & np.isin(case.graph.kind, _HOST)


def _long_call(case: Case) -> Priced | None:
    """The finding that one piece of CPU work is most of what the devices wait for, where a single step counts: such as the first call of a
    process, which sets the device up. Of several steps, one that holds such a piece takes much longer (`slow_steps`); and
    that of a loader is the loader's."""
    if case.steps > 1:
        return None
    host, graph = case.counted & _on_host(case) & ~case.loading, case.graph
    longest = np.zeros(len(graph), bool)
    for position in range(len(graph.ranks)):
        own = np.flatnonzero(host & (case.owners.rank == position))
        longest[own[np.argmax(graph.duration[own])] if len(own) else []] = True
    worst = int(np.argmax(np.where(longest, graph.duration, 0)))
    price, most = (case.ask({"scale": {f"cpu:{of}": 0}}) for of in (escape(str(graph.names[graph.name[worst]])), "*"))
    took_ns = int(graph.duration[longest].max())
    if price is None or 1e9 * price.worth_s > 2 * took_ns or (most is not None and 2 * price.worth_s < most.worth_s):
        return None  # the second: what many pieces of its name do
    where = case.at_longest(longest)
    return case.finding(
        FindingCode.LONG_CALL,
        f"the devices wait for one long piece of CPU work: {where.task}",
        where,
        price,
        evidence=f"it takes {duration(took_ns)}; all other work of the CPU holds the devices up for less",
        fix="record later steps if only the first has it; else move it out of the step",
    )


def _fusible(case: Case) -> Iterator[Priced]:
    """What fusing neighbouring elementwise kernels is worth."""
    if not any(fnmatchcase(str(name), ELEMENTWISE) for name in case.graph.names):
        return
    price = case.ask({"fuse": ELEMENTWISE})
    if price is None:
        return
    tasks = matching(case.graph, case.job, ELEMENTWISE)
    of_steps = tasks & case.counted
    if not of_steps.any():
        return
    kernel_ns = case.graph.duration[of_steps]
    share = case.steps * len(case.graph.ranks)
    yield case.finding(
        FindingCode.FUSIBLE_KERNELS,
        "elementwise kernels that follow one another could be one",
        case.at_longest(of_steps),
        price,
        evidence=f"{len(kernel_ns) / share:,.0f} a step and rank take {duration(float(kernel_ns.sum() / share))}",
        fix="torch.compile, or fused optimizers, norms and activations",
    )
