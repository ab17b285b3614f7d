"""Programs whose threads, streams or ranks meet in more than one way, so that a change moves which of them the loop waits for."""

from __future__ import annotations

from validation.program import Action, Give, Kernel, Operator, Program, Rank, Record, Synchronise, SynchroniseEvent, Take, Thread, WaitEvent
from validation.programs_by_hand import Case, Change, one_rank
from validation.programs_one_rank import ITEM, add, linear, to_device
from validation.programs_ranks import collective


def copies_from_a_thread() -> Program:
    """A thread beside the loop copies batches to the device on a stream of its own, one ahead, and waits for each copy; the loop's stream
    waits for the batch by the event that the thread recorded."""
    main: Thread = (Take("copied"), WaitEvent(7, "batch"), *(linear(12, 60), add(12, 15)) * 30, *ITEM, Give("free"))
    worker: Thread = (
        Take("free", 1),
        Operator("aten::stack", 600),
        to_device(1500),
        Record("batch", 13),
        SynchroniseEvent("batch"),
        Give("copied"),
    )
    return Program((Rank((main, worker)),))


def three_branches() -> Program:
    """Three streams begin behind the same kernel, and one kernel waits for all three of them."""
    block: Thread = (
        add(8, 40),
        Record("fork"),
        *[
            action
            for stream, name, us in ((7, "left_kernel", 200), (8, "middle_kernel", 240), (9, "right_kernel", 220))
            for action in (
                *([] if stream == 7 else [WaitEvent(stream, "fork")]),
                Operator("aten::conv", 8, Kernel(name, us, stream), 6),
                Record(name, stream),
            )
        ],
        WaitEvent(7, "middle_kernel"),
        WaitEvent(7, "right_kernel"),
        linear(8, 60),
    )
    return one_rank(*block * 15, *ITEM)


def logs_on_one_rank() -> Program:
    """Three ranks reduce every layer; the first also reads the loss halfway and writes a log, for which the others wait."""

    def rank(*log: Action) -> Rank:
        layer: Thread = (linear(12, 90), add(12, 15), *collective("allreduce", 60))
        return Rank(((*layer * 12, *log, *layer * 12, add(), *ITEM),))

    return Program((rank(*ITEM, Operator("log", 1500)), rank(), rank()))


def fork_and_join() -> Program:
    """The loop hands work to two threads, does some itself, and goes on when both are done."""
    main: Thread = (
        *[Operator("aten::index", 40)] * 10,
        Give("left"),
        Give("right"),
        *[Operator("aten::mul", 30)] * 20,
        Take("left done"),
        Take("right done"),
        *(linear(20, 30),) * 30,
        Synchronise(),
    )
    left: Thread = (Take("left"), *[Operator("aten::sort", 100)] * 10, Give("left done"))
    right: Thread = (Take("right"), *[Operator("aten::unique", 90)] * 10, Give("right done"))
    return Program((Rank((main, left, right)),))


def full_queue_two_streams() -> Program:
    """The queue of launches is full of short kernels, and every tenth of them waits for a slow one of another stream."""
    part: Thread = (
        *[Operator("aten::add_", 2, Kernel("vectorized_elementwise_kernel", 14), 4)] * 9,
        Operator("aten::side", 2, Kernel("side_kernel", 170, 9), 4),
        Record("side", 9),
        WaitEvent(7, "side"),
        Operator("aten::add_", 2, Kernel("vectorized_elementwise_kernel", 14), 4),
    )
    return one_rank(*part * 120, Operator("aten::sort", 6000), Synchronise())


def unequal_queues() -> Program:
    """On one of two ranks every launch finds an idle device, on the other kernels queue behind each other: only that one shows the gap
    between kernels."""

    def rank(kernel_us: float) -> Rank:
        step: Thread = (*[Operator("aten::add_", 3, Kernel("vectorized_elementwise_kernel", kernel_us), 5)] * 300, *ITEM)
        return Rank(((*collective("allreduce", 20, 7)[1:], *step),))

    return Program((rank(2), rank(9)))


JOINED = (
    Case("copies from a thread", copies_from_a_thread, (Change("Memcpy HtoD*", 2), Change("aten::stack", 3), Change("*gemm*", 0.3)), 8),
    Case(
        "three branches",
        three_branches,
        (Change("middle_kernel", 0.3), Change("right_kernel", 2), Change("left_kernel", 2), Change("*gemm*", 3)),
    ),
    Case("a log on one rank", logs_on_one_rank, (Change("log", 0.1), Change("*nccl*", 3), Change("*gemm*", 0.3))),
    Case("fork and join", fork_and_join, (Change("aten::sort", 0.5), Change("aten::unique", 2), Change("aten::mul", 3))),
    Case(
        "queue full, two streams",
        full_queue_two_streams,
        (Change("side_kernel", 0.2), Change("*elementwise*", 3), Change("aten::sort", 4)),
        3,
    ),
    Case("unequal queues", unequal_queues, (Change("*elementwise*", 0.5), Change("*elementwise*", 4), Change("aten::add_", 3))),
)
