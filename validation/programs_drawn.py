"""Programs that are drawn: what a step does, how long that takes, what waits for what, and how steps and ranks differ, by a seed.

A drawn program is put together from parts of training loops. Nobody chooses them for what Lumos can answer, so a seed that nobody has read
says how it does on programs of that kind. Once its rows are read, its programs are as good as any that were written by hand.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from random import Random

from validation.machine import run
from validation.program import (
    Action,
    Give,
    InTurn,
    Kernel,
    Operator,
    Poll,
    Program,
    Rank,
    Record,
    Synchronise,
    SynchroniseEvent,
    Take,
    Thread,
    Wait,
    WaitEvent,
)
from validation.programs_by_hand import Case, Change
from validation.programs_one_rank import ITEM, TO_HOST, to_device
from validation.programs_ranks import collective

_FACTORS = (0.2, 0.5, 2.0, 3.0, 5.0)
#: Steps to run before the recorded ones, a multiple of every cycle.
_WARM_UP = 24
_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True)
class _Style:
    """What all steps and ranks of a drawn program have in common. cycle: of its steps. lengths: of each, how long its layers take.
    slow: of each rank, how long its layers take."""

    cycle: int
    lengths: tuple[float, ...]
    slow: tuple[float, ...]


def drawn(seed: int, number: int) -> tuple[Case, ...]:
    """So many programs that the seed draws, each with four changes to ask about, of what takes the longest."""
    return tuple(_case(Random(f"{seed}.{i}"), f"drawn {seed}.{i}") for i in range(number))


def _case(random: Random, name: str) -> Case:
    ranks = random.choice((1, 1, 1, 2, 2, 4))
    cycle = random.choice((1, 2, 2, 3, 4))
    style = _Style(
        cycle,
        tuple(_near(random, 1.0, 3) for _ in range(cycle)),
        tuple(_near(random, 1.0, 1.3) for _ in range(ranks)),
    )
    program = _program(random, style, ranks)
    times = Counter[str]()
    for rank in program.ranks:
        for thread in rank.threads[: len(rank.threads) - rank.unseen]:
            times.update(_times(thread))
    longest = [glob for glob, _ in times.most_common(8)]
    chosen = random.sample(longest, min(4, len(longest)))
    changes = tuple(Change(glob, random.choice(_FACTORS)) for glob in chosen)
    return Case(
        name, lambda: program, changes, _WARM_UP * _settled_after(program), 2 * cycle + 1 if cycle > 2 else 4 * cycle + 1, cycle=cycle
    )


def _settled_after(program: Program) -> int:
    """How many times the warm-up the program needs until a cycle takes as long as the one before."""
    for times in (1, 2, 4):
        ends = run(program, _WARM_UP * times + 24).completions()
        if abs((ends[-1] - ends[-13]) / max(ends[-13] - ends[-25], 1) - 1) < 1e-3:
            return times
    return 8


def _near(random: Random, middle: float, times: float) -> float:
    """A number from `middle` divided by `times` to as many times it, as likely a factor below as above."""
    return middle * math.exp(random.uniform(-1, 1) * math.log(times))


def _us(random: Random, middle: float, times: float = 4) -> float:
    return round(_near(random, middle, times), 1)


def _times(thread: Thread) -> Counter[str]:
    """How long everything takes that a change may scale, by name, in µs of all steps of a cycle."""
    out = Counter[str]()
    for action in thread:
        if isinstance(action, Operator):
            out[action.name] += action.us
            if action.kernel is not None:
                out[action.kernel.name] += action.kernel.us
        if isinstance(action, InTurn):
            for part in action.parts:
                out.update(_times(part))
    return out


def _program(random: Random, style: _Style, ranks: int) -> Program:
    """Ranks that all run the same parts, drawn once; each with its own speed."""
    seed = random.getrandbits(64)
    several = ranks > 1
    return Program(tuple(_rank(Random(seed), style, rank, several=several) for rank in range(ranks)))


def _rank(random: Random, style: _Style, number: int, *, several: bool) -> Rank:
    """One rank. random: in the same state for each."""
    slow = style.slow[number]
    main: list[Action] = [*_begin(random)]
    parts = [
        random.choice((_layers, _layers, _side_stream, _copies_out, _gathered if several else _layers)) for _ in range(random.randint(1, 3))
    ]
    for i, part in enumerate(parts):
        main += part(random, style, slow, i)
    threads: list[Thread] = []
    if random.random() < 0.4:
        nodes = _layers(random, style, slow, 7, "autograd::engine::evaluate_function: MmBackward0", "backward_gemm")
        main += [*(ITEM if random.random() < 0.5 else ()), Give("backward"), Take("gradients")]
        threads.append((Take("backward"), *nodes, *_reduced(random, several), Give("gradients")))
    else:
        main += _reduced(random, several)
    if several:
        main.append(Wait(7, 21))
    main += _optimizer(random, style)
    main += _once_a_cycle(random, style)
    main += _end(random, style)
    unseen = 0
    if random.random() < 0.35:
        loader, first, unseen = _loader(random, style)
        main = [first, *main, Give("free")]
        threads.append(loader)
    return Rank((tuple(main), *threads), unseen=unseen)


def _begin(random: Random) -> Thread:
    """What a step begins with: a wait for an earlier step, so that the CPU cannot run further ahead, and a batch that is copied."""
    out: list[Action] = []
    ahead = random.choice((None, None, 0, 1))
    if ahead is not None:
        out.append(SynchroniseEvent("step", ahead) if random.random() < 0.6 else Poll("step", _us(random, 25, 2), ahead))
    if random.random() < 0.5:
        out += [to_device(_us(random, 400)), Wait(7, 13)]
    return tuple(out)


def _layers(
    random: Random, style: _Style, slow: float, at: int, operator: str = "aten::linear", kernel: str = "ampere_sgemm_128x64_tn"
) -> Thread:
    """Layers whose kernels take as long as the step's length and the rank say."""
    number, us, kernel_us, other = random.randint(8, 30), _us(random, 18), _us(random, 60), _us(random, 12)
    kernel = f"{kernel}_{at}"

    def layer(length: float) -> Thread:
        gemm = Operator(operator, us, Kernel(kernel, round(kernel_us * length * slow, 1)), 6)
        return (gemm, Operator("aten::add_", us / 2, Kernel("vectorized_elementwise_kernel", other), 6))

    return _in_turn(tuple(layer(length) * number for length in style.lengths))


def _side_stream(random: Random, style: _Style, slow: float, at: int) -> Thread:
    """Blocks in which another stream works beside the first, and is awaited before the block ends."""
    number, us, side_us = random.randint(4, 12), _us(random, 100), _us(random, 100)
    name = f"side{at}"

    def block(length: float) -> Thread:
        return (
            Operator("aten::mul", 8, Kernel("mul_kernel", 30), 6),
            Record(name),
            WaitEvent(8, name),
            Operator("aten::conv", 10, Kernel("side_kernel", round(side_us * slow, 1), 8), 6),
            Record(f"{name} done", 8),
            Operator("aten::bmm", 10, Kernel("bmm_kernel", round(us * length * slow, 1)), 6),
            WaitEvent(7, f"{name} done"),
            Operator("aten::gelu", 8, Kernel("gelu_kernel", 25), 6),
        )

    return _in_turn(tuple(block(length) * number for length in style.lengths))


def _copies_out(random: Random, style: _Style, slow: float, at: int) -> Thread:
    """Results are copied to the CPU from a few buffers in turn; each is used again when its copy has ended, for which the stream waits, or
    the CPU."""
    number, buffers, us, copy_us = random.randint(6, 16), random.choice((2, 3)), _us(random, 120), _us(random, 120)
    on_cpu = random.random() < 0.5

    def parts(length: float) -> Thread:
        out: list[Action] = []
        for i in range(number):
            name = f"buffer{at}.{i % buffers}"
            out += [
                SynchroniseEvent(name) if on_cpu else WaitEvent(7, name),
                Operator("aten::matmul", 10, Kernel(f"buffer_gemm_{at}", round(us * length * slow, 1)), 6),
                Wait(13, 7),
                Operator("aten::copy_", 5, Kernel(TO_HOST, copy_us, 13), 6, "cudaMemcpyAsync"),
                Record(name, 13),
            ]
        return tuple(out)

    return _in_turn(tuple(map(parts, style.lengths)))


def _gathered(random: Random, style: _Style, slow: float, at: int) -> Thread:
    """Weights are gathered before each layer, no further ahead of the device than a few layers."""
    number, us, gather_us = random.randint(6, 14), _us(random, 200), _us(random, 120)
    ahead = random.choice((1, 2))
    gather = collective("_allgather_base", gather_us)[1]

    def layer(length: float) -> Thread:
        gemm = Operator("aten::mm", 10, Kernel(f"sharded_gemm_{at}", round(us * length * slow, 1)), 6)
        return (SynchroniseEvent(f"free{at}", ahead), gather, Wait(7, 20), gemm, Record(f"free{at}"))

    return _in_turn(tuple(layer(length) * number for length in style.lengths))


def _in_turn(parts: tuple[Thread, ...]) -> Thread:
    return parts[0] if len(parts) == 1 else (InTurn(parts),)


def _reduced(random: Random, several: bool) -> Thread:
    """The gradients, in buckets."""
    buckets, us = random.randint(1, 4), _us(random, 500)
    return collective("allreduce", us, 21) * buckets if several else ()


def _optimizer(random: Random, style: _Style) -> Thread:
    number, us, kernel_us = random.randint(4, 15), _us(random, 15), _us(random, 80)
    update = (Operator("aten::_foreach_add_", us, Kernel("multi_tensor_apply_kernel", kernel_us), 6),) * number
    accumulates = style.cycle > 1 and random.random() < 0.4
    return (InTurn(((),) * (style.cycle - 1) + (update,)),) if accumulates else update


def _once_a_cycle(random: Random, style: _Style) -> Thread:
    """What only one step of a cycle does: write a log, or a checkpoint."""
    us = _us(random, 1200)
    log: Thread = (*ITEM, Operator("log", us))
    save: Thread = (
        Wait(13, 7),
        Operator("aten::copy_", 5, Kernel(TO_HOST, _us(random, 600), 13), 6, "cudaMemcpyAsync"),
        Synchronise(13),
        Operator("write", us),
    )
    chosen = random.choice((None, None, log, save))
    return () if chosen is None or style.cycle == 1 else (InTurn(((),) * (style.cycle - 1) + (chosen,)),)


def _end(random: Random, style: _Style) -> Thread:
    """How a step ends: the loss is read, in each or in some, memory is freed, the device is awaited, or nothing is."""
    some: tuple[Thread, ...] = (ITEM, (Synchronise(),), (Synchronise(7),), (Synchronise(None, "cudaFree"),))
    chosen = random.choice((*some, ITEM, ()))
    sometimes = random.random() < 0.3 and style.cycle > 1
    return (*((InTurn((chosen, *((),) * (style.cycle - 1))),) if sometimes else chosen), Record("step"))


def _loader(random: Random, style: _Style) -> tuple[Thread, Take, int]:
    """The thread of a loader, the wait for its batches, and whether it is a process that is not recorded."""
    us, places = _us(random, 1500), random.choice((1, 2, 4))
    slow = tuple((Operator("aten::stack", round(us * (3 if i == 0 and style.cycle > 1 else 1), 1)),) for i in range(style.cycle))
    return (Take("free", places), *_in_turn(slow), Give("batch")), Take("batch", 0, _NEXT), int(random.random() < 0.4)
