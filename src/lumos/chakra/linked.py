"""Join an execution trace and a profiler file of one rank: find which operator of one is which operator of the other.

Both may carry the id of an operator's record function. These are used only where the names that they join agree, because the same ids can
mean different operators in the two files. Otherwise the calls of each thread, by name and caller's name, are aligned in their order.

The link rate is a share of the kernels whose operator is in both files. Where the profiler saw an operator k times and the observer e
times, min(1, e / k) of its kernels count. Files that are not of one rank and run (`votes`) have no links at all.

Whether they are is voted on by facts that linking does not use. Each confirms the pair, refutes it, or says nothing where a file lacks it.
Two runs of one model have the same operators in the same order, so the order of calls proves nothing. One fact that refutes is enough.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.characters import is_whole
from lumos.cost.operators import launched_by
from lumos.diagnostics import Diagnostic
from lumos.graph.launches import device_work
from lumos.operators.sequences import align_names
from lumos.result import Shown, plain
from lumos.trace.nesting import callers
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.trace.execution_trace import ExecutionTrace

#: The share of joined names that must agree for ids to be used.
BELIEVED = 0.95
#: Link rates below this are reported.
LOW = 0.9
#: The fields of a profiler file that may hold the id of an operator's record function, and what must be added to them.
_IDS = (("Record function id", 0), ("External id", 0), ("Ev Idx", 1), ("Ev Idx", 0))
#: How many operators have their tensor shapes compared.
COMPARED = 2000
#: A fact that is counted over operators is one only from this many on.
_FEWEST = 20
#: The share of operators that must agree. Of one run all do; in files of two ranks of a recommendation model 1.7 % have other shapes.
OF_ONE_RUN = 0.995


class Vote(NamedTuple):
    """What one fact says. fact: "process", "sequence-numbers" or "shapes". confirms: None where a file lacks it. reason: in words."""

    fact: str
    confirms: bool | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Linked(Shown):
    """Which nodes of the execution trace `observed` the rows of `trace` are.

    node: int32 per row of the Trace, its node in the execution trace, ABSENT where there is none. kernel: the row of each
    kernel. kernel_node: per kernel the node of the operator that launched it. method: per kernel how that was found: "id",
    "alignment", "enclosing" (the execution trace lacks the operator itself but has one around it), or "" where it was not.
    shared: how many kernels have an operator that is in both files. linked: how many were found by id or alignment.
    operators: how many rows were matched. votes: what facts that linking does not use say about the pair; where one refutes
    it, nothing is linked.
    """

    observed: ExecutionTrace
    trace: Trace
    node: Int32
    kernel: Int32
    kernel_node: Int32
    method: tuple[str, ...]
    shared: int
    operators: int
    votes: tuple[Vote, ...]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Those of the execution trace, and why the pair is refuted or how much is not linked."""
        return (*self.observed.diagnostics, *_findings(self))

    @property
    def confidence(self) -> float | None:
        """The share of the facts that confirm the pair; 0 where one refutes it, None where the files have none of them."""
        confirming = 0 if self.refuted else sum(vote.confirms is True for vote in self.votes)
        return confirming / len(self.votes) if confirming or self.refuted else None

    @property
    def refuted(self) -> tuple[str, ...]:
        """Why the two files are not of one rank and run; empty where nothing says so."""
        return tuple(vote.reason for vote in self.votes if vote.confirms is False)

    def to_dict(self) -> dict[str, Any]:
        """How much was linked, and how; the keys of each rank of `lumos chakra link --json`."""
        figures = ("kernels", "shared", "linked", "link_rate", "by_method", "operators", "confidence", "votes", "diagnostics")
        files = {"rank": self.trace.rank, "execution_trace": self.observed.path, "profiler_file": self.trace.path}
        return files | {name: plain(getattr(self, name)) for name in figures}

    @property
    def kernels(self) -> int:
        return len(self.kernel)

    @property
    def by_method(self) -> dict[str, int]:
        counts = Counter(self.method)
        return {how or "none": counts[how] for how in ("id", "alignment", "enclosing", "")}

    @property
    def linked(self) -> int:
        counts = self.by_method
        return counts["id"] + counts["alignment"]

    @property
    def link_rate(self) -> float | None:
        """Linked kernels over those whose operator is in both files; None where there are none."""
        return min(self.linked / self.shared, 1.0) if self.shared else None


def link_traces(observed: ExecutionTrace, trace: Trace, *, other_window: bool = False) -> Linked:
    """Join an execution trace with the profiler file of the same rank and run. other_window: also where the two are of different windows
    of one process, of which the one has the times of other calls than the tensors of the other."""
    rows = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.ANNOTATION)).astype(np.int32)
    rows = rows[np.lexsort((-trace.duration[rows], trace.start[rows], trace.lane[rows]))]
    caller = callers(trace, rows)
    node = np.full(len(trace), ABSENT, np.int32)
    by_id = _join_ids(observed, trace, rows)
    how = "id" if by_id is not None else "alignment"
    calls = _calls(observed, trace, rows, caller)
    node[rows] = _align(observed, trace, rows, calls) if by_id is None else by_id
    cast = (_process(observed, trace), _sequence(observed, trace, node, other_window), _shapes(observed, trace, node))
    if any(vote.confirms is False for vote in cast):
        node[:] = ABSENT
    kernel = device_work(trace).row
    place_of = np.full(len(trace) + 1, ABSENT, np.int64)  # in `rows`; the last is that of ABSENT
    place_of[rows] = np.arange(len(rows))
    operator = place_of[launched_by(trace, kernel.astype(np.int64), rows[trace.category[rows] == Category.OPERATOR].astype(np.int64))]
    method, kernel_node = _methods(node, operator, how, caller, rows)
    return Linked(observed, trace, node, kernel, kernel_node, method, _shared(calls, operator), int((node >= 0).sum()), cast)


def _join_ids(observed: ExecutionTrace, trace: Trace, rows: Int32) -> Int32 | None:
    """The node of each row by id, from the first field of `_IDS` whose names agree; None where no field's do."""
    known = observed.rf_id > 0
    order = np.flatnonzero(known)[np.argsort(observed.rf_id[known], kind="stable")]
    ids = observed.rf_id[order]
    if not len(ids):
        return None
    kineto_names = _common_names(observed, trace)
    is_operator = trace.category[rows] == Category.OPERATOR
    for key, shift in _IDS:
        values = trace.external_id[rows] if key == "External id" else trace.dense(key)[rows]
        wanted = np.where(values == ABSENT, ABSENT, values + shift)
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        joined = (ids[at] == wanted) & is_operator
        same = kineto_names[trace.name[rows]] == observed.name[order[at]]
        agrees = joined & same
        expected = min(int(is_operator.sum()), int((~observed.is_pseudo()).sum()))
        if joined.any() and agrees.sum() >= BELIEVED * joined.sum() and agrees.sum() >= BELIEVED * expected:
            return np.where((ids[at] == wanted) & same, order[at], ABSENT).astype(np.int32)
    return None


def _common_names(observed: ExecutionTrace, trace: Trace) -> Int64:
    """For each string of the trace its index among the strings of the execution trace, ABSENT where it is not among them."""
    index = {name: i for i, name in enumerate(observed.strings)}
    return np.array([index.get(name, ABSENT) for name in trace.strings] or [ABSENT], np.int64)


class _Calls(NamedTuple):
    """A number for every call's name and caller's name. row: int64 per row. node: int64 per node. ABSENT where the other
    file never has the name. row_name, node_name: the same for the name alone."""

    row: Int64
    node: Int64
    row_name: Int64
    node_name: Int64


def _calls(observed: ExecutionTrace, trace: Trace, rows: Int32, caller: Int64) -> _Calls:
    """The calls of both files, numbered alike. The caller that counts is the nearest whose name both files have."""
    row_name = _common_names(observed, trace)[trace.name[rows]]
    known = np.isin(observed.name, row_name) & ~observed.is_pseudo()
    node_name = np.where(known, observed.name, ABSENT).astype(np.int64)
    width = len(observed.strings) + 1
    row, node = (
        np.where(name >= 0, name * width + _caller_names(up, name), ABSENT)
        for name, up in ((row_name, caller), (node_name, observed.parent.astype(np.int64)))
    )
    return _Calls(row, node, row_name, node_name)


def _align(observed: ExecutionTrace, trace: Trace, rows: Int32, calls: _Calls) -> Int32:
    """The node of each row by the order of calls, thread by thread, in the part of the profiled time that autograd's sequence numbers
    say. Where they do not, the thread with most in common says it, and the others are aligned within it."""
    inside = _numbered_window(observed, trace, rows, calls)
    known_rows, known_nodes = np.flatnonzero((calls.row >= 0) & inside), np.flatnonzero(calls.node >= 0)
    out = np.full(len(rows), ABSENT, np.int32)
    start, covered = trace.start[rows], None
    for thread, lane in _threads(observed, trace, rows[known_rows], known_nodes, calls.node_name, calls.row_name[known_rows]):
        nodes = known_nodes[observed.thread[known_nodes] == thread]
        on_lane = known_rows[trace.lane[rows[known_rows]] == lane]
        if covered is not None:  # rows in the gap before that part count only where nodes came before, and so after it
            (first, last), (before, begin, stop, behind) = covered
            least, most = before if nodes.min() < first else begin, behind if nodes.max() > last else stop
            on_lane = on_lane[(start[on_lane] >= least) & (start[on_lane] <= most)]
        numbers = np.unique(np.concatenate((calls.node[nodes], calls.row[on_lane])), return_inverse=True)[1].astype(np.int32)
        partner = align_names(numbers[: len(nodes)], numbers[len(nodes) :])
        matched = np.flatnonzero(partner >= 0)
        out[on_lane[partner[matched]]] = nodes[matched]
        if covered is None and len(matched):  # the nodes of this thread, which are numbered in call order over all threads, and their time
            mine = np.flatnonzero(trace.lane[rows] == lane)
            covered = nodes[matched[[0, -1]]], _gaps(trace, rows[mine], np.isin(mine, on_lane[partner[matched]]))
    return out


def _numbered_window(observed: ExecutionTrace, trace: Trace, rows: Int32, calls: _Calls) -> NDArray[np.bool_]:
    """Which rows may be in the part of the time that the execution trace covers: where autograd's sequence numbers and the names of both
    files agree exactly, those from the numbered rows before that part to the numbered rows after it; else all."""
    numbers = trace.dense("Sequence number")[rows]
    width = len(observed.strings)
    numbered = (numbers >= 0) & (calls.row_name >= 0)
    nodes = (observed.sequence >= 0) & (calls.node_name >= 0)
    wanted = observed.sequence[nodes] * width + calls.node_name[nodes]
    keys = np.where(numbered, numbers * width + calls.row_name, ABSENT)
    if not len(wanted) or np.isin(wanted, keys).mean() < BELIEVED:
        return np.ones(len(rows), bool)
    shared = numbered & np.isin(keys, wanted)
    before, _, _, behind = _gaps(trace, rows[numbered], shared[numbered])
    return np.asarray((trace.start[rows] >= before) & (trace.start[rows] <= behind))


def _gaps(trace: Trace, rows: Int32, found: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Where the rows before those that were found end, where these begin and end, and where the rows behind them begin."""
    start, end, most = trace.start[rows], trace.start[rows] + trace.duration[rows], np.iinfo(np.int64).max
    begin, stop = int(start[found].min()), int(end[found].max())
    before, behind = end[~found & (end <= begin)], start[~found & (start >= stop)]
    return int(before.max(initial=-most)), begin, stop, int(behind.min(initial=most))


def _caller_names(caller: Int64, name: Int64) -> Int64:
    """The name of the nearest caller that has one (name >= 0), plus 1; 0 where there is none. Callers come before callees."""
    names, out = name.tolist(), [0] * len(name)
    for i, up in enumerate(caller.tolist()):
        if up >= 0:
            out[i] = names[up] + 1 if names[up] >= 0 else out[up]
    return np.array(out, np.int64)


def _threads(observed: ExecutionTrace, trace: Trace, rows: Int32, nodes: Int64, node_name: Int64, row_name: Int64) -> list[tuple[int, int]]:
    """(thread, lane) pairs with the most operators in common, best pairs first; every thread and lane is in one pair at most."""
    lane = trace.lane[rows]
    overlaps = []
    for thread in unique(observed.thread[nodes]).tolist():
        observed_names = Counter(node_name[nodes[observed.thread[nodes] == thread]].tolist())
        for other in unique(lane).tolist():
            common = observed_names & Counter(row_name[lane == other].tolist())
            overlaps.append((sum(common.values()), -thread, -other))
    out: list[tuple[int, int]] = []
    for count, thread, other in sorted(overlaps, reverse=True):
        if count and -thread not in {t for t, _ in out} and -other not in {k for _, k in out}:
            out.append((-thread, -other))
    return out


def _methods(node: Int32, operator: Int64, how: str, caller: Int64, rows: Int32) -> tuple[tuple[str, ...], Int32]:
    """How each kernel was linked, and to which node."""
    method, kernel_node = [], []
    for at in operator.tolist():
        direct = True
        while at >= 0 and node[rows[at]] == ABSENT:
            at, direct = int(caller[at]), False
        kernel_node.append(int(node[rows[at]]) if at >= 0 else ABSENT)
        method.append("" if at < 0 else how if direct else "enclosing")
    return tuple(method), np.array(kernel_node, np.int32)


def _shared(calls: _Calls, operator: Int64) -> int:
    """How many kernels have an operator that is in both files: of each call min(1, e / k) of its kernels."""
    observed = Counter(calls.node.tolist())
    profiled = Counter(calls.row.tolist())
    kernels = Counter(calls.row[operator[operator >= 0]].tolist())
    return round(sum(count * min(1.0, observed[call] / profiled[call]) for call, count in kernels.items() if call != ABSENT))


def _findings(linked: Linked) -> Iterator[Diagnostic]:
    yield from (Diagnostic(f"{vote.fact}-differ", vote.reason) for vote in linked.votes if vote.confirms is False)
    if linked.refuted:
        return
    observed, trace, rate = linked.observed.path, linked.trace.path, linked.link_rate
    if linked.confidence is None:
        reasons = "; ".join(vote.reason for vote in linked.votes)
        yield Diagnostic("pair-unconfirmed", f"nothing but the order of calls says that both files are of one rank and run: {reasons}")
    if rate is None:
        yield Diagnostic("nothing-to-link", f"no kernel of {trace} comes from an operator that {observed} has")
    elif rate < LOW:
        few = f"only {rate:.0%} of the {linked.shared} kernels whose operator is in both files are linked"
        yield Diagnostic("link-rate-low", f"{few}: {observed} and {trace} are of different runs, ranks or windows, or rows are missing")
    if linked.shared < LOW * linked.kernels:
        less = f"{linked.kernels - linked.shared} of {linked.kernels} kernels come from operators that {observed} does not have (so often)"
        yield Diagnostic("operators-differ", less)


def _process(observed: ExecutionTrace, trace: Trace) -> Vote:
    """The process id: both files name that of the process which recorded them."""
    profiled = processes(trace)
    if observed.pid <= 0 or not profiled:
        return Vote("process", None, "a file does not name its process")
    listed = ", ".join(map(str, profiled))
    return Vote("process", observed.pid in profiled, f"the execution trace is of process {observed.pid}, the profiler's file of {listed}")


def processes(trace: Trace) -> list[int]:
    """The ids of the processes whose operators a profiler recorded, ascending."""
    lanes = unique(trace.lane[trace.category == Category.OPERATOR])
    return sorted({int(pid) for lane in lanes.tolist() if is_whole(pid := trace.lanes[lane].pid)})


def _sequence(observed: ExecutionTrace, trace: Trace, node: Int32, other_window: bool) -> Vote:
    """Autograd's sequence numbers: they are the same in both files. By one constant they differ where the files are of two windows of one
    process, or of two runs of one program."""
    numbers = trace.dense("Sequence number")
    rows = np.flatnonzero((node >= 0) & (numbers >= 0))
    rows = rows[observed.sequence[node[rows]] >= 0]
    if len(rows) < _FEWEST:
        return Vote("sequence-numbers", None, f"{len(rows)} linked operators have autograd's sequence number in both files")
    by, times = np.unique(numbers[rows] - observed.sequence[node[rows]], return_counts=True)
    agree, constant = int(times.max()), int(by[times.argmax()])
    reason = f"autograd's sequence numbers of {agree} of {len(rows)} operators differ by {constant}"
    same = agree >= OF_ONE_RUN * len(rows)
    if same and constant and not other_window:
        reason += ": another window of the process, or another run; --other-window links it all the same"
    return Vote("sequence-numbers", None if same and constant and other_window else same and not constant, reason)


def _shapes(observed: ExecutionTrace, trace: Trace, node: Int32) -> Vote:
    """The shapes of tensor inputs, of COMPARED operators at most that lie evenly among all."""
    dims, compared, agree = trace.dense("Input Dims"), 0, 0
    matched = np.flatnonzero((dims >= 0) & (node >= 0))
    for row in matched[unique(np.linspace(0, len(matched) - 1, min(len(matched), COMPARED)).astype(np.int64))].tolist():
        _, shapes, types = observed.inputs[int(node[row])]
        profiled, seen, kinds = json.loads(trace.strings[int(dims[row])]), json.loads(shapes), json.loads(types)
        pairs = [(a, b) for a, b, kind in zip(profiled, seen, kinds, strict=False) if str(kind).startswith("Tensor")]
        compared += bool(pairs)
        agree += bool(pairs) and all(a == b for a, b in pairs)
    if compared < _FEWEST:
        return Vote("shapes", None, f"{compared} linked operators have shapes in both files")
    return Vote("shapes", agree >= OF_ONE_RUN * compared, f"{compared - agree} of {compared} operators have other tensor shapes")
