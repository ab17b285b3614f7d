"""What a rank did, one operation after the other: the sequence in which layers are looked for.

A unit is an operator that no other contains, but for ranges that only wrap others (annotations, nodes of the backward
pass, checkpointing), which are looked through. A rank without operators has its device work as units. A unit's symbol is
its name with the shapes of its inputs, or the kernel's name with its grid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lumos.graph.steps import is_step_mark
from lumos.trace.table import ABSENT, DEVICE_WORK, Category, Int32, Int64, Trace
from lumos.vocabulary import Phase

#: Nodes of the backward pass, in the names of all generations.
NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")
#: Ranges that are looked through where they contain operators: nodes, and custom functions such as CheckpointFunction.
WRAPPER = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$|\w*Function$|DistributedDataParallel\.forward|nn\.Module")
_UPDATE = re.compile(r"Optimizer\.(step|zero_grad)")
#: Names that tell a phase where there are no nodes to tell it: backward kernels, and what optimizers do.
_BACKWARD_NAME = re.compile(r"backward|gradient|_grad\b|dgrad|wgrad|_bwd", re.IGNORECASE)
_UPDATE_NAME = re.compile(r"adam|sgd|optimizer|(norm|clip|zero)\w* ?gradients?|gradient norm", re.IGNORECASE)
#: Point-to-point transfers, by name.
_TRANSFER = re.compile(r"(c10d::|nccl:)(send|recv)(_any_source_?)?( |_?$)")
#: Units without a telling name that a backward pass has in a row, at most.
QUIET = 8


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units of one rank by start; one entry per unit.

    row: row of the trace. symbol: int64, equal where name and shapes are equal. node: row of the backward node around
    it, -1 none. phase: `Phase`. number: autograd sequence number by which a forward and its backward unit find each
    other (a forward unit also answers to `spans`, the numbers inside it); -1 none.
    """

    row: Int64
    symbol: Int64
    node: Int64
    phase: NDArray[np.uint8]
    number: Int64
    from_kernels: bool

    def __len__(self) -> int:
        return len(self.row)


def units(trace: Trace) -> Units:
    """The units of a rank, in order of start."""
    rows = _topmost(trace)
    if not len(rows):
        return _kernels(trace)
    node = _around(trace, rows, NODE, Category.OPERATOR)
    number = trace.dense("Sequence number")
    own = number[rows]
    around = np.where(node >= 0, number[node], ABSENT)
    is_node = trace.named(NODE.match)[rows]
    node = np.where(is_node, rows, node)
    around = np.where(is_node, own, around)
    update = _around(trace, rows, _UPDATE, Category.ANNOTATION, Category.OPERATOR) >= 0
    in_node = node >= 0
    # The function of a node of C++ carries its node's number; what autograd numbers anew in there is a forward pass again.
    phase = _phases(in_node, (own >= 0) & ~is_node & (own != around), update) if in_node.any() else _named_phases(trace, rows, update)
    return Units(rows, _symbols(trace, rows), node, phase, np.where(phase == Phase.BACKWARD, around, own), False)


def _topmost(trace: Trace) -> Int64:
    """Operators that no operator contains, wrappers looked through."""
    marks = is_step_mark(trace) | trace.named(_UPDATE.match)
    inside = np.flatnonzero(trace.is_any(Category.OPERATOR) & ~marks)
    order = inside[np.lexsort((-trace.duration[inside], trace.start[inside], trace.lane[inside]))]
    wrapper = trace.named(WRAPPER.match)
    start, lane = trace.start[order].tolist(), trace.lane[order].tolist()
    end = (trace.start[order] + trace.duration[order]).tolist()
    wraps = wrapper[order].tolist()
    found: list[int] = []
    until, on = -1, -1
    for i in range(len(order)):
        if lane[i] != on:
            until, on = -1, lane[i]
        if start[i] < until:
            continue
        if wraps[i] and i + 1 < len(order) and lane[i + 1] == on and start[i + 1] < end[i]:
            continue  # a wrapper with something inside
        found.append(i)
        until = max(until, end[i])
    rows = order[np.array(found, np.int64)] if found else order[:0]
    return rows[np.argsort(trace.start[rows], kind="stable")]


def _kernels(trace: Trace) -> Units:
    """Device work as units, in order of start."""
    rows = np.flatnonzero(trace.is_any(*DEVICE_WORK))
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    none = np.full(len(rows), ABSENT, np.int64)
    grid = trace.dense("grid")[rows]
    _, symbol = np.unique(np.stack([trace.name[rows].astype(np.int64), grid]), axis=1, return_inverse=True)
    return Units(rows, np.ravel(symbol), none, np.full(len(rows), Phase.FORWARD, np.uint8), none, True)


def _symbols(trace: Trace, rows: Int64) -> Int64:
    """Name and input shapes of each row as one number."""
    shapes = trace.dense("Input Dims")[rows]
    _, symbol = np.unique(np.stack([trace.name[rows].astype(np.int64), shapes]), axis=1, return_inverse=True)
    return np.ravel(symbol)


def _around(trace: Trace, rows: Int64, pattern: re.Pattern[str], *categories: Category) -> Int64:
    """The innermost row of the categories and pattern around each of `rows`; -1 none."""
    from lumos.analyze.attribution import innermost

    among = np.flatnonzero(trace.is_any(*categories) & trace.named(pattern.match))
    return innermost(trace, among, rows)


def _phases(in_node: NDArray[np.bool_], recorded: NDArray[np.bool_], update: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The phase of each unit. recorded: autograd gave it a number, so its own backward pass will follow."""
    unknown = 255
    phase = np.full(len(in_node), unknown, np.uint8)
    phase[in_node] = Phase.BACKWARD
    phase[in_node & recorded] = Phase.RECOMPUTE
    phase[~in_node & recorded] = Phase.FORWARD
    phase[update] = Phase.OPTIMIZER
    following = _filled(phase[::-1], unknown)[::-1]
    before = _filled(phase, unknown)
    # Input preparation goes with what follows; the loss' seed gradient with the forward pass before it; what stands
    # between backward pass and optimizer (clipping, norms) with the update; the loop's end with what came before.
    open_ = phase == unknown
    guess = np.where(following == unknown, before, following)
    guess = np.where((following == Phase.BACKWARD) & (before == Phase.FORWARD), Phase.FORWARD, guess)
    guess = np.where(guess == unknown, Phase.OTHER, guess)
    return np.where(open_, guess, phase).astype(np.uint8)


def _named_phases(trace: Trace, rows: Int64, update: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Phases by names alone. Units close to backward ones are backward; a forward part that is much shorter than a pass and
    lies between backward ones is recomputation."""
    names = np.array([trace.strings[i] for i in trace.name[rows]])
    updates = update | np.array([bool(_UPDATE_NAME.search(n)) for n in names], bool)
    telling = np.flatnonzero(np.array([bool(_BACKWARD_NAME.search(n)) for n in names], bool) & ~updates)
    phase = np.full(len(rows), Phase.FORWARD, np.uint8)
    for a, b in pairwise(telling.tolist()):
        if b - a <= QUIET:
            phase[a:b] = Phase.BACKWARD
    phase[telling] = Phase.BACKWARD
    phase[updates] = Phase.OPTIMIZER
    edges = np.flatnonzero(np.diff(phase)) + 1
    runs = list(pairwise([0, *edges.tolist(), len(phase)]))
    moved = transfers(trace, rows)
    cuts = np.flatnonzero(moved | (phase != Phase.FORWARD))
    longest = int(np.diff(np.concatenate(([-1], cuts, [len(rows)]))).max()) - 1
    for a, b in runs:
        inside = a > 0 and b < len(phase) and phase[a - 1] == phase[b] == Phase.BACKWARD
        if phase[a] == Phase.FORWARD and inside:
            if not moved[a:b].any() and b - a < longest / 2:
                phase[a:b] = Phase.RECOMPUTE
            elif b - a <= QUIET:
                phase[a:b] = Phase.BACKWARD
    return phase


def transfers(trace: Trace, rows: Int64) -> NDArray[np.bool_]:
    """Which operators are point-to-point transfers: by name, or because what they launched names a peer."""
    peers = [trace.args[k].rows for k in ("Src Rank", "Dst Rank") if k in trace.args]
    ids = np.unique(trace.external_id[np.concatenate(peers)]) if peers else np.empty(0, np.int64)
    own = trace.external_id[rows]
    mask: NDArray[np.bool_] = trace.named(_TRANSFER.match)[rows] | (np.isin(own, ids) & (own >= 0))
    return mask


def _filled(phase: NDArray[np.uint8], unknown: int) -> NDArray[np.uint8]:
    """Unknown entries take the last known one before them."""
    at = np.where(phase != unknown, np.arange(len(phase)), -1)
    last = np.maximum.accumulate(at)
    out: NDArray[np.uint8] = np.where(last >= 0, phase[np.maximum(last, 0)], unknown).astype(np.uint8)
    return out


def numbers_inside(trace: Trace, found: Units) -> tuple[Int64, Int32]:
    """Sequence numbers of the rows inside forward and recompute units: (number ascending, unit). The last unit wins."""
    column = trace.args.get("Sequence number")
    if column is None or found.from_kernels:
        return np.empty(0, np.int64), np.empty(0, np.int32)
    from lumos.analyze.attribution import innermost

    rows = column.rows.astype(np.int64)[(column.values >= 0) & trace.is_any(Category.OPERATOR)[column.rows]]
    forward = np.flatnonzero((found.phase == Phase.FORWARD) | (found.phase == Phase.RECOMPUTE))
    place = np.full(len(trace), -1, np.int32)
    place[found.row[forward]] = forward
    around = innermost(trace, found.row[forward], rows)
    unit = np.where(place[rows] >= 0, place[rows], np.where(around >= 0, place[np.maximum(around, 0)], -1))
    inside = unit >= 0
    number, unit = trace.dense("Sequence number")[rows[inside]], unit[inside]
    order = np.lexsort((unit, number))
    number, unit = number[order], unit[order]
    last = np.append(number[1:] != number[:-1], True) if len(number) else np.empty(0, bool)
    return number[last], unit[last].astype(np.int32)
