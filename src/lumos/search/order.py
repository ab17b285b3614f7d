"""The passes of a pipeline as waves: passes that wait for nothing of their own wave are timed together, for many plans at once.

A pass starts when the one before it on its stage has ended, when its input has arrived, and (where transfers block) when
the output of the pass before it has been taken. A transfer starts when both sides are ready: the sender's pass has ended and
the receiver has reached it. So with x the time of a transfer and e the ends,

    start = max(e[before] + x · [it receives, or the one before it sends],  e[sender] + x,  e[the taker's pass before] + x)

which is what the assembled graph does with rendezvous, but for queues on the streams of the transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lumos.layout.arrange import HELD_BY_SENDS
from lumos.layout.pipeline import Action, Pass, last_gradients, schedule

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Kinds of passes that differ in length: those of `Pass`, and the backward or weight-gradient pass that completes a chunk's gradients.
FINAL, FINAL_WEIGHT = 4, 5
KINDS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Wave:
    """Passes that are timed together. `before`, `sender`, `taker`: passes (row `never` where none); `kind`, `place`: int[n]."""

    begin: int
    end: int
    before: Ints
    sender: Ints
    taker: Ints
    pays: Floats  # [n, 1]: 1 where the pass pays for a transfer after the one before it
    firsts: tuple[tuple[int, int], ...]  # (row in the wave, place) of passes of the first microbatch, forward


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """All passes of the stages, by waves.

    kind, place: of every pass, int[n]; place: chunk along the model. last: the last pass of every stage; finals: the pass
    that ends a chunk's step, int[stages, chunks] (row −1 none). steady: passes (a, b) `span` microbatches apart in the steady state.
    """

    stages: int
    chunks: int
    microbatches: int
    kind: Ints
    place: Ints
    waves: tuple[Wave, ...]
    last: Ints
    finals: Ints
    steady: tuple[tuple[int, int], ...]
    span: int

    def __len__(self) -> int:
        return len(self.kind)


def window(name: str, stages: int, chunks: int, microbatches: int) -> int:
    """Microbatches after which a pipeline only repeats itself, at most `microbatches`."""
    if stages == 1:
        return min(microbatches, 3)
    rounds = {"dualpipe": 6, "zero-bubble": 4}.get(name, 3 if chunks > 1 else 2)
    return min(microbatches, rounds * stages + (1 if rounds == 2 else 0))


def place_of(name: str, stage: int, chunk: int, stages: int) -> int:
    """Place of a stage's chunk along the model."""
    return stages - 1 - stage if name == "dualpipe" and chunk == 1 else chunk * stages + stage


@lru_cache(maxsize=4096)
def order_of(name: str, stages: int, chunks: int, microbatches: int, blocking: bool) -> Order:
    """The passes of `microbatches` microbatches. blocking: a stage waits for its transfers (no overlap)."""
    actions = [schedule(name, s, stages, microbatches, chunks) for s in range(stages)]
    held_chunks = 2 if name == "dualpipe" else chunks
    parts = stages if name == "dualpipe" else stages * chunks
    waits_for_send = blocking and chunks == 1 and name in HELD_BY_SENDS
    offset = np.concatenate(([0], np.cumsum([len(a) for a in actions]))).tolist()
    where: dict[tuple[bool, int, int], int] = {}  # (forward, place, microbatch) → pass
    flat: list[tuple[int, Action, int]] = []
    for s, listed in enumerate(actions):
        for action in listed:
            place = place_of(name, s, action.chunk, stages)
            if action.step is not Pass.WEIGHT:
                where[action.step is Pass.FORWARD, place, action.microbatch] = len(flat)
            flat.append((s, action, place))
    never = len(flat)
    sender, taker, before = [never] * never, [never] * never, [never] * never
    gives = [never] * never  # the pass that takes this one's output
    for i, (s, action, place) in enumerate(flat):
        if i > offset[s]:
            before[i] = i - 1
        if action.step is Pass.WEIGHT or parts == 1:
            continue
        forward = action.step is Pass.FORWARD
        source = place - 1 if forward else place + 1
        if 0 <= source < parts:
            sender[i] = where[forward, source, action.microbatch]
            gives[sender[i]] = i
    pays = [0.0] * never
    for i in range(never):
        out = before[i] != never and gives[before[i]] != never and waits_for_send
        pays[i] = 1.0 if sender[i] != never or out else 0.0
        if out:
            taker[i] = before[gives[before[i]]]
    level = _levels(before, sender, taker, offset, never)
    ranked = sorted(range(never), key=lambda i: level[i])
    new = np.empty(never + 1, np.int64)
    new[ranked] = np.arange(never)
    new[never] = never
    kind, place_column, finals = _kinds(flat, offset, held_chunks, stages)
    firsts = {i: flat[i][2] for i in range(never) if flat[i][1].step is Pass.FORWARD and flat[i][1].microbatch == 0}
    if name == "dualpipe":
        firsts = {}
    waves = _waves(ranked, level, new, (before, sender, taker), pays, firsts)
    last = new[[offset[s + 1] - 1 for s in range(stages)]]
    steady, span = _steady(name, stages, microbatches, parts, where, actions[0])
    pairs = [(int(new[a]), int(new[b])) for a, b in steady]
    return Order(
        stages, chunks, microbatches, kind[ranked], place_column[ranked], waves, last,
        np.where(finals >= 0, new[finals], -1), tuple(pairs), span,
    )  # fmt: skip


def _steady(
    name: str, stages: int, microbatches: int, parts: int, where: dict[tuple[bool, int, int], int], first_stage: list[Action]
) -> tuple[list[tuple[int, int]], int]:
    """Pairs of passes whose distance is the steady pace of a span of microbatches, and that span."""
    if name == "dualpipe":  # backward passes of the first stage, of either direction, in the middle of the step
        backward = [i for i, action in enumerate(first_stage) if action.step is Pass.BACKWARD]
        a, b = len(backward) // 3, 2 * len(backward) // 3
        return ([(backward[a], backward[b])], b - a) if b > a else ([], 1)
    newest = microbatches - 2  # the last one's gradients are exchanged beside its backward pass
    span = min(stages, newest)
    if span <= 0:
        return [], 1
    ends = [(where[False, parts - 1, newest - span], where[False, parts - 1, newest])]
    if name == "gpipe":  # all forward, then all backward in reverse
        forward = where[True, parts - 1, newest - span], where[True, parts - 1, newest]
        ends = [forward, (where[False, parts - 1, newest], where[False, parts - 1, newest - span])]
    return ends, span


def _levels(before: list[int], sender: list[int], taker: list[int], offset: list[int], never: int) -> list[int]:
    """Wave of every pass: one after the latest that it waits for."""
    level = [-1] * never + [-1]
    done = [False] * never + [True]
    at = list(offset[:-1])
    left = never
    while left:
        moved = False
        for s in range(len(at)):
            i = at[s]
            while i < offset[s + 1] and done[sender[i]] and done[taker[i]]:
                level[i] = 1 + max(level[before[i]], level[sender[i]], level[taker[i]])
                done[i] = True
                i += 1
                left -= 1
                moved = True
            at[s] = i
        assert moved, "a schedule that never ends"
    return level


def _kinds(flat: list[tuple[int, Action, int]], offset: list[int], chunks: int, stages: int) -> tuple[Ints, Ints, Ints]:
    kind = np.array([int(a.step) for _, a, _ in flat], np.int64)
    place = np.array([p for _, _, p in flat], np.int64)
    finals = np.full((stages, chunks), -1, np.int64)
    for s in range(stages):
        for chunk, i in last_gradients(action for _, action, _ in flat[offset[s] : offset[s + 1]]).items():
            finals[s, chunk] = offset[s] + i
            kind[offset[s] + i] = FINAL if flat[offset[s] + i][1].step is Pass.BACKWARD else FINAL_WEIGHT
    return kind, place, finals


def _waves(
    ranked: list[int], level: list[int], new: Ints, links: tuple[list[int], list[int], list[int]], pays: list[float], firsts: dict[int, int]
) -> tuple[Wave, ...]:
    waves = []
    begin = 0
    columns = [new[np.array(link)[ranked]] for link in links]
    paid = np.array(pays)[ranked]
    while begin < len(ranked):
        end = begin
        while end < len(ranked) and level[ranked[end]] == level[ranked[begin]]:
            end += 1
        first = tuple((i - begin, firsts[ranked[i]]) for i in range(begin, end) if ranked[i] in firsts)
        before, sender, taker = (c[begin:end] for c in columns)
        waves.append(Wave(begin, end, before, sender, taker, paid[begin:end, None], first))
        begin = end
    return tuple(waves)


@lru_cache(maxsize=65536)
def held(name: str, stages: int, chunks: int, microbatches: int, stage: int) -> Ints:
    """Microbatches of a stage that are held at once, where the next pass frees some: int[moments, 2, chunks], those that wait for
    their backward pass and those of which only the weight gradients are left."""
    held_chunks = 2 if name == "dualpipe" else chunks
    live = [0] * (2 * held_chunks)
    moments: set[tuple[int, ...]] = set()
    grown = False
    for action in schedule(name, stage, stages, microbatches, chunks):
        waiting, left = action.chunk, held_chunks + action.chunk
        if action.step in (Pass.BACKWARD, Pass.WEIGHT):
            if grown:
                moments.add(tuple(live))
            live[waiting if action.step is Pass.BACKWARD else left] -= 1
        elif action.step is Pass.FORWARD:
            live[waiting] += 1
        else:
            live[waiting] -= 1
            live[left] += 1
        grown = action.step in (Pass.FORWARD, Pass.INPUT)
    return np.array(sorted(moments), np.int64).reshape(-1, 2, held_chunks)
