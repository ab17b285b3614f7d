"""Properties of the simulator over random jobs, and a second, plain-Python implementation of its rules to compare with."""

import heapq
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.drawn_graph import drawn_graph
from tests.property.randomness import randoms

from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph, Kind, Processor
from lumos.simulation import freeze, simulate, sweep, sweep_groups, sweep_many, sweep_scaled

D = Dependency
EDGE_KINDS = (D.HAND_OFF, D.STREAM_WAIT, D.SYNC, D.COPY, D.DATA)


# ---- random jobs: every edge runs from a lower to a higher id, so only queues and rendezvous can deadlock ----


def job(random: Random, fixed_order: bool = False) -> Graph:
    """A job of 1..2 ranks. With `fixed_order`, one whose launches and queues cannot change their order with timing.

    Then every thread launches to streams of its own and awaits only these, the launches of a limited queue complete in
    order (one thread, one stream), and nothing shares SMs.
    """
    ranks = random.randint(1, 2)
    threads = [random.randint(1, 2) for _ in range(ranks)]
    streams = [random.randint(1, 3) for _ in range(ranks)]
    processors: list[Processor] = []
    thread_at: dict[int, list[int]] = {}
    stream_at: dict[int, list[int]] = {}
    for r in range(ranks):
        thread_at[r] = list(range(len(processors), len(processors) + threads[r]))
        processors += [Processor(r, False, f"thread {i}") for i in range(threads[r])]
        stream_at[r] = list(range(len(processors), len(processors) + streams[r]))
        processors += [Processor(r, True, f"stream {i}", device=i % 2 if random.getrandbits(1) else 0, stream=i) for i in range(streams[r])]
    tasks: list[tuple[int, Kind, int]] = []  # processor, kind, duration
    edges: list[list[tuple[int, int]]] = []
    waits: list[tuple[int, int]] = []
    sets: list[list[int]] = []
    occupancy: list[tuple[int, float, int]] = []

    def own_streams(r: int, thread: int) -> list[int]:
        if not fixed_order:
            return stream_at[r]
        return [s for i, s in enumerate(stream_at[r]) if i % threads[r] == thread_at[r].index(thread)]

    def add(processor: int, kind: Kind, duration: int | None = None, launch: int | None = None) -> int:
        task = len(tasks)
        tasks.append((processor, kind, random.randint(0, 12) if duration is None else duration))
        edges.append([] if launch is None else [(launch, D.LAUNCH)])
        if task and random.randint(0, 5) == 0:
            edges[task].append((random.randint(0, task - 1), random.choice(EDGE_KINDS)))
        return task

    def kernel(stream: int, launch: int | None) -> int:
        task = add(stream, Kind.KERNEL, duration=random.randint(0, 40), launch=launch)
        if not fixed_order and random.getrandbits(1):
            share = random.choice([1.0, 0.5, 1 / 3, 0.25, 0.7])
            occupancy.append((task, share, random.randint(0, tasks[task][2])))
        return task

    for _ in range(random.randint(1, 20)):
        r = random.randint(0, ranks - 1)
        thread = random.choice(thread_at[r])
        mine = own_streams(r, thread)
        what = random.choice(["host", "launch", "launch", "launch", "wait", "orphan", "collective"])
        if what == "host":
            add(thread, Kind.OPERATOR)
        elif what == "launch" and mine:
            launch = add(thread, Kind.LAUNCH)
            for _ in range(random.randint(1, 2)):
                kernel(random.choice(mine), launch)
        elif what == "wait" and mine:
            if random.getrandbits(1):
                add(thread, Kind.SYNC)
            back = add(thread, Kind.RETURN, duration=0)
            whole_rank = not fixed_order or threads[r] == 1
            waits.append((back, random.choice([*mine, -1] if whole_rank else mine)))
        elif what == "orphan" and mine:
            kernel(random.choice(mine), None)
        elif what == "collective":
            members = []
            for other in range(ranks):
                caller = random.choice(thread_at[other])
                queues = own_streams(other, caller)
                members.append(kernel(random.choice(queues), add(caller, Kind.LAUNCH)) if queues else add(caller, Kind.COLLECTIVE))
            sets.append(members)
    assume(tasks)
    n = len(tasks)
    depth = [
        random.randint(1, 3) if random.getrandbits(1) and (not fixed_order or threads[r] == streams[r] == 1) else 0 for r in range(ranks)
    ]
    released = [random.randint(0, n - 1) for _ in range(random.randint(0, 3))]
    lag = np.array([[random.randint(0, 3) if random.getrandbits(1) else 0 for _ in D] for _ in range(ranks)], np.int64)
    return drawn_graph(
        processors,
        [(processor, kind, "task", ns) for processor, kind, ns in tasks],
        [(before, after, kind) for after, mine in enumerate(edges) for before, kind in mine],
        sets,
        waits,
        occupancy,
        lag=lag,
        release_task=np.array(released, np.int32),
        release_time=np.array([random.randint(0, 30) for _ in released], np.int64),
        queue_depth=np.array(depth, np.int32),
    )


def jobs(fixed_order: bool = False) -> st.SearchStrategy[Graph]:
    return randoms().map(lambda random: job(random, fixed_order))


# ---- the same rules with a heap and dictionaries; the result is None where nothing can run before every task has ended ----


class Reference:
    """Every task has the set of things that it still waits for; events remove them from the set."""

    def __init__(self, graph: Graph, durations: list[int]) -> None:
        g, self.g, self.durations = graph, graph, durations
        n = len(graph)
        off = graph.ignored
        self.proc = [int(p) for p in g.processor]
        self.where = [g.processors[p] for p in self.proc]
        self.edges = [
            [(int(g.pred[e]), D(g.pred_kind[e])) for e in range(g.pred_offset[t], g.pred_offset[t + 1]) if D(g.pred_kind[e]) not in off]
            for t in range(n)
        ]
        self.behind: dict[int, int] = {}
        self.ahead: dict[int, int] = {}
        latest: dict[int, int] = {}
        for t in range(n):
            if self.proc[t] in latest:
                self.ahead[t], self.behind[latest[self.proc[t]]] = latest[self.proc[t]], t
            latest[self.proc[t]] = t
        self.launched = defaultdict(list)
        self.launch: dict[int, int] = {}
        for t in range(n):
            for pred, kind in self.edges[t]:
                if kind is D.LAUNCH and self.where[t].is_stream:
                    self.launched[pred].append(t)
                    self.launch[t] = pred
        self.awaited = defaultdict(list)
        if g.waits is not None and D.SYNC not in off:
            for t, target in zip(g.waits.task, g.waits.target, strict=True):
                streams = [i for i, p in enumerate(g.processors) if p.is_stream and p.rank == self.where[t].rank]
                self.awaited[int(t)] += streams if target < 0 else [int(target)]
        self.depth = {r: 0 if g.queue_depth is None or D.QUEUE_DEPTH in off else int(g.queue_depth[i]) for i, r in enumerate(g.ranks)}
        self.shares = {}
        if g.occupancy is not None and D.OCCUPANCY not in off:
            rows = zip(g.occupancy.task, g.occupancy.share, g.occupancy.hold, strict=True)
            self.shares = {int(t): (float(s), int(h)) for t, s, h in rows}
        self.set_of: dict[int, list[int]] = {}
        if D.RENDEZVOUS not in off:
            for i in range(len(g.rendezvous_offset) - 1):
                members = [int(t) for t in g.rendezvous_task[g.rendezvous_offset[i] : g.rendezvous_offset[i + 1]]]
                self.set_of |= dict.fromkeys(members, members)
        self.thread_order, self.stream_order = D.THREAD_ORDER not in off, D.STREAM_ORDER not in off
        self.pending: list[set[Any]] = [set() for _ in range(n)]
        self.ready: list[list[int]] = [[] for _ in range(n)]
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}  # known from the moment of the transfer
        self.ended: set[int] = set()
        self.queue = defaultdict(list)
        self.stream_done: dict[int, int] = defaultdict(int)
        self.waiting_for = defaultdict(list)
        self.outstanding: dict[int, int] = defaultdict(int)
        self.queued_launches = defaultdict(list)
        self.granted: set[int] = set()
        self.holding: dict[int, float] = {}
        self.blocked_kernels = defaultdict(list)
        self.heap: list[tuple[int, int, int]] = []

    def lag(self, task: int, kind: Dependency) -> int:
        return int(self.g.lag[self.g.ranks.index(self.where[task].rank), kind])

    def run(self) -> tuple[list[int], list[int]] | None:
        n = len(self.g)
        for t in range(n):
            self.pending[t] |= {("edge", i) for i in range(len(self.edges[t]))}
            if not self.where[t].is_stream and self.thread_order and t in self.ahead:
                self.pending[t].add("thread")
            if self.where[t].is_stream and self.stream_order:
                self.pending[t].add("stream")
            if self.awaited[t] and t in self.ahead:
                self.pending[t].add("snapshot")
        for task, time in zip(self.g.release_task, self.g.release_time, strict=True):
            self.ready[task].append(int(time))
        for t in range(n):
            self.hand_in(t, None, None)
        for t in range(n):
            if self.where[t].is_stream and t not in self.ahead and t not in self.launch:
                self.enqueue(t)
        while self.heap:
            time, task, phase = heapq.heappop(self.heap)
            (self.on_start, self.on_end, self.on_release, self.on_vacate)[phase](task, time)
        if len(self.ended) < n:
            return None
        return [self.start[t] for t in range(n)], [self.end[t] for t in range(n)]

    def hand_in(self, task: int, token: Any, time: int | None) -> None:
        self.pending[task].discard(token)
        if time is not None:
            self.ready[task].append(time)
        if not self.pending[task]:
            heapq.heappush(self.heap, (max(self.ready[task], default=0), task, 0))

    def on_start(self, task: int, now: int) -> None:
        if self.awaited[task] and task not in self.ahead and not self.snapshot(task, now):
            return
        if now < max(self.ready[task], default=now):
            heapq.heappush(self.heap, (max(self.ready[task]), task, 0))
            return
        rank = self.where[task].rank
        if self.limited(task) and task not in self.granted:
            if self.outstanding[rank] >= self.depth[rank]:
                self.queued_launches[rank].append(task)
                return
            self.outstanding[rank] += 1
        if task in self.shares and not self.fits(task):
            self.blocked_kernels[rank, self.where[task].device].append(task)
            return
        self.execute(task, now)

    def limited(self, task: int) -> bool:
        return (
            self.g.kind[task] == Kind.LAUNCH
            and not self.where[task].is_stream
            and bool(self.launched[task])
            and self.depth[self.where[task].rank] > 0
        )

    def fits(self, task: int) -> bool:
        me = self.where[task]
        others = [s for t, s in self.holding.items() if (self.where[t].rank, self.where[t].device) == (me.rank, me.device)
                  and self.proc[t] != self.proc[task]]  # fmt: skip
        return sum(others) < 1 - 1e-6

    def execute(self, task: int, now: int) -> None:
        self.start[task] = now
        after = self.behind.get(task)
        if after is not None and self.awaited[after]:
            self.snapshot(after, now)
            self.hand_in(after, "snapshot", now)
        if task in self.shares:
            self.holding[task] = self.shares[task][0]
        members = self.set_of.get(task, [task])
        if all(m in self.start for m in members):
            transfer = max(self.start[m] for m in members)
            for m in members:
                self.end[m] = transfer + self.durations[m]
                heapq.heappush(self.heap, (self.end[m], m, 1))
                if m in self.shares:
                    base = int(self.g.duration[m])
                    hold = self.shares[m][1] * self.durations[m] // base if base else 0
                    heapq.heappush(self.heap, (transfer + hold, m, 2))

    def snapshot(self, task: int, now: int) -> bool:
        """Find what the return waits for on its target streams. Returns whether it waits for nothing."""
        streams, self.awaited[task] = self.awaited[task], []
        self.ready[task].append(now)
        for i, stream in enumerate(streams):
            if not self.queue[stream]:
                continue
            last = self.queue[stream][-1]
            if last in self.ended:
                self.ready[task].append(self.end[last] + self.lag(task, D.SYNC))
            else:
                self.pending[task].add(("await", i))
                self.waiting_for[last].append((task, i))
        return not self.pending[task]

    def enqueue(self, task: int | None) -> None:
        while task is not None:
            stream = self.proc[task]
            self.queue[stream].append(task)
            if self.stream_order and len(self.queue[stream]) == self.stream_done[stream] + 1:
                self.open_head(stream)
            task = self.behind.get(task)
            if task in self.launch:
                return

    def open_head(self, stream: int) -> None:
        at = self.stream_done[stream]
        if at < len(self.queue[stream]):
            head = self.queue[stream][at]
            self.hand_in(head, "stream", self.end[self.queue[stream][at - 1]] + self.lag(head, D.STREAM_ORDER) if at else None)

    def on_end(self, task: int, now: int) -> None:
        self.ended.add(task)
        for t in range(len(self.g)):
            for i, (pred, kind) in enumerate(self.edges[t]):
                if pred == task:
                    self.hand_in(t, ("edge", i), now + self.lag(t, kind))
                    if self.launch.get(t) == task and kind is D.LAUNCH:
                        self.enqueue(t)
        if not self.where[task].is_stream:
            if self.thread_order and task in self.behind:
                self.hand_in(self.behind[task], "thread", now + self.lag(task, D.THREAD_ORDER))
            return
        if self.stream_order:
            self.stream_done[self.proc[task]] += 1
            self.open_head(self.proc[task])
        for waiter, i in self.waiting_for[task]:
            self.hand_in(waiter, ("await", i), now + self.lag(waiter, D.SYNC))
        launch = self.launch.get(task)
        if launch is not None and self.limited(launch) and all(t in self.ended for t in self.launched[launch]):
            heapq.heappush(self.heap, (now + self.lag(launch, D.QUEUE_DEPTH), launch, 3))

    def on_vacate(self, launch: int, now: int) -> None:
        rank = self.where[launch].rank
        if self.queued_launches[rank]:
            heir = self.queued_launches[rank].pop(0)
            self.granted.add(heir)
            heapq.heappush(self.heap, (now, heir, 0))
        else:
            self.outstanding[rank] -= 1

    def on_release(self, task: int, now: int) -> None:
        del self.holding[task]
        device = self.where[task].rank, self.where[task].device
        blocked, self.blocked_kernels[device] = self.blocked_kernels[device], []
        for kernel in blocked:
            if self.fits(kernel):
                self.execute(kernel, now)
            else:
                self.blocked_kernels[device].append(kernel)


def run(graph: Graph, durations: np.ndarray[Any, Any] | None = None) -> tuple[list[int], list[int]] | None:
    try:
        timeline = simulate(graph, durations)
    except GraphError:
        return None
    return timeline.start.tolist(), timeline.end.tolist()


@given(jobs(), st.sets(st.sampled_from(D), max_size=2), randoms())
def test_the_event_loop_follows_the_rules_as_plain_python_states_them(graph: Graph, ignored: set[Dependency], random: Random) -> None:
    graph = replace(graph, ignored=frozenset(ignored))
    durations = graph.duration
    if random.getrandbits(1):
        durations = np.array([random.randint(0, 9) for _ in durations], np.int64)
    assert run(graph, durations) == Reference(graph, durations.tolist()).run()


# ---- properties of frozen graphs, and of both forms together ----

#: What may be switched off without making the order depend on timing.
REMOVABLE = st.sets(st.sampled_from([D.HAND_OFF, D.STREAM_WAIT, D.SYNC, D.COPY, D.DATA, D.RENDEZVOUS, D.QUEUE_DEPTH]), max_size=3)


def members(graph: Graph) -> set[int]:
    return set() if D.RENDEZVOUS in graph.ignored else set(graph.rendezvous_task.tolist())


@given(jobs(fixed_order=True), REMOVABLE)
def test_where_the_order_is_fixed_the_event_loop_and_the_sweep_agree(graph: Graph, ignored: set[Dependency]) -> None:
    graph = replace(graph, ignored=frozenset(ignored))
    live = run(graph)
    try:
        frozen = freeze(graph)
    except GraphError:
        assert live is None
        return
    assert frozen.exact
    timeline = sweep(frozen)
    assert (timeline.start.tolist(), timeline.end.tolist()) == live


@given(jobs())
def test_a_frozen_order_is_topological_and_holds_every_task_once(graph: Graph) -> None:
    try:
        frozen = freeze(graph)
    except GraphError:
        assume(False)
    assert sorted(frozen.edges.order.tolist()) == list(range(len(graph)))
    position = {t: i for i, t in enumerate(frozen.edges.order.tolist())}
    for i in range(len(graph)):
        assert all(position[p] < i for p in frozen.edges.pred[frozen.edges.pred_offset[i] : frozen.edges.pred_offset[i + 1]].tolist())


@given(jobs())
def test_time_is_conserved_and_no_processor_runs_two_tasks_at_once(graph: Graph) -> None:
    once = run(graph)
    assume(once is not None)
    assert once is not None
    assert run(graph) == once  # deterministic
    start, end = np.array(once[0]), np.array(once[1])
    alone = np.array([t not in members(graph) for t in range(len(graph))])
    assert (end - start == graph.duration)[alone].all()
    assert (end - start >= graph.duration).all()
    for p in range(len(graph.processors)):
        mine = np.flatnonzero(graph.processor == p)
        by_start = mine[np.lexsort((end[mine], start[mine]))]
        assert (end[by_start][:-1] <= start[by_start][1:]).all()


@given(jobs(), randoms())
def test_a_longer_task_never_makes_anything_of_a_frozen_graph_earlier(graph: Graph, random: Random) -> None:
    try:
        frozen = freeze(graph)
    except GraphError:
        assume(False)
    longer = graph.duration.copy()
    longer[random.randint(0, len(graph) - 1)] += random.randint(1, 50)
    before, after = sweep(frozen), sweep(frozen, longer)
    assert (after.start >= before.start).all()
    assert (after.end >= before.end).all()


@given(jobs(fixed_order=True))
def test_half_of_every_time_is_half_of_the_makespan(graph: Graph) -> None:
    double = replace(graph, duration=graph.duration * 2, lag=graph.lag * 2, release_time=graph.release_time * 2)
    whole, half = run(double), run(graph)
    assume(half is not None and whole is not None)
    assert half is not None
    assert whole is not None
    assert max(whole[1]) == 2 * max(half[1])


@given(jobs(), st.integers(1, 17), randoms())
def test_configurations_swept_together_give_what_each_gives_alone(graph: Graph, count: int, random: Random) -> None:
    try:
        frozen = freeze(graph)
    except GraphError:
        assume(False)
    seed = random.randint(0, 1000)
    durations = np.random.default_rng(seed).integers(0, 50, (count, len(graph)))
    alone = [sweep(frozen, row) for row in durations]
    assert sweep_many(frozen, durations, ends=True).tolist() == [t.end.tolist() for t in alone]
    assert sweep_many(frozen, durations).tolist() == [int(t.end.max() - t.start.min()) for t in alone]


@given(jobs(fixed_order=True), st.integers(1, 1000), randoms())
def test_one_late_member_holds_all_of_its_rendezvous(graph: Graph, late: int, random: Random) -> None:
    assume(len(graph.rendezvous_offset) > 1)
    chosen = random.randint(0, len(graph.rendezvous_offset) - 2)
    tasks = graph.rendezvous_task[graph.rendezvous_offset[chosen] : graph.rendezvous_offset[chosen + 1]]
    before = run(graph)
    assume(before is not None)
    assert before is not None
    latest = max(before[0][t] for t in tasks) + late
    delayed = replace(
        graph,
        release_task=np.append(graph.release_task, tasks[0]),
        release_time=np.append(graph.release_time, latest),
    )
    after = run(delayed)
    assert after is not None
    assert [after[1][t] for t in tasks] == [latest + int(graph.duration[t]) for t in tasks]


@given(jobs(fixed_order=True), randoms())
def test_sweeps_of_groups_are_sweeps_of_the_scaled_durations(graph: Graph, random: Random) -> None:
    try:
        frozen = freeze(graph)
    except GraphError:
        assume(False)
    n = len(graph)
    group = np.array([random.randint(0, 2) for _ in range(n)], np.uint16)
    within = np.array([random.randint(-1, 2) for _ in range(n)], np.int32)
    factors = np.array([[random.choice([0.0, 0.25, 0.5, 1.0, 1.5, 3.0]) for _ in range(3)] for _ in range(random.randint(1, 11))])
    rows = np.rint(graph.duration * factors[:, group]).astype(np.int64)
    order = frozen.edges.order
    for row, *together in zip(rows, *sweep_scaled(frozen, group, factors, within[order], 3), strict=True):
        alone, by_itself = sweep(frozen, row), sweep_groups(frozen, row, order, within[order], 3)
        for each in set(within[within >= 0].tolist()):
            known = alone.start[within == each].min(), alone.end[within == each].max()
            assert all((first[each], last[each]) == known for first, last in (together, by_itself))
