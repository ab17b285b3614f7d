"""What a rank did, one operation after the other: the sequence in which layers are searched.

A unit is an operator that no other operator contains. Ranges that only wrap operators (annotations, nodes of the backward
pass, checkpointing) do not count as containing them: the operators directly inside are the units. On a rank without
operators, its device work is the units. A unit's symbol stands for its name and the shapes of its inputs, or for the kernel's
name and its grid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import numbered
from lumos.graph.places import innermost, is_step_mark
from lumos.trace.autograd import autograd_numbers
from lumos.trace.table import ABSENT, DEVICE_WORK, Category, Int32, Int64, Trace, unique
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Nodes of the backward pass, as all generations of PyTorch name them.
NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")
#: Ranges that only wrap the operators they contain: nodes, and custom functions such as CheckpointFunction.
WRAPPER = re.compile(
    r"autograd::engine::evaluate_function|\w+Backward\d*$|\w*Function$|DistributedDataParallel\.forward|nn\.Module|aten::(lstm|gru|rnn_tanh|rnn_relu)$"
)
_UPDATE = re.compile(r"Optimizer\.(step|zero_grad)")
#: Names that show the phase in traces without nodes: backward kernels, and what optimizers do.
_BACKWARD_NAME = re.compile(r"backward|gradient|_grad\b|dgrad|wgrad|_bwd", re.IGNORECASE)
_UPDATE_NAME = re.compile(r"adam|sgd|optimizer|(norm|clip|zero)\w* ?gradients?|gradient norm", re.IGNORECASE)
#: Point-to-point transfers, by name.
_TRANSFER = re.compile(r"(c10d::|nccl:)(send|recv)(_any_source_?)?( |_?$)")
#: At most this many consecutive units of a backward pass have names that do not show the phase.
MOST_UNNAMED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units of one rank by start; one entry per unit.

    row: row of the trace. symbol: int64, equal where name and shapes are equal. node: row of the backward node around
    it, -1 none. phase: `Phase`. number: autograd's sequence number, which a forward unit and its backward unit share (see also
    `numbers_inside`); -1 none. from_kernels: the units are device work, because the rank has no operators.
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
    number = autograd_numbers(trace)
    own = number[rows]
    around = np.where(node >= 0, number[node], ABSENT)
    is_node = trace.named(NODE.match)[rows]
    node = np.where(is_node, rows, node)
    around = np.where(is_node, own, around)
    update = _around(trace, rows, _UPDATE, Category.ANNOTATION, Category.OPERATOR) >= 0
    in_node = node >= 0
    # The function of a C++ node carries its node's number; operators with new numbers inside a node may be a recomputed forward pass.
    recorded = (own >= 0) & ~is_node & (own != around)
    recorded[in_node] = _recomputed(recorded, trace.named(lambda name: "::" in name)[rows], node, own, around)[in_node]
    phase = _phases(in_node, recorded, update) if in_node.any() else _named_phases(trace, rows, update)
    symbol = numbered(trace.name[rows], trace.dense("Input Dims")[rows])
    return Units(rows, symbol, node, phase, np.where(phase == Phase.BACKWARD, around, own), False)


def _topmost(trace: Trace) -> Int64:
    """Rows of the operators that no operator contains, other than a wrapper."""
    marks = is_step_mark(trace) | trace.named(_UPDATE.match)
    candidates = np.flatnonzero(trace.is_any(Category.OPERATOR) & ~marks)
    order = candidates[np.lexsort((-trace.duration[candidates], trace.start[candidates], trace.lane[candidates]))]
    wrapper = trace.named(WRAPPER.match)
    start, lane = trace.start[order].tolist(), trace.lane[order].tolist()
    end = (trace.start[order] + trace.duration[order]).tolist()
    wraps = wrapper[order].tolist()
    chosen: list[int] = []
    until, current_lane = -1, -1
    for i in range(len(order)):
        if lane[i] != current_lane:
            until, current_lane = -1, lane[i]
        if start[i] < until:
            continue
        if wraps[i] and i + 1 < len(order) and lane[i + 1] == current_lane and start[i + 1] < end[i]:
            continue  # a wrapper with something inside
        chosen.append(i)
        until = max(until, end[i])
    rows = order[np.array(chosen, np.int64)] if chosen else order[:0]
    return rows[np.argsort(trace.start[rows], kind="stable")]


def _kernels(trace: Trace) -> Units:
    """Device work as units, in order of start."""
    rows = np.flatnonzero(trace.is_any(*DEVICE_WORK))
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    none = np.full(len(rows), ABSENT, np.int64)
    return Units(rows, numbered(trace.name[rows], trace.dense("grid")[rows]), none, np.full(len(rows), Phase.FORWARD, np.uint8), none, True)


def _around(trace: Trace, rows: Int64, pattern: re.Pattern[str], *categories: Category) -> Int64:
    """The innermost row of the categories, with a name that matches the pattern, around each of `rows`; -1 none."""
    candidates = np.flatnonzero(trace.is_any(*categories) & trace.named(pattern.match))
    return innermost(trace, candidates, rows)


def _recomputed(recorded: NDArray[np.bool_], dispatched: NDArray[np.bool_], node: Int64, own: Int64, around: Int64) -> NDArray[np.bool_]:
    """Which of the units that have numbers of their own inside nodes are a recomputed forward pass.

    PyTorch gives its operators numbers only where they are recorded for a backward pass, so a node that holds such operators recomputes. A
    custom function that a node calls (as PyTorch's DTensor does) always has a number, the next one that autograd would give. It is
    recomputed only if a later node of the same backward pass carries that number, and no node in between holds units with it.

    recorded: the unit has a number that is not of the node around it. dispatched: it is an operator of PyTorch. node: that node, -1 none.
    own, around: the numbers of both.
    """
    out = np.zeros(len(own), bool)
    coming: set[int] = set()
    for inside, same in groupby(np.flatnonzero(recorded | (node >= 0))[::-1].tolist(), key=node.__getitem__):
        places = np.array(list(same), np.int64)
        if inside < 0:  # a forward pass
            coming.clear()
            continue
        mine = places[recorded[places]]
        claimed = coming.intersection(own[mine].tolist())
        out[mine] = bool(claimed) or dispatched[mine].any()
        coming = (coming - claimed) | set(around[places].tolist())
    return out


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
    # Most units of unknown phase have the phase of what follows: input preparation, or clipping and norms between the backward
    # pass and the optimizer. The gradient of the loss that starts a backward pass counts as part of the forward pass before it;
    # the end of the loop has the phase of what came before.
    undecided = phase == unknown
    guess = np.where(following == unknown, before, following)
    guess = np.where((following == Phase.BACKWARD) & (before == Phase.FORWARD), Phase.FORWARD, guess)
    guess = np.where(guess == unknown, Phase.OTHER, guess)
    return np.where(undecided, guess, phase).astype(np.uint8)


def _named_phases(trace: Trace, rows: Int64, update: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Phases by names alone. Units between two backward units that are close to each other are backward. A forward part between
    backward ones that is much shorter than a forward pass is recomputation."""
    names = np.array([trace.strings[i] for i in trace.name[rows]])
    updates = update | np.array([bool(_UPDATE_NAME.search(n)) for n in names], bool)
    backward = np.flatnonzero(np.array([bool(_BACKWARD_NAME.search(n)) for n in names], bool) & ~updates)
    phase = np.full(len(rows), Phase.FORWARD, np.uint8)
    for a, b in pairwise(backward.tolist()):
        if b - a <= MOST_UNNAMED:
            phase[a:b] = Phase.BACKWARD
    phase[backward] = Phase.BACKWARD
    phase[updates] = Phase.OPTIMIZER
    edges = np.flatnonzero(np.diff(phase)) + 1
    runs = list(pairwise([0, *edges.tolist(), len(phase)]))
    transfer = transfers(trace, rows)
    cuts = np.flatnonzero(transfer | (phase != Phase.FORWARD))
    longest = int(np.diff(np.concatenate(([-1], cuts, [len(rows)]))).max()) - 1
    for a, b in runs:
        inside = a > 0 and b < len(phase) and phase[a - 1] == phase[b] == Phase.BACKWARD
        if phase[a] == Phase.FORWARD and inside:
            if not transfer[a:b].any() and b - a < longest / 2:
                phase[a:b] = Phase.RECOMPUTE
            elif b - a <= MOST_UNNAMED:
                phase[a:b] = Phase.BACKWARD
    return phase


def transfers(trace: Trace, rows: Int64) -> NDArray[np.bool_]:
    """Which operators are point-to-point transfers: by name, or because what they launched names a peer. The number 0 names no operator."""
    peers = [trace.args[k].rows for k in ("Src Rank", "Dst Rank") if k in trace.args]
    ids = unique(trace.external_id[np.concatenate(peers)]) if peers else np.empty(0, np.int64)
    own = trace.external_id[rows]
    mask: NDArray[np.bool_] = trace.named(_TRANSFER.match)[rows] | (np.isin(own, ids) & (own > 0))
    return mask


def _filled(phase: NDArray[np.uint8], unknown: int) -> NDArray[np.uint8]:
    """Replace each unknown entry by the last known one before it."""
    at = np.where(phase != unknown, np.arange(len(phase)), -1)
    last = np.maximum.accumulate(at)
    out: NDArray[np.uint8] = np.where(last >= 0, phase[np.maximum(last, 0)], unknown).astype(np.uint8)
    return out


def numbers_inside(trace: Trace, rank_units: Units) -> tuple[Int64, Int32]:
    """Autograd's numbers of the rows inside forward and recomputed units, ascending, and the unit of each: the last that has the number."""
    column = trace.args.get("Sequence number")
    if column is None or rank_units.from_kernels:
        return np.empty(0, np.int64), np.empty(0, np.int32)
    rows = column.rows.astype(np.int64)[(column.values >= 0) & trace.is_any(Category.OPERATOR)[column.rows]]
    forward = np.flatnonzero((rank_units.phase == Phase.FORWARD) | (rank_units.phase == Phase.RECOMPUTE))
    unit_of_row = np.full(len(trace), -1, np.int32)
    unit_of_row[rank_units.row[forward]] = forward
    around = innermost(trace, rank_units.row[forward], rows)
    unit = np.where(unit_of_row[rows] >= 0, unit_of_row[rows], np.where(around >= 0, unit_of_row[np.maximum(around, 0)], -1))
    inside = unit >= 0
    number, unit = autograd_numbers(trace)[rows[inside]], unit[inside]
    order = np.lexsort((unit, number))
    number, unit = number[order], unit[order]
    last = np.append(number[1:] != number[:-1], True) if len(number) else np.empty(0, bool)
    return number[last], unit[last].astype(np.int32)


def numbers_of_nodes(trace: Trace, nodes: Int64) -> Int64:
    """Autograd's number of each node; of one that has none, as the row of a node's evaluation, that of the first row inside it that has
    one: the node itself, before which hooks may have run (FSDP's gathers). -1 for none, and where the node is -1."""
    number = autograd_numbers(trace)
    out: Int64 = np.where(nodes >= 0, number[np.maximum(nodes, 0)], -1)
    numbered = np.flatnonzero((number >= 0) & trace.is_any(Category.OPERATOR))
    for lane in unique(trace.lane[nodes[(nodes >= 0) & (out < 0)]]):
        missing = np.flatnonzero((nodes >= 0) & (out < 0) & (trace.lane[nodes] == lane))
        here = numbered[trace.lane[numbered] == lane]
        here = here[np.argsort(trace.start[here], kind="stable")]
        around = nodes[missing]
        at = np.searchsorted(trace.start[here], trace.start[around], "left")
        within = at < len(here)
        inside = here[at[within]]
        within[within] = trace.start[inside] < trace.start[around[within]] + trace.duration[around[within]]
        out[missing[within]] = number[here[at[within]]]
    return out
