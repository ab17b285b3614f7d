"""The first matching: which operator of the emulated script is which of the recording, and what it was measured to cost.

The operators of a thread are aligned in their order, by name with the shapes and types that they were given; what is left between two that
agree, by name alone: of those only what was given the same sizes counts as explained. A library may call other operators inside one than
the emulator does: what has no partner belongs to the operator around it, on both sides, and the time of a group is shared out as the models
say. Exchanges are aligned by kind and bytes, then by kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.emulation.device.launch import tensors_of, width
from lumos.operators.sequences import align_names
from lumos.scripted.recorded import type_name
from lumos.scripted.script import Slot

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from lumos.cost.estimate import Float64
    from lumos.emulation.record import Exchange, Operator
    from lumos.scripted.recorded import GivenTensor, RecordedCall, RecordedCosts, RecordedExchange, RecordedStep
    from lumos.scripted.script import Kindred, Script
    from lumos.trace.table import Int32, Int64


class Coverage(NamedTuple):
    """Of the recorded time of the steps, ns: all of it, and what has a partner."""

    whole: float
    matched: float

    @property
    def part(self) -> float:
        """The share that has one; 1 of nothing."""
        return self.matched / self.whole if self.whole else 1.0


#: Of no recorded time.
UNRECORDED = Coverage(0.0, 0.0)


class Lone(NamedTuple):
    """An operator that one side alone has: what it is called, in how many calls a step, and its time there, ns a step."""

    what: str
    calls: float
    ns: float


@dataclass
class Matched:
    """The recording on the emulated script. prices: of each recorded rank, ns as `Kindred.modelled`, NaN where nothing was measured.
    owner: of each recorded rank, by row of its trace, the emulated operator that the row belongs to; -1 for none, as for all rows that
    follow. device, host: how much of the recorded time has a partner. only_recorded, only_emulated: what has none, the longest first.
    first: where the two differ first, in words; "" where they do not."""

    prices: dict[int, Float64] = field(default_factory=dict)
    owner: dict[int, Int32] = field(default_factory=dict)
    device: Coverage = UNRECORDED
    host: Coverage = UNRECORDED
    only_recorded: list[Lone] = field(default_factory=list)
    only_emulated: list[Lone] = field(default_factory=list)
    first: str = ""


def match_script(recording: RecordedCosts, before: Script) -> Matched:
    """Match every recorded rank with the emulated one of its number. before: emulated with as many steps as the recording has."""
    matching = _Matching(before)
    for rank, steps in recording.ranks():
        matching.rank(rank, steps)
    return matching.result(max(len(recording.names), 1))


class Numbers:
    """A number for each value, the same for equal ones."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __call__(self, values: Sequence[Hashable]) -> Int64:
        return np.array([self._known.setdefault(value, len(self._known)) for value in values], np.int64)


class _Matching:
    def __init__(self, before: Script) -> None:
        self.before, self.numbers = before, Numbers()
        self.found = Matched()
        self.whole, self.partnered = np.zeros(Slot.EXCHANGE + 1), np.zeros(Slot.EXCHANGE + 1)
        self.recorded_alone: dict[str, list[float]] = {}
        self.emulated_alone: dict[str, list[float]] = {}
        self.aligned: dict[tuple[bytes, bytes], Int64] = {}
        self.sides: dict[int, _Emulated] = {}
        self.least: dict[tuple[Hashable, ...], float] = {}  # of the rank that is being matched

    def rank(self, rank: int, steps: list[RecordedStep]) -> None:
        """Match one rank."""
        kind = self.before.ranks.of[rank] if rank < len(self.before.ranks.of) else 0
        if kind not in self.sides:
            self.sides[kind] = _Emulated(self.before.kinds[kind], self.numbers)
        side = self.sides[kind]
        prices = np.full(side.kindred.modelled.shape, np.nan)
        self.least = shortest(steps)
        owner: dict[int, int] = {}
        for number, step in enumerate(steps):
            owner.update(self._step(side, step, min(number, self.before.steps - 1), prices))
        self.found.prices[rank] = prices
        of_row = self.found.owner[rank] = np.full(max(owner, default=-1) + 1, -1, np.int32)
        of_row[list(owner)] = list(owner.values())

    def result(self, steps: int) -> Matched:
        """What was found. steps: that were matched."""
        found, times = self.found, steps * max(len(self.found.prices), 1)
        found.device = Coverage(self.whole[Slot.DEVICE], self.partnered[Slot.DEVICE])
        host = [Slot.OWN, Slot.BEFORE, Slot.CALLS]
        found.host = Coverage(float(self.whole[host].sum()), float(self.partnered[host].sum()))
        for lone, out in ((self.recorded_alone, found.only_recorded), (self.emulated_alone, found.only_emulated)):
            out += sorted((Lone(name, count / times, ns / times) for name, (count, ns) in lone.items()), key=lambda each: -each.ns)
        return found

    def _step(self, side: _Emulated, step: RecordedStep, number: int, prices: Float64) -> dict[int, int]:
        """One step of one rank. number: of the emulated step. Returns the owners of its rows."""
        owner: dict[int, int] = {}
        claimed: set[int] = set()
        resized: set[int] = set()
        names = [self.numbers([(each.name, each.given) for each in thread]) for thread in step.threads]
        for place, theirs in enumerate(side.threads(number)):
            if place >= len(step.threads):
                break
            ours = step.threads[place]
            partner = self._partners(names[place], side.tokens[theirs], ours, side, theirs)
            for i, (each, other) in enumerate(zip(ours, partner.tolist(), strict=True)):
                if other >= 0:
                    its = int(theirs[other])
                    owner[each.row] = its
                    claimed.add(its)
                    if not same_sizes(each.given, side.given[its]):
                        resized.add(its)
                        self.found.first = self.found.first or _other_sizes(each, side.given[its])
                elif each.parent >= 0 and (around := owner.get(ours[each.parent].row, -1)) >= 0:
                    owner[each.row] = around
                elif not self.found.first and i:
                    self.found.first = f"{each.name} after {ours[i - 1].name}, which only the recording has"
        totals = self._totals(step, owner, claimed, resized)
        claimants = side.claimants(number, claimed)
        side.share_out(number, claimants, totals, prices)
        for i in np.array(side.in_step[number], np.int64)[claimants < 0].tolist():
            entry = self.emulated_alone.setdefault(side.name(i), [0.0, 0.0])
            entry[0] += 1
            entry[1] += float(side.kindred.modelled[[Slot.OWN, Slot.DEVICE], i].sum())
        self._exchanges(side, step, number, prices)
        return owner

    def _partners(self, ours: Int64, theirs: Int64, calls: list[RecordedCall], side: _Emulated, operators: Int64) -> Int64:
        key = (ours.tobytes(), theirs.tobytes())
        if key not in self.aligned:
            by_name = self.numbers([each.name for each in calls]), self.numbers([side.name(i) for i in operators.tolist()])
            self.aligned[key] = in_two_rounds((ours, theirs), by_name)
        return self.aligned[key]

    def _totals(self, step: RecordedStep, owner: dict[int, int], claimed: set[int], resized: set[int]) -> dict[int, list[float]]:
        """What each emulated operator that has a partner cost, with all that belongs to it. resized: those with one of other sizes."""
        totals: dict[int, list[float]] = {i: [0.0] * Slot.EXCHANGE for i in claimed}
        for place, thread in enumerate(step.threads):
            pending = 0.0
            for i, each in enumerate(thread):
                cost = step.cost.get(each.row)
                mine = owner.get(each.row, -1)
                if mine >= 0 and pending:
                    totals[mine][Slot.BEFORE] += pending
                    pending = 0.0
                if cost is None:
                    continue
                for slot in range(Slot.EXCHANGE):
                    self.whole[slot] += cost[slot]
                    if mine >= 0:
                        totals[mine][slot] += cost[slot]
                        self.partnered[slot] += cost[slot] * (mine not in resized)
                if mine < 0:
                    outer = _outermost(thread, i)
                    entry = self.recorded_alone.setdefault(outer, [0.0, 0.0])
                    entry[0] += each.parent < 0
                    entry[1] += sum(cost)
                    if place == 0:  # what the loop's own thread does all the same is kept with what follows
                        pending += cost[Slot.OWN] + cost[Slot.BEFORE] + cost[Slot.CALLS]
        return totals

    def _exchanges(self, side: _Emulated, step: RecordedStep, number: int, prices: Float64) -> None:
        theirs = side.kindred.exchanges.get(number, [])
        exact = self.numbers([exchange_key(each) for each in step.exchanges]), self.numbers([side.exchange_key(i) for i in theirs])
        rough = self.numbers([each.kind for each in step.exchanges]), self.numbers([side.exchange_key(i)[0] for i in theirs])
        partner = in_two_rounds(exact, rough)
        for each, other in zip(step.exchanges, partner.tolist(), strict=True):
            ns = each.ns if each.whole else self.least[exchange_key(each)]
            self.whole[Slot.EXCHANGE] += each.ns
            if other >= 0:
                self.partnered[Slot.EXCHANGE] += each.ns
                prices[Slot.EXCHANGE, theirs[other]] = ns


class _Emulated:
    """One kind of rank, for matching."""

    def __init__(self, kindred: Kindred, numbers: Numbers) -> None:
        self.kindred = kindred
        operators = kindred.process.operators
        self.given = [given(each) for each in operators]
        self.tokens = numbers([(each.name, sizes) for each, sizes in zip(operators, self.given, strict=True)])
        steps = max(kindred.placed.step, default=0) + 1
        self.in_step: list[list[int]] = [[] for _ in range(steps)]
        for i, step in enumerate(kindred.placed.step):
            self.in_step[step].append(i)

    def name(self, i: int) -> str:
        return self.kindred.process.operators[i].name

    def threads(self, step: int) -> list[Int64]:
        """The operators of each thread in a step, in order."""
        by_thread: dict[int, list[int]] = {}
        for i in self.in_step[step] if step < len(self.in_step) else ():
            by_thread.setdefault(self.kindred.process.operators[i].thread, []).append(i)
        return [np.array(by_thread[thread], np.int64) for thread in sorted(by_thread)]

    def claimants(self, step: int, claimed: set[int]) -> Int64:
        """By operator of a step the one that its work belongs to: itself or the innermost one around it that has a partner; -1 without."""
        found: dict[int, int] = {}
        for i in self.in_step[step]:
            found[i] = i if i in claimed else found.get(self.kindred.placed.parent[i], -1)
        return np.fromiter(found.values(), np.int64, len(found))

    def share_out(self, step: int, claimants: Int64, totals: dict[int, list[float]], prices: Float64) -> None:
        """Write what operators cost, each group's time in the shares that the models say. claimants: as above."""
        has = claimants >= 0
        members = np.array(self.in_step[step], np.int64)[has]
        if not len(members):
            return
        owners, group = np.unique(claimants[has], return_inverse=True)
        total = np.array([totals[owner] for owner in owners.tolist()]).T
        model = self.kindred.modelled[: Slot.EXCHANGE, members]
        whole = np.stack([np.bincount(group, shares) for shares in model])
        for slot in (Slot.CALLS, Slot.BEFORE):  # the emulated operator makes no such call
            total[Slot.OWN] += np.where(whole[slot] > 0, 0.0, total[slot])
        ratio = np.divide(total, whole, out=np.zeros_like(total), where=whole > 0)
        prices[: Slot.EXCHANGE, members] = model * ratio[:, group]

    def exchange_key(self, i: int) -> tuple[Hashable, ...]:
        each: Exchange = self.kindred.process.exchanges[i]
        elements = max(each.input_elements, each.kind.is_transfer * each.output_elements)
        return (each.kind, elements * width(each.dtype))


def in_two_rounds(exact: tuple[Int64, Int64], rough: tuple[Int64, Int64]) -> Int64:
    """For each entry of one sequence its partner in the other, -1 without: first by the numbers of `exact`, then what lies between two
    that have one by those of `rough`."""
    ours, theirs = exact
    if not len(ours) or not len(theirs):
        return np.full(len(ours), -1, np.int64)
    partner = align_names(ours, theirs).copy()
    anchors = [(-1, -1), *((int(i), int(partner[i])) for i in np.flatnonzero(partner >= 0)), (len(ours), len(theirs))]
    for (i, j), (next_i, next_j) in pairwise(anchors):
        if next_i > i + 1 and next_j > j + 1:
            inner = align_names(rough[0][i + 1 : next_i], rough[1][j + 1 : next_j])
            partner[i + 1 : next_i] = np.where(inner >= 0, inner + j + 1, -1)
    return partner


def given(operator: Operator) -> tuple[GivenTensor, ...]:
    """The tensors that an operator was given, as a recording says it."""
    return tuple((each.shape, type_name(each.dtype)) for each in tensors_of(operator.inputs) if each.shape)


def same_sizes(recorded: tuple[GivenTensor, ...], emulated: tuple[GivenTensor, ...]) -> bool:
    """Whether two calls may have been given the same: a recording need not have shapes, and of what stands in a list it has no types, or
    nothing; and a tensor that is empty in the script is a library's workspace, of which emulation does not know how long it is."""
    rest = iter(emulated)
    return all(any((size == its or 0 in its) and (kind == type_ or "" in (kind, type_)) for its, type_ in rest) for size, kind in recorded)


def sizes_in_words(tensors: tuple[GivenTensor, ...]) -> str:
    """Tensors for a message: "float32 [512, 256], int64 [4, 128]"."""
    return ", ".join(f"{kind} {list(shape)}".strip() for shape, kind in tensors) or "none"


def _other_sizes(call: RecordedCall, there: tuple[GivenTensor, ...]) -> str:
    return f"{call.name} of {sizes_in_words(call.given)}, and of {sizes_in_words(there)} in the script"


def _outermost(thread: Sequence[RecordedCall], i: int) -> str:
    while thread[i].parent >= 0:
        i = thread[i].parent
    return thread[i].name


def shortest(steps: Sequence[RecordedStep]) -> dict[tuple[Hashable, ...], float]:
    """The shortest time of the exchanges of each kind and size, ns: it holds least of the waiting for ranks that were not recorded."""
    out: dict[tuple[Hashable, ...], float] = {}
    for step in steps:
        for each in step.exchanges:
            key = exchange_key(each)
            out[key] = min(each.ns, out.get(key, each.ns))
    return out


def exchange_key(each: RecordedExchange) -> tuple[Hashable, ...]:
    return (each.kind, each.nbytes)
