"""Devices that wait for the CPU to launch their work, and work in pieces so small that launching them is what takes time.

A CUDA graph launches all kernels of a pass by one call; its worth is that of `lumos whatif --set cuda_graphs=on` where the job can be cut
into passes, otherwise at most that of a CPU that takes no time at all. Fusing neighbouring elementwise kernels saves their launches
and the memory traffic between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.durations import fuse, matching
from lumos.changes.layout.capture import launches_graphs
from lumos.errors import LumosError
from lumos.findings.finding import FindingCode
from lumos.findings.rebuilt import saved_by
from lumos.graph.table import Kind
from lumos.simulation.durations import with_durations
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.findings.case import Case, Priced

#: Kernels that a compiler can fuse with their neighbours.
ELEMENTWISE = "device:*elementwise*"
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


class _Price(NamedTuple):
    """The worth of a faster CPU, ns, its least and most, and the command that shows it."""

    worth: float
    least: float
    most: float
    command: str
    graphs: bool


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
    price = _price(case)
    if not case.matters(price.worth):
        return
    middle = float(np.median(case.graph.duration[kernels]))
    number = kernels.sum() / case.steps / len(case.graph.ranks)
    mostly = "Python between operators" if python > calls else "operators and launch calls"
    yield case.finding(
        FindingCode.LAUNCH_BOUND,
        "the devices wait for the CPU to launch their work",
        case.at_longest(case.counted & _on_host(case)),
        price.worth,
        evidence=(
            f"the devices idle {duration(python + calls)} a step for the CPU, mostly for {mostly}"
            f"{f', and {duration(loading)} while it loads data' if case.matters(loading) else ''}; {number:,.0f} kernels a step and rank"
            f" with a median of {duration(middle)}"
        ),
        fix=(
            "launch the passes as CUDA graphs or compile the model (torch.compile, mode reduce-overhead)"
            if price.graphs
            else "do less on the CPU before each launch: larger batches, compiled or fused operators, graphs of more of the step"
        ),
        command=price.command,
        range_ns=(price.least, price.most),
        fixed=None if price.graphs else case.without(_on_host(case)),
    )


def _on_host(case: Case) -> NDArray[np.bool_]:
    """The work of the CPU that launches, bool[n]."""
    return ~case.owners.on_device & np.isin(case.graph.kind, _HOST)


def _long_call(case: Case) -> Priced | None:
    """The finding that one piece of CPU work is most of what the devices wait for, where a single step counts: such as the first call of a
    process, which sets the device up. Of several steps, one that holds such a piece takes much longer (`slow_steps`)."""
    if case.steps > 1:
        return None
    host, graph = case.counted & _on_host(case), case.graph
    longest = np.zeros(len(graph), bool)
    for position in range(len(graph.ranks)):
        own = np.flatnonzero(host & (case.owners.rank == position))
        longest[own[np.argmax(graph.duration[own])] if len(own) else []] = True
    worth = case.saved_without_ns(longest)
    if not case.matters(worth) or 2 * worth < case.saved_without_ns(_on_host(case)):
        return None
    place = case.at_longest(longest)
    took = duration(int(graph.duration[longest].max()))
    return case.finding(
        FindingCode.LONG_CALL,
        f"the devices wait for one long piece of CPU work: {place.task}",
        place,
        worth,
        evidence=f"it takes {took}, and all other work of the CPU together holds the devices up for less",
        fix="if it only happens at the start (set-up of the device, compilation), record later steps, as lumos collect does; if it recurs, "
        "move it out of the step",
        command="critical-path",
        fixed=case.without(longest),
    )


def _price(case: Case) -> _Price:
    """What a CPU that launches in no time is worth at most, and CUDA graphs where they can be tried."""
    most = case.saved_without_ns(_on_host(case))
    bound = _Price(most, 0.0, most, "whatif --scale 'cpu:*=0'", False)
    if launches_graphs(case.graph):
        return bound
    try:
        saved = saved_by(case, {"cuda_graphs": "on"})
    except LumosError:
        return bound
    if not case.matters(saved.worth):
        return bound
    return _Price(saved.worth, saved.least, saved.most, "whatif --set cuda_graphs=on", True)


def _fusible(case: Case) -> Iterator[Priced]:
    """What fusing neighbouring elementwise kernels is worth."""
    try:
        tasks = matching(case.graph, case.job, ELEMENTWISE)
        fused = fuse(case.graph, tasks, case.owners.step)
    except LumosError:
        return
    worth = case.saved_ns(with_durations(case.graph, fused.duration))
    if not case.matters(worth):
        return
    of_steps = tasks & case.counted
    if not of_steps.any():
        return
    each = case.graph.duration[of_steps]
    share = case.steps * len(case.graph.ranks)
    yield case.finding(
        FindingCode.FUSIBLE_KERNELS,
        "elementwise kernels that follow one another could be one",
        case.at_longest(of_steps),
        worth,
        evidence=(
            f"{len(each) / share:,.0f} elementwise kernels a step and rank take {duration(float(each.sum() / share))}, with a median of"
            f" {duration(float(np.median(each)))}; neighbours that become one save {duration(worth)}"
        ),
        fix="fuse them: torch.compile, or kernels that do several of these operators (fused optimizers, norms, activations)",
        command=f"whatif --fuse '{ELEMENTWISE.removeprefix('device:')}'",
        range_ns=(0.0, worth),
        fixed=with_durations(case.graph, fused.duration),
    )
