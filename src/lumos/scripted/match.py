"""The first matching: which operator of the emulated script is which of the recording, and what it was measured to cost.

The operators of a thread are aligned in their order, by name with the shapes and types that they were given, where those were recorded;
what is left between two that agree, by name alone: of those only what was given the same sizes counts as explained. A library may call
other operators inside one than the emulator does: what has no partner belongs to the operator around it, on both sides, and the time of a
group is shared out as the models say. All time of the loop's own thread is given to operators that have a partner. Exchanges are aligned by
kind and bytes, then by kind.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.operators.sequences import align_names
from lumos.scripted.script import Slot
from lumos.trace.table import unique

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from lumos.cost.estimate import Float64
    from lumos.scripted.recorded import KindOfCall, RecordedCosts, RecordedRank, RecordedStep, RecordedThread
    from lumos.scripted.script import GivenTensor, Kindred, Script
    from lumos.trace.table import Int32, Int64


class Coverage(NamedTuple):
    """Of the recorded time of the steps, ns: all of it, and what has a partner."""

    whole: float
    matched: float

    @property
    def part(self) -> float:
        """The share that has one; 1 of nothing."""
        return self.matched / self.whole if self.whole else 1.0


class Lone(NamedTuple):
    """An operator that one side alone has: what it is called, in how many calls a step, and its time there, ns a step."""

    what: str
    calls: float
    ns: float


class LoneOperators:
    """Operators that one side alone has, by their name: how many calls, and their time, ns."""

    def __init__(self) -> None:
        self._of: dict[str, list[float]] = {}

    def add(self, names: Sequence[str], calls: NDArray[Any], ns: Float64) -> None:
        """Add some. calls: 1 for each that counts as one."""
        for name, number, time in zip(names, calls.tolist(), ns.tolist(), strict=True):
            entry = self._of.setdefault(name, [0.0, 0.0])
            entry[0] += number
            entry[1] += time

    def longest(self, steps: int) -> list[Lone]:
        """Those of so many steps, a step, the longest first."""
        return sorted((Lone(name, calls / steps, ns / steps) for name, (calls, ns) in self._of.items()), key=lambda alone: -alone.ns)


class Matched(NamedTuple):
    """The recording on the emulated script. prices: of each recorded rank, ns as `Kindred.modelled`, NaN where nothing was measured.
    owner: of each recorded rank, by row of its trace, the emulated operator that the row belongs to; -1 for none, as for all rows that
    follow. device, host: how much of the recorded time has a partner. only_recorded, only_emulated: what has none, the longest first.
    first: where the two differ first, in words; "" where they do not."""

    prices: dict[int, Float64]
    owner: dict[int, Int32]
    device: Coverage
    host: Coverage
    only_recorded: list[Lone]
    only_emulated: list[Lone]
    first: str


def match_script(recording: RecordedCosts, before: Script) -> Matched:
    """Match every recorded rank with the emulated one of its number. before: emulated with as many steps as the recording has."""
    matching = _Matching(before)
    for rank in recording.ranks():
        matching.rank(rank, [*recording.kinds])
    return matching.result(max(len(recording.names), 1))


def enclosing(chosen: NDArray[np.bool_], parent: Int64) -> Int64:
    """For each of several rows itself, or the innermost row around it, that is chosen; -1 without. parent: the row around each."""
    out = np.where(chosen, np.arange(len(parent)), parent)
    while len(wrong := np.flatnonzero((out >= 0) & ~chosen[out])):
        out[wrong] = parent[out[wrong]]
    return out


class Numbers:
    """A number for each value, the same for equal ones."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __call__(self, values: Sequence[Hashable]) -> Int64:
        return np.array([self._known.setdefault(value, len(self._known)) for value in values], np.int64)


class _Matching:
    def __init__(self, before: Script) -> None:
        self.before, self.numbers = before, Numbers()
        self.prices: dict[int, Float64] = {}
        self.owner: dict[int, Int32] = {}
        self.first = ""
        self.whole, self.partnered = np.zeros(len(Slot)), np.zeros(len(Slot))
        self.recorded_alone, self.emulated_alone = LoneOperators(), LoneOperators()
        self.aligned: dict[tuple[bytes, bytes], Int64] = {}
        self.sides: dict[int, _Emulated] = {}
        self.same: dict[tuple[KindOfCall, int], bool] = {}
        self.kinds: list[KindOfCall] = []
        # of the rank that is being matched, the shortest of each kind and size: it holds least of the waiting for ranks without a recording
        self.least: dict[tuple[Hashable, ...], float] = {}

    def rank(self, recorded: RecordedRank, kinds: list[KindOfCall]) -> None:
        """Match one rank. kinds: of its calls."""
        number = recorded.rank
        kind = self.before.ranks.of[number] if number < len(self.before.ranks.of) else 0
        if kind not in self.sides:
            self.sides[kind] = _Emulated(self.before.kinds[kind], self.numbers)
        self.kinds = kinds
        prices = np.full(self.sides[kind].kindred.modelled.shape, np.nan)
        self.least = {}
        for exchange in (exchange for step in recorded.steps for exchange in step.exchanges):
            self.least[exchange.key] = min(exchange.ns, self.least.get(exchange.key, exchange.ns))
        owner = np.full(recorded.cost.shape[1], -1, np.int32)
        for i, step in enumerate(recorded.steps):
            self._step(self.sides[kind], step, min(i, self.before.steps - 1), recorded.cost, prices, owner)
        self.prices[number], self.owner[number] = prices, owner

    def result(self, steps: int) -> Matched:
        """What was found. steps: that were matched."""
        times, on_host = steps * max(len(self.prices), 1), [Slot.OWN, Slot.BEFORE, Slot.CALLS]
        device, host = (Coverage(*(float(of[slots].sum()) for of in (self.whole, self.partnered))) for slots in (Slot.DEVICE, on_host))
        lone = self.recorded_alone.longest(times), self.emulated_alone.longest(times)
        return Matched(self.prices, self.owner, device, host, *lone, self.first)

    def _step(self, side: _Emulated, step: RecordedStep, number: int, cost: Float64, prices: Float64, owner: Int32) -> None:
        """One step of one rank: writes prices, and the owners of its rows. number: of the emulated step."""
        size = prices.shape[1]
        claimed, resized = np.zeros((2, size), bool)
        rough = self.numbers([kind.name for kind in self.kinds])
        exact, tokens = (self.numbers(self.kinds), side.tokens) if any(kind.given for kind in self.kinds) else (rough, side.names)
        for thread, theirs in zip(step.threads, side.threads(number), strict=False):
            partner = self._partners((exact[thread.kind], rough[thread.kind]), (tokens[theirs], side.names[theirs]))
            has = partner >= 0
            its = np.full(len(partner), -1, np.int64)
            its[has] = theirs[partner[has]]
            other = np.zeros(len(partner), bool)
            other[has] = self._resized(side, thread.kind[has], its[has])
            claimed[its[has]], resized[its[other]] = True, True
            around = enclosing(has, thread.parent)
            owner[thread.row] = np.where(around >= 0, its[around], -1)
            self.first = self.first or self._first(side, thread, its, (around < 0) | other)
        totals = self._totals(step, cost, owner, resized)
        members, claimants = side.claimants(number, claimed)
        side.share_out(members, claimants, totals, prices)
        alone = members[claimants < 0]
        spent = side.kindred.modelled[[Slot.OWN, Slot.DEVICE]][:, alone].sum(axis=0)
        self.emulated_alone.add([side.kindred.process.operators[i].name for i in alone.tolist()], np.ones(len(alone)), spent)
        self._exchanges(side, step, number, prices)

    def _partners(self, ours: tuple[Int64, Int64], theirs: tuple[Int64, Int64]) -> Int64:
        key = (ours[0].tobytes(), theirs[0].tobytes())
        if key not in self.aligned:
            self.aligned[key] = in_two_rounds((ours[0], theirs[0]), (ours[1], theirs[1]))
        return self.aligned[key]

    def _resized(self, side: _Emulated, kind: Int64, its: Int64) -> NDArray[np.bool_]:
        """Whether calls and their partners were given other sizes."""
        tokens = side.tokens[its]
        _, first, of = np.unique(kind * (1 << 32) + tokens, return_index=True, return_inverse=True)
        out = []
        for i in first.tolist():
            key = (self.kinds[kind[i]], int(tokens[i]))
            if key not in self.same:
                self.same[key] = same_sizes(key[0].given, side.given[its[i]])
            out.append(not self.same[key])
        return np.array(out, bool)[of]

    def _first(self, side: _Emulated, thread: RecordedThread, its: Int64, differs: NDArray[np.bool_]) -> str:
        """The first call that differs, in words. its: the partners, -1 without."""
        for i in np.flatnonzero(differs)[:2].tolist():
            call = self.kinds[thread.kind[i]]
            if its[i] >= 0:
                there = sizes_in_words(side.given[its[i]])
                return f"{call.name} of {sizes_in_words(call.given)}, and of {there} in the script"
            if i:
                return f"{call.name} after {self.kinds[thread.kind[i - 1]].name}, which only the recording has"
        return ""

    def _totals(self, step: RecordedStep, costs: Float64, owner: Int32, resized: NDArray[np.bool_]) -> Float64:
        """What each emulated operator that has a partner cost, with all that belongs to it. resized: those with one of other sizes."""
        totals = np.zeros((Slot.EXCHANGE, len(resized)))
        for number, thread in enumerate(step.threads):
            cost, mine = costs[:, thread.row], owner[thread.row]
            has = mine >= 0
            np.add.at(totals.T, mine[has], cost[:, has].T)
            self.whole[: Slot.EXCHANGE] += cost.sum(axis=1)
            self.partnered[: Slot.EXCHANGE] += cost[:, has & ~resized[mine]].sum(axis=1)
            alone = np.flatnonzero(~has & cost.any(axis=0))
            outer = thread.kind[enclosing(thread.parent < 0, thread.parent)[alone]]
            names, outermost = [self.kinds[i].name for i in outer.tolist()], thread.parent[alone] < 0
            self.recorded_alone.add(names, outermost, cost[:, alone].sum(axis=0))
            if number == 0:  # what the loop's own thread does all the same is kept with what follows
                owned = np.flatnonzero(has)
                after = np.searchsorted(owned, alone)
                kept = after < len(owned)
                pending = cost[[Slot.OWN, Slot.BEFORE, Slot.CALLS]][:, alone[kept]].sum(axis=0)
                np.add.at(totals[Slot.BEFORE], mine[owned[after[kept]]], pending)
        return totals

    def _exchanges(self, side: _Emulated, step: RecordedStep, number: int, prices: Float64) -> None:
        theirs = side.kindred.exchanges.get(number, [])
        keys = [exchange.key for exchange in step.exchanges]
        partner = partners_of_exchanges(keys, [side.kindred.exchange_key(i) for i in theirs])
        for exchange, other in zip(step.exchanges, partner, strict=True):
            ns = exchange.ns if exchange.whole else self.least[exchange.key]
            self.whole[Slot.EXCHANGE] += exchange.ns
            if other >= 0:
                self.partnered[Slot.EXCHANGE] += exchange.ns
                prices[Slot.EXCHANGE, theirs[other]] = ns


class _Emulated:
    """One kind of rank, for matching. tokens, names: by operator the numbers of its name and what it was given, and of its name."""

    def __init__(self, kindred: Kindred, numbers: Numbers) -> None:
        self.kindred = kindred
        operators = kindred.process.operators
        self.given = kindred.given
        self.tokens = numbers([(operator.name, sizes) for operator, sizes in zip(operators, self.given, strict=True)])
        self.names = numbers([operator.name for operator in operators])
        self.thread = np.array([operator.thread for operator in operators], np.int64)
        self.step, parent = (np.array(column, np.int64) for column in kindred.placed[:2])
        self.parent = np.where((parent >= 0) & (self.step[parent] == self.step), parent, -1) if len(parent) else parent

    def threads(self, step: int) -> list[Int64]:
        """The operators of each thread in a step, in order."""
        members = np.flatnonzero(self.step == step)
        return [members[self.thread[members] == thread] for thread in unique(self.thread[members])]

    def claimants(self, step: int, claimed: NDArray[np.bool_]) -> tuple[Int64, Int64]:
        """The operators of a step, and for each the one that its work belongs to: itself or the innermost one around it that has a partner;
        -1 without."""
        members = np.flatnonzero(self.step == step)
        return members, enclosing(claimed[: len(self.parent)], self.parent)[members]

    def share_out(self, members: Int64, claimants: Int64, totals: Float64, prices: Float64) -> None:
        """Write what operators cost, each group's time in the shares that the models say. members, claimants: as above."""
        has = claimants >= 0
        members = members[has]
        if not len(members):
            return
        owners, group = np.unique(claimants[has], return_inverse=True)
        total = totals[:, owners]
        model = self.kindred.modelled[: Slot.EXCHANGE, members]
        whole = np.stack([np.bincount(group, shares) for shares in model])
        for slot in (Slot.CALLS, Slot.BEFORE):  # the emulated operator makes no such call
            total[Slot.OWN] += np.where(whole[slot] > 0, 0.0, total[slot])
        ratio = np.divide(total, whole, out=np.zeros_like(total), where=whole > 0)
        prices[: Slot.EXCHANGE, members] = model * ratio[:, group]


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


def partners_of_exchanges(ours: Sequence[tuple[Hashable, ...]], theirs: Sequence[tuple[Hashable, ...]]) -> list[int]:
    """For each exchange of one side its partner on the other, -1 without: by their keys, then by the kinds, which are first in them."""
    numbers, kinds = Numbers(), [[key[0] for key in keys] for keys in (ours, theirs)]
    return in_two_rounds((numbers(ours), numbers(theirs)), (numbers(kinds[0]), numbers(kinds[1]))).tolist()  # type: ignore[no-any-return]


def same_sizes(recorded: tuple[GivenTensor, ...], emulated: tuple[GivenTensor, ...]) -> bool:
    """Whether two calls may have been given the same: a recording need not have shapes, and of what stands in a list it has no types, or
    nothing; and a tensor that is empty in the script is a library's workspace, of which emulation does not know how long it is."""
    rest = iter(emulated)
    return all(any((size == its or 0 in its) and (kind == type_ or "" in (kind, type_)) for its, type_ in rest) for size, kind in recorded)


def sizes_in_words(tensors: tuple[GivenTensor, ...]) -> str:
    """Tensors for a message: "float32 [512, 256], int64 [4, 128]"."""
    return ", ".join(f"{kind} {list(shape)}".strip() for shape, kind in tensors) or "none"
