"""Calls in which the CPU waits for the device: synchronisations and blocking copies, such as those of `.item()`.

Their worth is what the step is shorter by without them: the CPU then runs ahead of the device as far as the queue of launches lets it.
"""

from __future__ import annotations

from glob import escape
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.ranks.straggler_causes import described
from lumos.findings.finding import FindingCode, where_words
from lumos.graph.places import innermost
from lumos.graph.table import Dependency, Kind
from lumos.trace.table import Category, unique
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.findings.case import Case, Priced
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

#: What a call waits by that waits for the device.
_ON_DEVICE = frozenset({Dependency.SYNC, Dependency.COPY})
#: A share of the time in which calls wait that is not worth saying: all but the rounding.
ALMOST_ALL = 0.995


def blocking_findings(case: Case) -> Iterator[Priced]:
    """The finding that the CPU waits for the device in the middle of a step."""
    if not case.has_device:
        return
    graph = case.graph
    returns = np.flatnonzero(_of_device(graph) & case.counted)
    if not len(returns):
        return
    calls, waited = _waits(case, returns)
    price = case.ask({"drop": _patterns(case, calls, waited)})
    if price is None:
        return
    share = case.steps * len(graph.ranks)
    time = duration(float(waited[calls].sum() / share))
    names, number, total = _by_caller(case, calls, waited[calls])
    of_all = float(total[0] / max(total.sum(), 1))
    most = "" if of_all > ALMOST_ALL else f" take {of_all:.0%} of it".replace("%", " %")
    of_top = f"{count(max(round(number[0] / share), 1), 'call')} {where_words(names[0])}{most}"
    yield case.finding(
        FindingCode.BLOCKING_CALLS,
        f"the CPU waits for the device, mostly {where_words(names[0])}",
        case.at_longest(calls, waited),
        price,
        evidence=f"calls that wait take {time} a step and rank: {of_top}",
        fix="no .item() or .cpu() in the step; copy pinned memory with non_blocking=True",
    )


def _of_device(graph: Graph) -> NDArray[np.bool_]:
    """The tasks that are returns of calls that waited for the device, bool[n]; other returns wait for another thread."""
    edges = np.flatnonzero(np.isin(graph.pred_kind, list(_ON_DEVICE)))
    returns = np.zeros(len(graph), bool)
    returns[np.searchsorted(graph.pred_offset, edges, side="right") - 1] = True
    returns[graph.waits.task if graph.waits is not None else []] = True
    returns &= graph.kind == Kind.RETURN
    return returns


def _waits(case: Case, returns: Int64) -> tuple[Int64, Int64]:
    """The task before each return on its thread, the call itself, and the time that each call waited, int64[n] ns."""
    graph, truth = case.graph, case.truth
    order = np.argsort(graph.processor, kind="stable")
    before = np.full(len(graph), -1, np.int64)
    follows = np.flatnonzero(np.diff(graph.processor[order]) == 0) + 1
    before[order[follows]] = order[follows - 1]
    returns = returns[before[returns] >= 0]
    calls = before[returns]
    waited = np.zeros(len(graph), np.int64)
    np.maximum.at(waited, calls, truth.end[returns] - truth.end[calls])
    return calls, waited


def _plain(name: str) -> str:
    """The name of an operator without the words that the autograd engine puts before it."""
    return name.removeprefix("autograd::engine::evaluate_function: ").removeprefix("torch::autograd::")


def _patterns(case: Case, calls: Int64, waited: Int64) -> list[str]:
    """What to leave out so that nothing waits: calls that do nothing but wait, also those that need not wait as long as others do before
    them, and of calls that copy too, the operators around them."""
    graph, launched = case.graph, case.owners.launch
    copies = np.isin(calls, launched[launched >= 0])
    alone = dict.fromkeys(f"cpu:{escape(str(graph.names[i]))}" for i in unique(graph.name[calls[~copies]]).tolist())
    around = dict.fromkeys(f"operator:{escape(name)}" for name in _callers(case, calls[copies & (waited[calls] > 0)]) if name)
    return [*alone, *around]


def _callers(case: Case, calls: Int64) -> list[str]:
    """The innermost operator around each call; "" for a call outside of any."""
    out = [""] * len(calls)
    for position, trace in enumerate(case.job.traces):
        own = np.flatnonzero((case.owners.rank[calls] == position) & (case.graph.event[calls] >= 0))
        rows = innermost(trace, np.flatnonzero(trace.category == Category.OPERATOR), case.graph.event[calls[own]].astype(np.int64))
        for i, row in zip(own.tolist(), rows.tolist(), strict=True):
            out[i] = str(trace.strings[trace.name[row]]) if row >= 0 and row != case.graph.event[calls[i]] else ""
    return out


def _by_caller(case: Case, calls: Int64, waited: Int64) -> tuple[list[str], Int64, Int64]:
    """The operators in which calls wait, else the calls themselves: names, number and time, ns, the most time first."""
    graph = case.graph
    named = [
        described(graph, task) if graph.kind[task] == Kind.HOST else _plain(str(graph.names[graph.name[task]])) for task in calls.tolist()
    ]
    named = [f"{_plain(caller)} ({name})" if caller else name for caller, name in zip(_callers(case, calls), named, strict=True)]
    names, of = np.unique(np.array(named), return_inverse=True)
    number, total = np.bincount(of), np.bincount(of, waited).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return [str(names[i]) for i in order], number[order], total[order]
