"""From a measured layout to a graph: copies of measured tasks in the order of the instances, with their dependencies.

A dependency inside a piece is copied with every instance of the piece. For a dependency between two pieces, each copy of the
waiting task waits for all copies of the awaited task since its own piece last ran, or, where there is none, for the latest copy
before it. Where the layout no longer runs the awaited piece, it waits for the corresponding task of the latest piece of the same
kind; where it no longer runs the piece of a kernel that waits for what is outside the layers, the next one on its stream does. Threads
and streams run the instances in order. A collective joins the same run (first, second, …) of all its ranks in a team; of
several in a rank that is made of several the first takes part for all, and where none is left to meet, there is nothing to exchange.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.spans import launches
from lumos.analyze.loop.steps import assigned
from lumos.changes.layout.activations import in_forward
from lumos.changes.layout.measured_layout import NOTHING, made_ranks
from lumos.changes.layout.placed import Placed
from lumos.errors import LumosError
from lumos.graph.concatenate import task_copies
from lumos.graph.lists import Edges, Lists, end_to_end, grouped, list_of, places
from lumos.graph.table import Dependency, Kind, Waits
from lumos.trace.table import ABSENT, unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.graph.table import Graph, Occupancy
    from lumos.trace.table import Int8, Int32, Int64


#: Half-width of the 80 % interval of the time that a run of a piece takes beyond the measured one, as a fraction: it was not measured.
EXTRA_INTERVAL = 0.3


def assemble_pieces(layout: MeasuredLayout) -> Placed:
    """Assemble the layout. Raises LumosError where its ranks no longer run the same collectives."""
    base, owners = layout.segmentation.graph, layout.segmentation.owners
    copies = _Copies(layout)
    source, made = copies.source, copies.made
    duration = np.rint(base.duration[source] * layout.prices.best[source]).astype(np.int64)
    low = np.minimum(np.rint(base.duration[source] * layout.prices.low[source]).astype(np.int64), duration)
    high = np.maximum(np.rint(base.duration[source] * layout.prices.high[source]).astype(np.int64), duration)
    for column, share in ((duration, 1.0), (low, 1 - EXTRA_INTERVAL), (high, 1 + EXTRA_INTERVAL)):
        copies.take_share(column)
        copies.add_extra(column, share)
    for column in (duration, low):
        column[copies.spared()] = 0
    release, firsts = copies.releases(), [*layout.recorded]
    graph = replace(
        task_copies(base, source, copies.edges().predecessors(len(source)), copies.rendezvous()),
        ranks=made.numbers,
        processors=made.processors,
        processor=copies.processor,
        event=np.where(copies.of_first, base.event[source], ABSENT).astype(np.int32),
        lag=base.lag[firsts],
        gap_range=None if base.gap_range is None else base.gap_range[firsts],
        queue_depth=None if base.queue_depth is None else base.queue_depth[firsts],
        release_task=release[0],
        release_time=release[1],
    )
    graph = replace(graph, duration=duration, waits=copies.waits(graph.waits), occupancy=_held(graph, duration))
    completing = np.zeros(len(made.processors), bool)
    completing[made.processor[:, :-1][:, owners.completing]] = True
    like = replace(owners, steps=made.steps, completing=completing)
    step = made.step[copies.team, owners.step[source]].astype(np.int32)
    return Placed(graph, assigned(graph, made.steps, step, like), low, high, source, copies.instance)


class _Copies:
    """The copies of measured tasks that make up the new graph. Instances are numbered through over all ranks.

    source, instance, processor, team: by new task. of_first: bool, whether its recorded rank is the first that its rank is made of.
    place_in_piece: by measured task, its position among the tasks of its piece. new: the new task by position in the list of all instances'
    tasks, -1 where left out. start: where an instance begins in that list. runs: by team and piece its instances, ascending. of_kind: the
    instances of each kind of piece, ascending.
    """

    def __init__(self, layout: MeasuredLayout) -> None:
        self.base = base = layout.segmentation.graph
        self.layout, self.made = layout, made_ranks(layout)
        owners, piece = layout.segmentation.owners, layout.segmentation.piece
        begin, order = grouped(piece, len(layout.pieces))
        self.instances = [(rank, i) for rank, items in enumerate(layout.ranks) for i in items]
        pauses, left_out = before_the_step(layout), _exchanges(layout)
        left_out[list(layout.last)] = True
        recomputed = left_out.copy()
        recomputed[list(layout.once)] = True
        alone = self._met_within()
        self.place_in_piece = np.empty(len(base), np.int64)
        self.place_in_piece[order] = np.arange(len(base)) - begin[piece[order]]
        parts, numbers = [], []
        self.start = np.zeros(len(self.instances) + 1, np.int64)
        absent: list[NDArray[np.bool_] | None] = []
        for number, (of, item) in enumerate(self.instances):
            tasks = order[begin[item.piece] : begin[item.piece + 1]]
            masks = [recomputed if item.thread_of >= 0 else left_out] * item.inner + [pauses] * item.later + alone.get(of, [])
            absent.append(np.logical_or.reduce([mask[tasks] for mask in masks]) if masks else None)
            parts.append(tasks)
            numbers.append(np.full(len(tasks), number, np.int64))
            self.start[number + 1] = self.start[number] + len(tasks)
        flat = np.concatenate(parts) if parts else np.empty(0, np.int64)
        instance = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        present = ~np.isin(flat, np.fromiter(layout.dropped, np.int64, len(layout.dropped)))
        for number, without in enumerate(absent):
            if without is not None:
                present[self.start[number] : self.start[number + 1]] &= ~without
        rank = np.array([r for r, _ in self.instances], np.int64)[instance]
        team = np.array([of.team for of in layout.made], np.int64)[rank]
        processor = self.made.processor[team, _threads(layout, owners, flat, instance, self.instances)]
        device = owners.on_device[flat]
        chosen = np.flatnonzero(present)
        order_of_copies = np.lexsort((flat[chosen], instance[chosen], np.where(device, processor, 0)[chosen], device[chosen], rank[chosen]))
        copied = chosen[order_of_copies]
        self.source: Int64 = flat[copied]
        self.instance: Int64 = instance[copied]
        self.processor: Int32 = processor[copied].astype(np.int32)
        self.team: Int64 = team[copied]
        self.of_first: NDArray[np.bool_] = np.array(layout.recorded, np.int64)[rank[copied]] == owners.rank[self.source]
        self.new = np.full(len(flat), -1, np.int64)
        self.new[copied] = np.arange(len(copied))
        self.runs: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.of_kind: dict[_PieceKind, list[int]] = defaultdict(list)
        for number, (of, item) in enumerate(self.instances):
            self.runs[layout.made[of].team, item.piece].append(number)
            self.of_kind[self._kind_of(layout.made[of].team, item.piece)].append(number)
        self.order, self.begin = order, begin

    def _met_within(self) -> dict[int, list[NDArray[np.bool_]]]:
        """For each rank that is made of several which tasks it does not run, since those that they met are its own: of a rendezvous all but
        the first, and where it has all of its ranks that one too."""
        base, several = self.base, [rank for rank, of in enumerate(self.layout.made) if len(of.ranks) > 1]
        out = {rank: [np.zeros(len(base), bool)] for rank in several}
        position = base.position_of_task
        for low, high in pairwise(base.rendezvous_offset.tolist()) if several else ():
            tasks = base.rendezvous_task[low:high]
            for rank in several:
                ranks = self.layout.made[rank].ranks
                mine = sorted((t for t in tasks.tolist() if position[t] in ranks), key=lambda t: ranks.index(position[t]))
                out[rank][0][mine if len(mine) == len(tasks) else mine[1:]] = True
        return out

    def _kind_of(self, team: int, piece: int) -> _PieceKind:
        p = self.layout.pieces[piece]
        rank, step = int(self.made.holder[team, p.rank]), int(self.made.step[team, p.step])
        return _PieceKind(rank, step, int(p.label.phase), "layer" if p.label.layer >= 0 else p.label.part)

    def copy(self, task: int, instance: int) -> int:
        """The copy of `task`, a task of the instance's piece; -1 where the instance leaves it out."""
        return int(self.new[self.start[instance] + self.place_in_piece[task]])

    def edges(self) -> Edges:
        """All dependencies of the new graph but its rendezvous and waits that are resolved while simulating."""
        base, piece = self.base, self.layout.segmentation.piece
        awaited = np.array(self.layout.awaited, np.int64).reshape(-1, 2)
        after = np.concatenate((list_of(base.pred_offset), awaited[:, 1]))
        before = np.concatenate((base.pred.astype(np.int64), awaited[:, 0]))
        kind = np.concatenate((base.pred_kind, np.full(len(awaited), Dependency.HAND_OFF, base.pred_kind.dtype)))
        order = np.argsort(after, kind="stable")
        after, before, kind = after[order], before[order], kind[order]
        same_piece = piece[after] == piece[before]
        edges = Edges()
        # within a piece, every copy of `after` waits for the copy of `before` in the same instance
        inside = np.flatnonzero(same_piece)
        first = np.searchsorted(after[inside], self.source, "left")
        last = np.searchsorted(after[inside], self.source, "right")
        copies = last - first
        at = np.repeat(np.arange(len(self.source)), copies)
        edge = inside[places(first, copies)]
        source = self.new[self.start[self.instance[at]] + self.place_in_piece[before[edge]]]
        for k in unique(kind[edge]) if len(edge) else ():
            same = kind[edge] == k
            edges.add(source[same], at[same], Dependency(int(k)))
        self._across(edges, after, before, kind, np.flatnonzero(~same_piece))
        self._turns(edges)
        return edges

    def _turns(self, edges: Edges) -> None:
        """Add the hand-offs between threads of instances that did not follow each other in the recording, and all hand-offs of a rank that
        leaves out work outside the layers, with which theirs may be missing: the thread that runs a forward pass calls the backward pass,
        which runs on another thread, and waits until that returns. A backward pass may end on the thread that called it (a pipeline's
        schedule divides gradients); then the next one begins after that."""
        run = {(rank, item.piece) for rank, item in self.instances}
        outside = [(p.rank, number) for number, p in enumerate(self.layout.pieces) if p.label.layer < 0]
        cut = {int(rank) for of, number in outside for rank in self.made.holder[:, of] if rank >= 0 and (rank, number) not in run}
        befores, afters = [], []
        on_cpu = ~self.base.on_device
        for number, ((rank, item), (next_rank, following)) in enumerate(pairwise(self.instances)):
            here, there = self.layout.pieces[item.piece], self.layout.pieces[following.piece]
            follows = following.piece == item.piece + 1 and rank not in cut
            if rank != next_rank or follows:
                continue
            last, first = self._on_cpu(number, on_cpu), self._on_cpu(number + 1, on_cpu)
            if here.label.phase == there.label.phase:
                last = self._ending(number, on_cpu)
            if len(last) and len(first) and self.processor[last[-1]] != self.processor[first[0]]:
                befores.append(int(last[-1]))
                afters.append(int(first[0]))
        edges.add(np.array(befores, np.int64), np.array(afters, np.int64), Dependency.HAND_OFF)

    def _ending(self, instance: int, on_cpu: NDArray[np.bool_]) -> Int64:
        """The new tasks of an instance on the CPU thread on which it ended in the recording, in order; none where that is not known."""
        new = self.new[self.start[instance] : self.start[instance + 1]]
        new = new[new >= 0]
        new = new[on_cpu[self.source[new]]]
        if not len(new) or self.base.measured_end is None:
            return new[:0]
        latest = new[int(self.base.measured_end[self.source[new]].argmax())]
        return np.sort(new[self.processor[new] == self.processor[latest]])

    def _on_cpu(self, instance: int, on_cpu: NDArray[np.bool_]) -> Int64:
        """The new tasks of an instance on the CPU thread on which it runs most tasks, in order. on_cpu: by measured task."""
        new = self.new[self.start[instance] : self.start[instance + 1]]
        new = new[new >= 0]
        new = new[on_cpu[self.source[new]]]
        if not len(new):
            return new
        return np.sort(new[self.processor[new] == np.bincount(self.processor[new]).argmax()])

    def _across(self, edges: Edges, after: Int64, before: Int64, kind: Int8, which: Int64) -> None:
        """Add the dependencies `which`, all between two pieces, to `edges`."""
        piece = self.layout.segmentation.piece
        by_kind: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        teams = range(len(self.made.holder))
        for e in which.tolist():
            u, v = int(before[e]), int(after[e])
            befores, afters = by_kind[int(kind[e])]
            passed_on = kind[e] == Dependency.STREAM_WAIT and self.layout.pieces[piece[u]].label.layer < 0
            for team in teams:
                waits = self._behind(v, team) if passed_on and (team, int(piece[v])) not in self.runs else v
                runs = self.runs.get((team, int(piece[waits])), [])
                for nth, run in enumerate(runs):
                    waiter = self.copy(waits, run)
                    if waiter < 0:
                        continue
                    for source in self._sources(u, team, run, runs[nth - 1] if nth else -1):
                        befores.append(source)
                        afters.append(waiter)
        for k, (befores, afters) in by_kind.items():
            edges.add(np.array(befores, np.int64), np.array(afters, np.int64), Dependency(k))

    @cached_property
    def _on_processors(self) -> tuple[Int64, Int64]:
        """The measured tasks of each processor after each other, in the order of their pieces, and by measured task its place there."""
        order = np.lexsort((self.layout.segmentation.piece, self.base.processor))
        return order, np.argsort(order)

    def _behind(self, task: int, team: int) -> int:
        """The next task behind `task` on its processor in a piece of its step that a team runs; itself where there is none."""
        order, place = self._on_processors
        piece, step = self.layout.segmentation.piece, self.layout.pieces[self.layout.segmentation.piece[task]].step
        for later in order[place[task] + 1 :]:
            if self.base.processor[later] != self.base.processor[task] or self.layout.pieces[piece[later]].step != step:
                return task
            if (team, int(piece[later])) in self.runs:
                return int(later)
        return task

    def _sources(self, task: int, team: int, run: int, previous: int) -> list[int]:
        """The new tasks for which instance `run` of a team waits in place of `task`. previous: the instance in which its piece last ran, -1
        none."""
        piece = int(self.layout.segmentation.piece[task])
        runs = self.runs.get((team, piece), [])
        last = bisect_left(runs, run)
        if piece > self.instances[run][1].piece:  # the awaited piece began later, on another thread
            since = runs[last : last + 1]
        else:
            since = [r for r in runs[:last] if r > previous] or runs[max(last - 1, 0) : last]
        copies = [c for c in (self.copy(task, r) for r in since) if c >= 0]
        if copies or runs:
            return copies
        same_kind = self.of_kind[self._kind_of(team, piece)]
        at = bisect_left(same_kind, run)
        return self._corresponding(task, same_kind[at - 1]) if at else []

    def _corresponding(self, task: int, instance: int) -> list[int]:
        """The copy of the task that corresponds to `task` in an instance of another piece: the task at the same position, if it has the
        same name and kind, or else the last task on the same processor. [] where there is none."""
        piece = self.instances[instance][1].piece
        tasks = self.order[self.begin[piece] : self.begin[piece + 1]]
        position = int(self.place_in_piece[task])
        if (
            position < len(tasks)
            and self.base.name[tasks[position]] == self.base.name[task]
            and self.base.kind[tasks[position]] == self.base.kind[task]
        ):
            chosen = int(tasks[position])
        else:
            same = tasks[self.base.processor[tasks] == self.base.processor[task]]
            if not len(same):
                return []
            chosen = int(same[-1])
        copy = self.copy(chosen, instance)
        return [copy] if copy >= 0 else []

    def add_extra(self, duration: Int64, share: float) -> None:
        """Add a share of the extra time of every instance to the last operator and the last kernel that it runs, in place."""
        for number, (_, item) in enumerate(self.instances):
            if item.extra == NOTHING:
                continue
            new = self.new[self.start[number] : self.start[number + 1]]
            new = new[new >= 0]
            kinds = self.base.kind[self.source[new]]
            for kind, extra in ((Kind.OPERATOR, item.extra.cpu), (Kind.KERNEL, item.extra.device)):
                duration[new[kinds == kind][-1:]] += round(share * extra)

    def spared(self) -> NDArray[np.bool_]:
        """Which of the new tasks are repetitions of work that may not be repeated."""
        again = np.array([item.thread_of >= 0 for _, item in self.instances], bool)[self.instance]
        spared: NDArray[np.bool_] = again & np.isin(self.source, np.fromiter(self.layout.spared, np.int64, len(self.layout.spared)))
        return spared

    def take_share(self, duration: Int64) -> None:
        """Let the updates of all weights in instances take the share that these do, in place."""
        updates = np.isin(self.source, np.fromiter(self.layout.updates, np.int64, len(self.layout.updates)))
        share = np.array([item.share for _, item in self.instances])[self.instance[updates]]
        duration[updates] = np.rint(duration[updates] * share).astype(np.int64)

    def rendezvous(self) -> Lists:
        """Lists of the new tasks that meet: the n-th copies of the members of a measured rendezvous in a team. Raises LumosError where
        members have different numbers of copies."""
        base, piece, position = self.base, self.layout.segmentation.piece, self.base.position_of_task
        sets: list[list[int]] = []
        for low, high in pairwise(base.rendezvous_offset.tolist()):
            tasks = base.rendezvous_task[low:high].tolist()
            for team, holder in enumerate(self.made.holder):
                runs: dict[int, list[int]] = {}
                for task in tasks:
                    copies = (self.copy(task, r) for r in self.runs.get((team, int(piece[task])), []))
                    if holder[position[task]] >= 0:
                        runs.setdefault(int(holder[position[task]]), []).extend(c for c in copies if c >= 0)
                if len({len(r) for r in runs.values()}) > 1:
                    names = base.names[base.name[base.rendezvous_task[low]]]
                    raise LumosError(f"the change leaves the ranks with different numbers of {names!r}; their blocks were cut differently")
                sets += [list(members_) for members_ in zip(*runs.values(), strict=True) if len(members_) > 1]
        return end_to_end(sets)

    def releases(self) -> tuple[Int32, Int64]:
        """The tasks with a start time that the trace gives, and these times: the first copy of each such measured task in a team, of the
        rank whose own marks its rank has."""
        n = len(self.base)
        first = np.full(len(self.made.holder) * n, -1, np.int64)
        mine = np.flatnonzero(self.of_first)[::-1]
        first[self.team[mine] * n + self.source[mine]] = mine
        task = first.reshape(-1, n)[:, self.base.release_task]
        time = np.broadcast_to(self.base.release_time, task.shape)
        return task[task >= 0].astype(np.int32), time[task >= 0]

    def waits(self, waits: Waits | None) -> Waits | None:
        """Waits of the new tasks for recorded streams, for those that took their place."""
        if waits is None:
            return None
        return Waits(waits.task, self.made.processor[self.team[waits.task], waits.target].astype(waits.target.dtype))


def _held(graph: Graph, duration: Int64) -> Occupancy | None:
    """For how long kernels hold the device, in proportion to their new durations, ns."""
    shared = graph.occupancy
    if shared is None:
        return None
    before, after = np.maximum(graph.duration[shared.task], 1), duration[shared.task]
    return replace(shared, hold=np.minimum(np.rint(shared.hold * (after / before)), after).astype(np.int64))


def _exchanges(layout: MeasuredLayout) -> NDArray[np.bool_]:
    """Exchanges of gradients and their launches, which only the last microbatch of a step has."""
    base = layout.segmentation.graph
    out = base.kind == Kind.COLLECTIVE
    if base.collectives is not None:
        out[base.collectives.task[in_forward(layout.segmentation)]] = False
    launch = launches(base)
    out[launch[out & (launch >= 0)]] = True
    return np.asarray(out, bool)


def before_the_step(layout: MeasuredLayout) -> NDArray[np.bool_]:
    """The pauses before a step, which only its first microbatch has: they come before anything else that embeds."""
    base = layout.segmentation.graph
    out = np.zeros(len(base), bool)
    first = np.full(len(layout.pieces), -1, np.int64)
    tasks = np.flatnonzero(base.kind != Kind.HOST)
    piece = layout.segmentation.piece[tasks]
    first[piece[::-1]] = tasks[::-1]
    pause = np.flatnonzero(base.kind == Kind.HOST)
    piece_of_pause = layout.segmentation.piece[pause]
    leading = np.array([p.label.part == "embedding" for p in layout.pieces], bool)[piece_of_pause] & (pause < first[piece_of_pause])
    out[pause[leading]] = True
    return out


def _threads(layout: MeasuredLayout, owners: Members, flat: Int64, instance: Int64, instances: list[tuple[int, Instance]]) -> Int64:
    """The processor of every copy: that of its source, or of another piece for CPU work that runs on that piece's thread."""
    measured = layout.segmentation.graph.processor
    processor = measured[flat].astype(np.int64)
    moved = [number for number, (_, item) in enumerate(instances) if item.thread_of >= 0]
    if not moved:
        return processor
    on_cpu = ~owners.on_device
    begin, order = grouped(layout.segmentation.piece, len(layout.pieces))
    for number in moved:
        piece = instances[number][1].thread_of
        tasks = order[begin[piece] : begin[piece + 1]]
        on_thread = tasks[on_cpu[tasks]]
        if len(on_thread):
            copies = np.arange(*np.searchsorted(instance, (number, number + 1)))
            processor[copies[on_cpu[flat[copies]]]] = np.bincount(measured[on_thread]).argmax()
    return processor


class _PieceKind(NamedTuple):
    """What pieces of one kind share. part: "layer", or the part outside the layers."""

    rank: int
    step: int
    phase: int
    part: str
