"""Programs whose steps differ: what a step does, or how long that takes, changes from step to step and comes round again."""

from __future__ import annotations

from dataclasses import replace

from validation.program import (
    Action,
    Give,
    InTurn,
    Kernel,
    Message,
    Operator,
    Pause,
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
from validation.programs_by_hand import Case, Change, one_rank
from validation.programs_one_rank import GEMM, ITEM, TO_HOST, add, linear, to_device
from validation.programs_ranks import collective, messages

_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def lengths(*kernel_us: float, layers: int = 30) -> InTurn:
    """Layers whose kernels take as long as the step's sequences ask for."""
    return InTurn(tuple((linear(12, us), add(12, us / 10)) * layers for us in kernel_us))


def lengths_in_turn() -> Program:
    """Sequences of three lengths come in turn, and the loss is read after every step."""
    return one_rank(lengths(40, 90, 200), *ITEM)


def lengths_ahead() -> Program:
    """The same where nothing waits for the device, and short steps are bound by the CPU."""
    return one_rank(InTurn(tuple((linear(40, us), add(40, 20)) * 50 for us in (25, 25, 160))), SynchroniseEvent("step", 1), Record("step"))


def accumulated_steps() -> Program:
    """The optimizer takes its step after every fourth batch only."""
    return one_rank(lengths(80), InTurn(((), (), (), (*[add(20, 150)] * 12, *ITEM))))


def loss_every_other() -> Program:
    """The loss is read in every other step; in between the CPU runs ahead."""
    return one_rank(*(linear(15, 70), add(15, 10)) * 40, InTurn(((), ITEM)))


def loader_every_other() -> Program:
    """A thread loads one batch ahead, and every second one takes longer than a step."""
    main: Thread = (Take("batch", 0, _NEXT), *(linear(15, 60), add(15, 20)) * 30, *ITEM, Give("free"))
    worker: Thread = (Take("free", 1), InTurn(((Operator("aten::stack", 900),), (Operator("aten::stack", 6000),))), Give("batch"))
    return Program((Rank((main, worker)),))


def unseen_loader_every_other() -> Program:
    """The same in a process of which nothing is recorded."""
    program = loader_every_other()
    return Program((replace(program.ranks[0], unseen=1),))


def bounded_loader() -> Program:
    """A loader thread of four free places, with one slow batch in four that they just hide."""
    main: Thread = (Take("batch", 0, _NEXT), *(linear(15, 90), add(15, 20)) * 20, *ITEM, Give("free"))
    load = InTurn(((Operator("aten::stack", 1200),),) * 3 + ((Operator("aten::stack", 4500),),))
    return Program((Rank((main, (Take("free", 4), load, Give("batch")))),))


def checkpoints() -> Program:
    """Weights are copied to the CPU and written in every third step."""
    write: Thread = (Wait(13, 7), Operator("aten::copy_", 5, Kernel(TO_HOST, 900, 13), 6, "cudaMemcpyAsync"), Synchronise(13))
    return one_rank(lengths(70), InTurn(((), (), (*write, Operator("write", 2500)))), *ITEM)


def three_buffers() -> Program:
    """Activations are copied to the CPU from three buffers in turn; a buffer is used again when its copy has ended."""
    parts: list[Action] = []
    for i in range(24):
        name = f"buffer{i % 3}"
        parts += [
            WaitEvent(7, name),
            linear(10, 120),
            Record("computed"),
            WaitEvent(13, "computed"),
            Operator("aten::copy_", 5, Kernel(TO_HOST, 170, 13), 6, "cudaMemcpyAsync"),
            Record(name, 13),
        ]
    return one_rank(*parts, *ITEM)


def three_buffers_lengths() -> Program:
    """The same with the CPU waiting for the buffers, and layers of two lengths in turn."""

    def parts(us: float) -> Thread:
        out: list[Action] = []
        for i in range(18):
            name = f"buffer{i % 3}"
            out += [SynchroniseEvent(name), linear(10, us), Wait(13, 7)]
            out += [Operator("aten::copy_", 5, Kernel(TO_HOST, 140, 13), 6, "cudaMemcpyAsync"), Record(name, 13)]
        return tuple(out)

    return one_rank(InTurn((parts(80), parts(220))))


def zero_three() -> Program:
    """Weights are gathered one layer ahead of the device at most; sequences have two lengths in turn."""

    def layers(us: float) -> Thread:
        gather = collective("_allgather_base", 160)[1]
        layer: Thread = (SynchroniseEvent("free", 1), gather, Wait(7, 20), linear(10, us), add(), Record("free"))
        back: Thread = (*layer[:-1], linear(10, us), Record("free"), *collective("_reduce_scatter_base", 120, 21))
        return (*layer * 10, *back * 10)

    return Program((Rank(((InTurn((layers(90), layers(260))), Wait(7, 21), add(10, 150), *ITEM),)),) * 2)


def slow_in_turn() -> Program:
    """Three ranks, of which another one has long sequences in every step."""

    def rank(number: int) -> Rank:
        def layer(us: float) -> Thread:
            return (linear(12, us), add(12, 15), *collective("allreduce", 60))

        parts = tuple(layer(200 if step == number else 110) * 20 for step in range(3))
        return Rank(((InTurn(parts), Wait(7, 20), add(12, 150), *ITEM),))

    return Program(tuple(map(rank, range(3))))


def slow_cpu_in_turn() -> Program:
    """Two ranks that prepare a long batch on the CPU in turn."""

    def rank(number: int) -> Rank:
        layer: Thread = (linear(15, 60), *collective("allreduce", 40))
        prepare = InTurn(tuple((Operator("prepare", 2500 if step == number else 300),) for step in range(2)))
        return Rank(((prepare, *layer * 25, Wait(7, 20), *ITEM),))

    return Program(tuple(map(rank, range(2))))


def experts_in_turn() -> Program:
    """Experts of four ranks get another share of the tokens in every step."""

    def rank(number: int) -> Rank:
        def layer(us: float) -> Thread:
            expert = Operator("aten::bmm", 10, Kernel("expert_gemm", us), 6)
            return (linear(10, 60), *collective("all_to_all", 80), Wait(7, 20), expert, *collective("all_to_all", 80), Wait(7, 20))

        shares = (120, 240, 150, 180)
        return Rank(((InTurn(tuple(layer(shares[(number + step) % 4]) * 15 for step in range(4))), *ITEM),))

    return Program(tuple(map(rank, range(4))))


def stages_of_lengths() -> Program:
    """A pipeline of two stages, whose microbatches have other lengths in every other step."""

    def stage(number: int, us: float) -> Thread:
        actions: list[Action] = []
        for _ in range(4):
            if number:
                actions += [*messages(60, Message(False, 0)), Wait(7, 20)]
            actions += [linear(8, us)] * 8
            if not number:
                actions += messages(60, Message(True, 1))
        for _ in range(4):
            if not number:
                actions += [*messages(60, Message(False, 1)), Wait(7, 20)]
            actions += [Operator("aten::mm", 8, Kernel("backward_gemm", 1.5 * us), 6)] * 8
            if number:
                actions += messages(60, Message(True, 0))
        return (*actions, add(10, 150), *ITEM)

    return Program(tuple(Rank(((InTurn((stage(i, 70), stage(i, 150))),),)) for i in range(2)))


def frees() -> Program:
    """Memory is freed in the middle of every step and at its end, which waits for the device."""
    half = (linear(10, 90), add(10, 15)) * 15
    return one_rank(*half, Synchronise(None, "cudaFree"), *half, Synchronise(None, "cudaFree"))


def frees_in_turn() -> Program:
    """Memory is freed in every other step, by calls of HIP."""
    half = (linear(10, 90), add(10, 15)) * 15
    return one_rank(*half, InTurn(((), (Synchronise(None, "hipFree"),))), *half, Synchronise(7))


def polls() -> Program:
    """The CPU asks every 40 µs whether the step before has ended, and does not go on until it has."""
    return one_rank(Poll("step", 40), *(linear(10, 90), add(10, 15)) * 20, Record("step"))


def polls_in_turn() -> Program:
    """A copy to the CPU is polled for in every step, and then written; layers have two lengths."""
    copy: Thread = (Wait(13, 7), Operator("aten::copy_", 5, Kernel(TO_HOST, 400, 13), 6, "cudaMemcpyAsync"), Record("copied", 13))
    return one_rank(lengths(60, 140), *copy, Poll("copied", 15), Operator("write", 700))


def backward_of_lengths() -> Program:
    """Another thread runs the backward pass; sequences have two lengths, and the loss is read before."""

    def node(us: float) -> Operator:
        return Operator("autograd::engine::evaluate_function: MmBackward0", 25, Kernel("backward_gemm", us), 6)

    main: Thread = (lengths(30, 120), *ITEM, Give("backward"), Take("gradients"), *[add(15, 25)] * 20)
    other: Thread = (Take("backward"), InTurn(((node(40),) * 50, (node(150),) * 50)), Give("gradients"))
    return Program((Rank((main, other)),))


def validation_steps() -> Program:
    """Every third step is followed by a forward pass without a backward, and Python that counts what was right."""
    train: Thread = (linear(14, 70), add(14, 20)) * 30
    evaluate: Thread = (*(Operator("aten::linear", 14, Kernel(GEMM, 50), 6),) * 30, *ITEM, Pause(1800))
    return one_rank(*train, *ITEM, InTurn(((), (), evaluate)))


def prefetched_lengths() -> Program:
    """The next batch is copied while this one is computed, and batches have two sizes."""

    def step(copy_us: float, us: float) -> Thread:
        copied: Thread = (WaitEvent(7, "batch"), WaitEvent(13, "used"), to_device(copy_us), Record("batch", 13))
        return (SynchroniseEvent("used", 1), *copied, *(linear(10, us), add(10, 20)) * 25, Record("used"))

    return one_rank(InTurn((step(1500, 60), step(4500, 120))))


DIFFERING = (
    Case(
        "lengths in turn",
        lengths_in_turn,
        (Change("*gemm*", 0.3), Change("*gemm*", 2), Change("aten::linear", 4), Change("*elementwise*", 5), Change("aten::add_", 3)),
        6,
        7,
        cycle=3,
    ),
    Case(
        "lengths, CPU ahead",
        lengths_ahead,
        (Change("*gemm*", 0.5), Change("*gemm*", 2), Change("aten::linear", 0.5), Change("aten::linear", 2), Change("*elementwise*", 4)),
        6,
        7,
        cycle=3,
    ),
    Case(
        "optimizer every fourth",
        accumulated_steps,
        (Change("*gemm*", 0.3), Change("*elementwise*", 3), Change("aten::linear", 4), Change("aten::add_", 4), Change("*gemm*", 2)),
        8,
        9,
        cycle=4,
    ),
    Case(
        "loss every other step",
        loss_every_other,
        (Change("*gemm*", 0.3), Change("*gemm*", 2), Change("aten::linear", 4), Change("*elementwise*", 4), Change("aten::add_", 0.3)),
        6,
        7,
        cycle=2,
    ),
    Case(
        "loader slow every other step",
        loader_every_other,
        (Change("aten::stack", 0.3), Change("aten::stack", 2), Change("*gemm*", 0.4), Change("*gemm*", 3), Change("*elementwise*", 3)),
        8,
        7,
        cycle=2,
    ),
    Case(
        "unseen loader, slow every other",
        unseen_loader_every_other,
        (Change("*gemm*", 0.4), Change("*gemm*", 4), Change("*elementwise*", 8), Change("aten::linear", 2)),
        8,
        7,
        cycle=2,
    ),
    Case(
        "loader with a bounded queue",
        bounded_loader,
        (Change("aten::stack", 0.5), Change("aten::stack", 2), Change("*gemm*", 0.4), Change("*gemm*", 2), Change("*elementwise*", 4)),
        12,
        9,
        cycle=4,
    ),
    Case(
        "checkpoints",
        checkpoints,
        (
            Change("write", 0.2),
            Change("Memcpy DtoH (Device -> Pinned)", 4),
            Change("*gemm*", 0.4),
            Change("*gemm*", 3),
            Change("aten::linear", 5),
        ),
        6,
        7,
        cycle=3,
    ),
    Case(
        "three buffers",
        three_buffers,
        (
            Change("Memcpy DtoH (Device -> Pinned)", 0.3),
            Change("Memcpy DtoH (Device -> Pinned)", 2),
            Change("*gemm*", 0.3),
            Change("*gemm*", 2),
            Change("aten::linear", 10),
        ),
    ),
    Case(
        "three buffers, two lengths",
        three_buffers_lengths,
        (Change("Memcpy*", 0.3), Change("Memcpy*", 2), Change("*gemm*", 0.3), Change("*gemm*", 2), Change("aten::linear", 12)),
        6,
        7,
        cycle=2,
    ),
    Case(
        "gathered one layer ahead",
        zero_three,
        (Change("*gemm*", 0.2), Change("*gemm*", 2), Change("*AllGather*", 3), Change("*ReduceScatter*", 5), Change("*AllGather*", 0.2)),
        6,
        5,
        cycle=2,
    ),
    Case(
        "ranks slow in turn",
        slow_in_turn,
        (Change("*gemm*", 0.4), Change("*gemm*", 2), Change("*nccl*", 3), Change("*elementwise*", 5), Change("aten::linear", 6)),
        6,
        7,
        cycle=3,
    ),
    Case(
        "CPUs slow in turn",
        slow_cpu_in_turn,
        (Change("prepare", 0.2), Change("prepare", 2), Change("*nccl*", 4), Change("*gemm*", 3), Change("aten::linear", 4)),
        6,
        5,
        cycle=2,
    ),
    Case(
        "experts in turn",
        experts_in_turn,
        (Change("expert_gemm", 0.4), Change("expert_gemm", 2), Change("*SendRecv*", 3), Change("ampere*", 3), Change("aten::bmm", 10)),
        8,
        9,
        cycle=4,
    ),
    Case(
        "stages of two lengths",
        stages_of_lengths,
        (Change("backward_gemm", 0.5), Change("ampere*", 2), Change("*SendRecv*", 5), Change("*gemm*", 0.3), Change("aten::linear", 10)),
        6,
        5,
        cycle=2,
    ),
    Case("memory freed", frees, (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("*elementwise*", 5), Change("aten::linear", 5))),
    Case(
        "memory freed every other step",
        frees_in_turn,
        (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("*elementwise*", 5), Change("aten::linear", 9)),
        6,
        7,
        cycle=2,
    ),
    Case("polled events", polls, (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("*elementwise*", 5), Change("aten::linear", 9))),
    Case(
        "polled copies",
        polls_in_turn,
        (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("Memcpy*", 4), Change("write", 5), Change("aten::linear", 6)),
        6,
        7,
        cycle=2,
    ),
    Case(
        "backward of two lengths",
        backward_of_lengths,
        (Change("*gemm*", 0.3), Change("backward_gemm", 2), Change("*Backward0", 3), Change("*elementwise*", 5), Change("aten::linear", 4)),
        6,
        7,
        cycle=2,
    ),
    Case(
        "evaluation every third step",
        validation_steps,
        (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("*elementwise*", 4), Change("aten::linear", 4)),
        6,
        7,
        cycle=3,
    ),
    Case(
        "batches of two sizes",
        prefetched_lengths,
        (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("Memcpy*", 0.3), Change("Memcpy*", 3), Change("aten::linear", 9)),
        6,
        7,
        cycle=2,
    ),
)
