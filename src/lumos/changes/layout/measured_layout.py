"""A layout of measured blocks: which measured pieces every rank runs, in which order, and how much longer or shorter they take.

`measured_layout` makes the layout of a segmented graph as it was measured. Changes are functions from one layout to another
(`change`). `place` assembles a layout into a graph; without a change that has the measured tasks and dependencies again.

Ranks are made of recorded ones, with their threads, streams and steps. A rank that is a copy of a recorded one has what that has. In one
that is made of several, the threads that run forward passes are one thread, and so are those that run backward passes, and streams of one
number are one stream; every other thread or stream stays beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.prices import TaskPrices
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.changes.layout.placed import Addition, Placed
    from lumos.diagnostics import Diagnostic
    from lumos.graph.table import Processor, Step
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.segment import Piece, Segmentation
    from lumos.segment.sizes import Sizes
    from lumos.trace.table import Int64
    from lumos.vocabulary import CollectiveKind

Assumed = Callable[["Placed"], Iterable["Addition"]]
#: What becomes of an operator's inputs: from the operator as recorded, and as it is after all changes before, to as it is then.
Rewrite = Callable[["ShapedOperator", "ShapedOperator"], "ShapedOperator"]
#: The same where it is not sure: what is most likely first, and what else it may be.
Rewrites = tuple[Rewrite, ...]


class Extra(NamedTuple):
    """Time that a run of a piece takes beyond the measured one, ns: on the CPU and on the device."""

    cpu: int = 0
    device: int = 0

    def __add__(self, other: Extra) -> Extra:  # type: ignore[override]
        return Extra(self.cpu + other.cpu, self.device + other.device)


#: No more time than measured.
NOTHING = Extra()


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a measured piece.

    inner: it is not the last microbatch of its step (or is recomputation), so it exchanges no gradients.
    later: it repeats the first microbatch of its step later in it, so it does not begin the step.
    thread_of: index of the piece on whose CPU thread it runs (recomputation runs where the backward pass does); -1 its own thread.
    extra: time added to its last operator and its last kernel (for adding its gradients to those of earlier microbatches).
    share: of what the layout's `updates` among its tasks do, the part that it does.
    """

    piece: int
    inner: bool = False
    thread_of: int = -1
    extra: Extra = NOTHING
    later: bool = False
    share: float = 1.0


class GroupExchange(NamedTuple):
    """An exchange between `ranks` ranks. nbytes: of its buffer, the larger of one rank's input and output; of an unknown kind, as multiples
    of the recorded one. stride: how far the ranks are apart among those of the job, on average."""

    kind: CollectiveKind
    ranks: int
    nbytes: float
    stride: int = 1

    def of(self, times: float = 1.0, ranks: int | None = None, apart: int = 1) -> GroupExchange:
        """The same of so many times the bytes, between so many ranks, which are so many times as far apart."""
        return GroupExchange(self.kind, self.ranks if ranks is None else ranks, self.nbytes * times, self.stride * apart)


class Regrouped(NamedTuple):
    """What becomes of a recorded exchange. readings: what most likely takes its place, one after the other, and what else may."""

    recorded: GroupExchange
    readings: tuple[tuple[GroupExchange, ...], ...]


class MadeOf(NamedTuple):
    """What a rank of a layout is made of. ranks: the positions of recorded ranks, all of whose work is on its threads and streams; what a
    rank alone has (constants of dependencies, marks of steps, rows of a trace) is that of the first. team: the ranks of one team meet each
    other where the recorded ones did, and no rank of another; a recorded rank is in a team once at most."""

    ranks: tuple[int, ...]
    team: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredLayout:
    """What the ranks of a changed job run.

    ranks: for each rank its instances in order. made: of which recorded ranks each is made. prices: what every task of the measured graph
    takes. modelled: tasks whose new duration comes from a model alone. awaited: (task, the task that must not begin before it ends), for
    waits that were too short to show in the trace. assumed: each gives the work that is added once the pieces are placed, such as exchanges
    that the recording does not have. shared: how many ranks do what one recorded rank did, each a part of it (tensor-parallel ranks,
    stages). once: tasks that recomputation does not repeat. spared: those that it repeats at the high end of the interval only. last: tasks
    of which only the last microbatch of a step has its like. updates: tasks that update all weights of a rank at once. dropped: tasks that
    no instance runs. open: tasks whose interval holds what the recording leaves open. sizes: of the part of the model that each recorded
    rank has after the change; () where as recorded. rewritten: what becomes of the inputs of operators beyond what `sizes` tells, by the
    position of their recorded rank and by their row, in order. exchanges: what becomes of recorded exchanges, by the rows of the graph's
    facts; the others stay.
    """

    segmentation: Segmentation
    ranks: tuple[tuple[Instance, ...], ...]
    made: tuple[MadeOf, ...]
    prices: TaskPrices
    modelled: frozenset[int] = frozenset()
    awaited: tuple[tuple[int, int], ...] = ()
    assumed: tuple[Assumed, ...] = ()
    shared: float = 1.0
    once: frozenset[int] = frozenset()
    spared: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    updates: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()
    open: frozenset[int] = frozenset()
    sizes: tuple[Sizes, ...] = ()
    rewritten: Mapping[int, Mapping[int, tuple[Rewrites, ...]]] = field(default_factory=dict)
    exchanges: Mapping[int, Regrouped] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default_factory=tuple)

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.segmentation.pieces

    @property
    def recorded(self) -> tuple[int, ...]:
        """The recorded rank, by position, of which each rank has what a rank alone has."""
        return tuple(of.ranks[0] for of in self.made)

    @property
    def of_recorded_ranks(self) -> bool:
        """Whether every rank is a recorded one."""
        return self.made == tuple(MadeOf((i,)) for i in range(len(self.segmentation.graph.ranks)))

    def runs_as(self, other: MeasuredLayout) -> bool:
        """Whether the ranks run the same work in the same order, and it takes the same time."""
        same = self.ranks == other.ranks and self.assumed == other.assumed and self.dropped == other.dropped
        return same and all(map(np.array_equal, self.prices.columns, other.prices.columns))


def measured_layout(segmentation: Segmentation) -> MeasuredLayout:
    """The layout of the job as it was measured."""
    ranks: list[list[Instance]] = [[] for _ in segmentation.graph.ranks]
    for i, piece in enumerate(segmentation.pieces):
        ranks[piece.rank].append(Instance(i))
    made = tuple(MadeOf((i,)) for i in range(len(ranks)))
    return MeasuredLayout(segmentation, tuple(map(tuple, ranks)), made, TaskPrices.measured(segmentation.graph.duration))


def by_repetition(numbered: Iterable[tuple[int, Instance]]) -> Iterator[list[tuple[int, Instance]]]:
    """Instances that run over one measured layer, with their numbers, by how often it is repeated: a piece that runs for the second time
    begins the layer again."""
    mine: list[tuple[int, Instance]] = []
    ran: set[int] = set()
    for number, item in numbered:
        if item.piece in ran:
            yield mine
            mine, ran = [], set()
        mine.append((number, item))
        ran.add(item.piece)
    if mine:
        yield mine


def shaped_as_recorded(recorded: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator of whose shapes `sizes` say nothing (`Rewrite`)."""
    return o._replace(shapes=recorded.shapes)


def as_before(_: ShapedOperator, o: ShapedOperator) -> ShapedOperator:
    """An operator that a change may leave as it is (`Rewrite`)."""
    return o


def rewriting(layout: MeasuredLayout, position: int, rows: Iterable[int], *rewrites: Rewrite) -> MeasuredLayout:
    """The layout in which the inputs of operators, by the rows of a rank's trace, become what the first of `rewrites` makes of them, or,
    less likely, what the others do."""
    known = layout.rewritten.get(position, {})
    more = {row: (*known.get(row, ()), rewrites) for row in rows}
    return replace(layout, rewritten={**layout.rewritten, position: {**known, **more}})


@dataclass(frozen=True, slots=True, eq=False)
class MadeRanks:
    """What the ranks of a layout have. numbers: theirs. holder, processor, step: int64, by team and recorded rank, processor or step:
    the one of this layout that holds it, -1 for none; the last processor and the last step are what index -1 finds."""

    numbers: tuple[int, ...]
    processors: tuple[Processor, ...]
    steps: tuple[Step, ...]
    holder: Int64
    processor: Int64
    step: Int64


def made_ranks(layout: MeasuredLayout) -> MadeRanks:
    """The ranks of a layout: of the recorded numbers where they are those of the recording, and else of their positions."""
    s, made = layout.segmentation, layout.made
    graph, owners = s.graph, s.owners
    numbers = graph.ranks if layout.of_recorded_ranks else tuple(range(len(made)))
    teams = 1 + max((of.team for of in made), default=0)
    of_rank: dict[int, list[int]] = {}
    for i, p in enumerate(graph.processors):
        of_rank.setdefault(p.rank, []).append(i)
    roles = _roles(s, of_rank) if any(len(of.ranks) > 1 for of in made) else {}
    holder = np.full((teams, len(graph.ranks)), -1, np.int64)
    processor = np.full((teams, len(graph.processors) + 1), -1, np.int64)
    step = np.full((teams, len(owners.steps) + 1), -1, np.int64)
    processors: list[Processor] = []
    steps: list[Step] = []
    for position, (number, of) in enumerate(zip(numbers, made, strict=True)):
        first = of_rank.get(graph.ranks[of.ranks[0]], [])
        device = next((graph.processors[i].device for i in first if graph.processors[i].is_stream), -1)
        own: dict[str, int] = {}
        marks: dict[tuple[str, int], int] = {}
        for rank in of.ranks:
            holder[of.team, rank] = position
            alone = rank == of.ranks[0]
            for i in of_rank.get(graph.ranks[rank], []):
                p, role = graph.processors[i], roles.get(i, f"beside {i}")
                if role not in own:
                    own[role] = len(processors)
                    processors.append(replace(p, rank=number, device=device if p.is_stream and not alone else p.device))
                processor[of.team, i] = own[role]
            for key, i in _marks(owners.steps, graph.ranks[rank]).items():
                if alone:
                    marks[key] = len(steps)
                    steps.append(replace(owners.steps[i], rank=number))
                step[of.team, i] = marks.get(key, -1)
    return MadeRanks(numbers, tuple(processors), tuple(steps), holder, processor, step)


def _marks(steps: tuple[Step, ...], rank: int) -> dict[tuple[str, int], int]:
    """The steps of a rank by their name and how many of that name come before."""
    seen: Counter[str] = Counter()
    out = {}
    for i, step in enumerate(steps):
        if step.rank == rank:
            out[step.name, seen[step.name]] = i
            seen[step.name] += 1
    return out


def _roles(s: Segmentation, of_rank: dict[int, list[int]]) -> dict[int, str]:
    """What a processor does for its rank, of those that are joined: the number of its stream, or the passes that it runs."""
    graph = s.graph
    out = {i: f"stream {p.stream}" for i, p in enumerate(graph.processors) if p.is_stream}
    for phase, role in ((Phase.BACKWARD, "backward"), (Phase.FORWARD, "forward")):
        chosen = np.flatnonzero(s.phase == phase)
        spent = np.bincount(graph.processor[chosen], graph.duration[chosen], len(graph.processors))
        for own in of_rank.values():
            threads = [i for i in own if not graph.processors[i].is_stream]
            busiest = max(threads, key=lambda i: float(spent[i]), default=-1)
            if busiest >= 0 and spent[busiest]:
                out[busiest] = role
    return out
