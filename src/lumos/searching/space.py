"""The plans of a model on a cluster: every combination of sizes and choices that the rules of `plan.plan` allow.

Choices that make no difference are listed once: with one replica ZeRO is 0, with one tensor rank there is no sequence
parallelism, with one stage the schedule is 1F1B. ZeRO 1 and 3 are the same in a pipeline whose framework gathers updated parameters
during the first passes; of the two, the framework's own is listed, else 1. Schedules are those that the framework has. The space
adds limits of its own: tensor groups stay inside a node, a context part has at least `SHORTEST_PART` tokens, a microbatch has at
most `MOST_SEQUENCES` sequences, and virtual stages divide the layers evenly (embedding, head or both may count as a layer). A limit
does not apply to a choice whose values are named one by one; a range of values keeps it. A plan's structure decides the order of its
passes (`PipelineStructure`), and plans are timed in groups of one structure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lumos import _pipeline
from lumos.choices import check_count
from lumos.errors import UsageError
from lumos.model.transformer import LARGEST_SIZE, MOST_TOKENS
from lumos.plan.job import PlannedJob, unknown_window, with_unknowns
from lumos.plan.plan import MOST_PASSES, Plan, layers_of_chunks
from lumos.plan.profiles import framework_schedules
from lumos.plan.schedules import HELD_BY_SENDS, holds_sender
from lumos.vocabulary import Precision, Recompute, Schedule, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.cost.cluster import Cluster
    from lumos.diagnostics import Diagnostic
    from lumos.model import Model
    from lumos.model.hugging_face import TokenWindow
    from lumos.plan.framework import Framework

#: The fewest tokens of a sequence that one context-parallel rank holds.
SHORTEST_PART = 512
#: The most sequences in a microbatch.
MOST_SEQUENCES = 16

#: The columns `schedule` and `recompute` hold positions in these.
SCHEDULES = tuple(Schedule)
RECOMPUTES = tuple(Recompute)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    """What all plans of a search share. gpus: devices. global_batch: sequences of a step. seq_len: tokens of a sequence.
    reserved_bytes: memory of each device that a plan may not use (library buffers, fragments, other processes). stated: switches of the
    framework's profile that were given, so that they are not open. window: what some layers of the model see, where they do not see
    all. Raises UsageError where no memory is left, or a size is none.
    """

    model: Model
    framework: Framework
    cluster: Cluster
    gpus: int
    global_batch: int
    seq_len: int
    precision: Precision = Precision.BF16
    assumed: tuple[Diagnostic, ...] = ()
    reserved_bytes: float = 0.0
    stated: tuple[str, ...] = ()
    window: TokenWindow | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", one_of(Precision, self.precision, "precision"))
        for key, most in (("gpus", LARGEST_SIZE), ("global_batch", LARGEST_SIZE), ("seq_len", MOST_TOKENS)):
            check_count(getattr(self, key), key, most)
        capacity = self.capacity
        if not self.reserved_bytes >= 0 or (capacity is not None and capacity <= 0):
            whole = f" of {(self.cluster.accelerator.usable_bytes or 0) / 1e9:.1f} GB" if capacity is not None else ""
            raise UsageError(f"reserved memory of {self.reserved_bytes / 1e9:g} GB{whole}: give 0 or more, and less than there is")

    @property
    def capacity(self) -> float | None:
        """Bytes of each device that a plan may use; None where the device's memory is not known."""
        memory = self.cluster.accelerator.usable_bytes
        return None if memory is None else memory - self.reserved_bytes

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedules that are searched unless others are named."""
        return framework_schedules(self.framework.name)

    def job(self, plan: Plan) -> PlannedJob:
        """The job with that plan, and what it leaves open."""
        job = with_unknowns(PlannedJob(self.model, plan, self.framework, self.cluster, self.assumed), self.stated)
        return unknown_window(job, self.window)


#: Values that a size may take: named one by one, or all from one to another.
AllowedSizes: TypeAlias = "tuple[int, ...] | range"


@dataclass(frozen=True, slots=True)
class Space:
    """The values that each choice may take; an empty tuple allows all that the rules and limits allow."""

    tp: AllowedSizes = ()
    pp: AllowedSizes = ()
    vpp: AllowedSizes = ()
    cp: AllowedSizes = ()
    ep: AllowedSizes = ()
    dp: AllowedSizes = ()
    zero: AllowedSizes = ()
    micro_batch: AllowedSizes = ()
    sequence_parallel: tuple[bool, ...] = ()
    recompute: tuple[Recompute, ...] = ()
    schedule: tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "recompute", tuple(one_of(Recompute, word, "recompute") for word in self.recompute))
        object.__setattr__(self, "schedule", tuple(one_of(Schedule, word, "schedule") for word in self.schedule))


#: The columns of `Plans`, in order: the choices of a plan.
PLAN_COLUMNS = tuple(field.name for field in fields(Space))


@dataclass(frozen=True, slots=True, eq=False)
class Plans:
    """Plans as columns. rows: int64[n, len(COLUMNS)]; recompute and schedule are positions in RECOMPUTES and SCHEDULES."""

    problem: Problem
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Ints:
        return self.rows[:, PLAN_COLUMNS.index(name)]

    def take(self, which: NDArray[np.generic]) -> Plans:
        return Plans(self.problem, self.rows[which])

    @property
    def microbatches(self) -> Ints:
        return self.problem.global_batch // (self["dp"] * self["micro_batch"])

    def plan(self, row: int) -> Plan:
        """The plan of a row."""
        p = self.problem
        values = dict(zip(PLAN_COLUMNS, self.rows[row].tolist(), strict=True))
        sequence = bool(values.pop("sequence_parallel"))
        recompute, schedule = RECOMPUTES[values.pop("recompute")], SCHEDULES[values.pop("schedule")]
        return Plan(
            seq_len=p.seq_len, global_batch=p.global_batch, precision=p.precision, sequence_parallel=sequence, recompute=recompute,
            schedule=schedule, **values,
        )  # fmt: skip


def enumerate_plans(problem: Problem, space: Space) -> Plans:
    """Every plan of the space that the rules allow, in a fixed order."""
    rows = list(_rows(problem, space))
    return Plans(problem, np.array(rows, np.int64).reshape(-1, len(PLAN_COLUMNS)))


def divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _rows(problem: Problem, space: Space) -> Iterator[tuple[int, ...]]:
    for tp, pp, cp, dp in _shapes(problem, space):
        data = dp * cp
        zeros = _zeros(problem.framework, space, pp, data)
        sequences = _sequence(problem, space, tp, cp)
        recomputes = _recomputes(problem.framework, space)
        experts = list(_expert_sizes(problem.model, space, data))
        for micro_batch in divisors(problem.global_batch // dp):
            if not _allowed(micro_batch, space.micro_batch, micro_batch <= MOST_SEQUENCES):
                continue
            microbatches = problem.global_batch // (dp * micro_batch)
            for schedule, vpp in _schedules(problem, space, pp, microbatches):
                if 2 * microbatches * pp * vpp > MOST_PASSES:
                    continue
                for ep in experts:
                    for zero in zeros:
                        for recompute in recomputes:
                            for sequence in sequences:
                                yield tp, pp, vpp, cp, ep, dp, zero, micro_batch, sequence, recompute, schedule


def _shapes(problem: Problem, space: Space) -> Iterator[tuple[int, int, int, int]]:
    """Every (tp, pp, cp, dp) whose product is the number of devices."""
    model, node = problem.model, problem.cluster.node.devices
    for tp in divisors(problem.gpus):
        fits = model.heads % tp == 0 and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0) and model.ffn % tp == 0
        if not fits or not _allowed(tp, space.tp, tp <= node):
            continue
        for pp in divisors(problem.gpus // tp):
            if (pp > 1 and pp > model.layers + 2) or not _allowed(pp, space.pp):
                continue
            for cp in divisors(problem.gpus // (tp * pp)):
                balanced = cp == 1 or problem.seq_len % (2 * cp) == 0
                if not balanced or not _allowed(cp, space.cp, cp == 1 or problem.seq_len // cp >= SHORTEST_PART):
                    continue
                dp = problem.gpus // (tp * pp * cp)
                if problem.global_batch % dp == 0 and _allowed(dp, space.dp):
                    yield tp, pp, cp, dp


def _allowed(value: int, named: AllowedSizes, within: bool = True) -> bool:
    """Whether a value may be listed. within: whether the space's own limits allow it."""
    if isinstance(named, range):
        return value in named and within
    return value in named if named else within


def _zeros(framework: Framework, space: Space, pp: int, data: int) -> list[int]:
    if data == 1:
        return [0] if not space.zero or 0 in space.zero else list(space.zero[:1])
    same = pp > 1 and framework.gather_overlap  # a stage gathers sharded parameters once a step, beside the first passes
    double = (1 if framework.zero == 3 else 3) if same else -1
    return [z for z in (0, 1, 2, 3) if _allowed(z, space.zero, z != double)]


def _sequence(problem: Problem, space: Space, tp: int, cp: int) -> list[bool]:
    if tp == 1:
        return [False]
    even = (problem.seq_len // cp) % tp == 0
    return [s for s in (False, True) if (even or not s) and (s in space.sequence_parallel if space.sequence_parallel else True)]


def _recomputes(framework: Framework, space: Space) -> list[int]:
    """The kinds of recomputation; unless it is named, selective only where the framework has something to recompute selectively."""
    useful = [r for r in RECOMPUTES if r is not Recompute.SELECTIVE or framework.repeats_selectively]
    return [RECOMPUTES.index(r) for r in RECOMPUTES if r in (space.recompute or useful)]


def _expert_sizes(model: Model, space: Space, data: int) -> Iterator[int]:
    if model.experts is None:
        if not space.ep or 1 in space.ep:
            yield 1
        return
    for ep in divisors(model.experts.count):
        if data % ep == 0 and _allowed(ep, space.ep):
            yield ep


def _schedules(problem: Problem, space: Space, pp: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Every pair of a schedule and a number of virtual stages that can be used."""
    model, named = problem.model, space.schedule or problem.schedules
    if pp == 1:
        if (not space.vpp or 1 in space.vpp) and (not space.schedule or (Schedule.ONE_F_ONE_B in named or Schedule.INTERLEAVED in named)):
            yield SCHEDULES.index(Schedule.ONE_F_ONE_B), 1
        return
    for name in named:
        if name is Schedule.INTERLEAVED:
            if microbatches % pp:
                continue
            for vpp in range(2, (model.layers + 2) // pp + 1):
                even = any((model.layers + ends) % (pp * vpp) == 0 for ends in (0, 1, 2))
                if _allowed(vpp, space.vpp, even):
                    yield SCHEDULES.index(name), vpp
        elif (not space.vpp or 1 in space.vpp) and (
            name is not Schedule.DUALPIPE or (pp % 2 == 0 == microbatches % 2 and microbatches >= 2 * pp)
        ):
            yield SCHEDULES.index(name), 1


class PipelineStructure(NamedTuple):
    """schedule: its position in SCHEDULES. chunks: of a stage. microbatches: those that are timed one by one (`window`)."""

    schedule: int
    stages: int
    chunks: int
    microbatches: int

    @property
    def name(self) -> Schedule:
        return SCHEDULES[self.schedule]


#: After how many microbatches, in multiples of the stages, a pipeline only repeats itself: where compute waits for transfers, and where
#: the two overlap. Compared with ten times the stages on random plans of three models, the step differs by at most 0.4 %; by 2 % for
#: interleaved schedules of a hundred stages and for zero bubble with overlapping transfers.
_ROUNDS = {
    Schedule.GPIPE: (2, 2),
    Schedule.ONE_F_ONE_B: (2, 3),
    Schedule.INTERLEAVED: (3, 3),
    Schedule.ZERO_BUBBLE: (3, 4),
    Schedule.DUALPIPE: (6, 6),
}


def window(name: Schedule, stages: int, microbatches: int, p2p_overlap: bool) -> int:
    """How many microbatches of a step are timed one by one, at most `microbatches`."""
    if stages == 1:
        return min(microbatches, 3)
    return min(microbatches, _ROUNDS[name][p2p_overlap] * stages + (name in HELD_BY_SENDS))  # the last one ends differently


@lru_cache(maxsize=256)
def passes(structure: PipelineStructure, p2p_overlap: bool) -> _pipeline.Passes:
    """The passes and transfers of a structure in order."""
    holds = holds_sender(structure.name, structure.chunks, p2p_overlap)
    return _pipeline.Passes(*structure, holds, p2p_overlap)


def structures(plans: Plans) -> Iterator[tuple[PipelineStructure, Ints]]:
    """Every structure, with the rows of the plans that have it."""
    by_structure: dict[PipelineStructure, list[int]] = {}
    columns = (plans["schedule"], plans["pp"], plans["vpp"], plans.microbatches)
    overlap = plans.problem.framework.p2p_overlap
    for i, (schedule, stages, chunks, count) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        timed = window(SCHEDULES[schedule], stages, count, overlap)
        by_structure.setdefault(PipelineStructure(schedule, stages, chunks, timed), []).append(i)
    for structure, rows in by_structure.items():
        yield structure, np.array(rows, np.int64)


def chunk_layers(plans: Plans, row: int) -> tuple[Ints, Ints]:
    """Dense and mixture layers of every chunk: int[stages, chunks] each."""
    model = plans.problem.model
    chunks = layers_of_chunks(plans.plan(row), model)
    total = np.array([[len(chunk) for chunk in stage] for stage in chunks], np.int64)
    if model.mixture_layers in (0, model.layers):  # a single kind of layers is counted as dense
        return total, np.zeros_like(total)
    mixture = np.array([[sum(map(model.is_mixture, chunk)) for chunk in stage] for stage in chunks], np.int64)
    return total - mixture, mixture
