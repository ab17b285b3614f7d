"""Programs of several ranks: collectives, messages, and ranks that wait for each other."""

from __future__ import annotations

from validation.program import (
    Action,
    Collective,
    Exchange,
    Give,
    Kernel,
    Message,
    Operator,
    Program,
    Rank,
    Record,
    SynchroniseEvent,
    Take,
    Thread,
    Wait,
)
from validation.programs_by_hand import Case, Change
from validation.programs_one_rank import GEMM, ITEM, add, linear


def collective(kind: str, us: float, stream: int = 20, ranks: tuple[int, ...] = ()) -> Thread:
    """A collective on a stream of its own, which first waits for what has been computed."""
    names = {
        "allreduce": ("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        "_allgather_base": ("c10d::_allgather_base_", "ncclDevKernel_AllGather_RING_LL"),
        "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"),
        "all_to_all": ("c10d::alltoall_base_", "ncclDevKernel_SendRecv"),
    }
    operator, kernel = names[kind]
    return Wait(stream, 7), Operator(operator, 12, Kernel(kernel, us, stream, (Collective(kind, ranks),)), 8)


def messages(us: float, *meets: Message) -> Thread:
    """Messages that are launched together, on a stream that first waits for what has been computed."""
    name = "c10d::coalesced" if len(meets) > 1 else "c10d::send" if meets[0].sends else "c10d::recv_"
    return Wait(20, 7), Operator(name, 12, Kernel("ncclDevKernel_SendRecv", us, 20, meets), 8)


def same(ranks: int, *actions: Action) -> Program:
    """A program in which all ranks do the same."""
    return Program((Rank((actions,)),) * ranks)


def fully_sharded() -> Program:
    """Weights are gathered layer by layer, no more than two layers ahead of the device; gradients are scattered behind the backward."""
    forward: Thread = (
        SynchroniseEvent("free", 1),
        Operator("c10d::_allgather_base_", 12, Kernel("ncclDevKernel_AllGather_RING_LL", 250, 20, (Collective("_allgather_base"),)), 8),
        Wait(7, 20),
        linear(10, 300),
        add(),
        Record("free"),
    )
    backward: Thread = (*forward[:-1], linear(10, 300), Record("free"), *collective("_reduce_scatter_base", 200, 21))
    return same(2, *forward * 12, *backward * 12, Wait(7, 21), add(10, 200))


def straggling_device() -> Program:
    """The kernels of one rank of four take longer."""

    def rank(us: float) -> Rank:
        layer: Thread = (Operator("aten::linear", 10, Kernel(GEMM, us), 6), add(), *collective("allreduce", 150))
        return Rank(((*layer * 25, Wait(7, 20), add(10, 200), *ITEM),))

    return Program((rank(300), rank(300), rank(420), rank(300)))


def straggling_host() -> Program:
    """One rank of two has operators that take four times as long on its CPU, and all read the loss."""

    def rank(extra: str, us: float) -> Rank:
        layer: Thread = (Operator(extra, us), linear(15, 60), *collective("allreduce", 40))
        return Rank(((*layer * 30, Wait(7, 20), *ITEM),))

    return Program((rank("aten::index", 40), rank("aten::unique", 160)))


def eight_ranks() -> Program:
    """Eight ranks gather and reduce in turn; each of the later ones computes a little longer."""

    def rank(number: int) -> Rank:
        layer: Thread = (
            *collective("_allgather_base", 90),
            Wait(7, 20),
            linear(10, 200 + 10 * number),
            *collective("allreduce", 120),
            Wait(7, 20),
        )
        return Rank(((*layer * 26, add(), *ITEM),))

    return Program(tuple(map(rank, range(8))))


def two_stages() -> Program:
    """A pipeline of two stages, four microbatches, one forward and one backward in turn; opposite messages are launched together."""

    def forward(us: float) -> Thread:
        return (linear(8, us), add(8, 30)) * 8

    def backward(us: float) -> Thread:
        return (Operator("aten::mm", 8, Kernel("backward_gemm", us), 6),) * 14

    def exchange(peer: int, *sends: bool) -> Thread:
        return (*messages(80, *(Message(way, peer) for way in sends)), Wait(7, 20))

    first: list[Action] = [*forward(90), *exchange(1, True)]
    for _ in range(3):
        first += [*forward(90), *exchange(1, True, False), *backward(100)]
    first += [*exchange(1, False), *backward(100), add(10, 200), *ITEM]
    last: list[Action] = [*exchange(0, False)]
    for _ in range(3):
        last += [*forward(110), *backward(120), *exchange(0, True, False)]
    last += [*forward(110), *backward(120), *exchange(0, True), add(10, 200), *ITEM]
    return Program((Rank((tuple(first),)), Rank((tuple(last),))))


def four_stages() -> Program:
    """A pipeline of four stages that runs all forwards of a step, then all backwards, every message on its own."""

    def stage(number: int) -> Rank:
        actions: list[Action] = []
        for name, us, here, there in (
            ("forward_gemm", 60 + 10 * number, number - 1, number + 1),
            ("backward_gemm", 90, number + 1, number - 1),
        ):
            for _ in range(4):
                if 0 <= here < 4:
                    actions += [*messages(50, Message(False, here)), Wait(7, 20)]
                actions += [Operator("aten::mm", 8, Kernel(name, us), 6)] * 7
                if 0 <= there < 4:
                    actions += messages(50, Message(True, there))
        return Rank(((*actions, add(10, 200), *ITEM),))

    return Program(tuple(map(stage, range(4))))


def grouped_stages() -> Program:
    """A pipeline of three stages in which all steps of all stages run at once: every stage exchanges with both of its neighbours in one
    launch, then computes."""

    def stage(number: int) -> Rank:
        meets = []
        for peer in (number - 1, number + 1):
            if 0 <= peer < 3:
                meets += [Message(True, peer), Message(False, peer)]
        part: Thread = (*messages(90, *meets), Wait(7, 20), *[linear(8, 50 + 5 * number)] * 8, add())
        return Rank(((*part * 8, *ITEM),))

    return Program(tuple(map(stage, range(3))))


def overlapping_groups() -> Program:
    """Gathers on one stream and reductions on another overlap with the computation, on four ranks whose order of calls is the same."""

    def rank(us: float) -> Rank:
        layer: Thread = (
            *collective("_allgather_base", 110, 20),
            linear(10, us),
            Wait(7, 20),
            Operator("aten::bmm", 10, Kernel("expert_gemm", 90), 6),
            *collective("_reduce_scatter_base", 140, 21),
        )
        return Rank(((*layer * 20, Wait(7, 21), *[add(10, 30)] * 4, *ITEM),))

    return Program((rank(120), rank(150), rank(120), rank(130)))


def accumulation() -> Program:
    """Four microbatches; only the last one's gradients are reduced, in four buckets behind the backward."""
    micro: Thread = (*[linear(10, 70)] * 12, *[Operator("aten::mm", 10, Kernel("backward_gemm", 90), 6)] * 12)
    bucket: Thread = (*[Operator("aten::mm", 10, Kernel("backward_gemm", 90), 6)] * 3, *collective("allreduce", 600))
    return same(2, *micro * 3, *[linear(10, 70)] * 12, *bucket * 4, Wait(7, 20), *[add(10, 60)] * 4, *ITEM)


def data_parallel() -> Program:
    """Another thread runs the backward pass and launches the reductions; the loop's thread then takes the optimizer's step."""

    def rank(us: float) -> Rank:
        node = Operator("autograd::engine::evaluate_function: MmBackward0", 25, Kernel("backward_gemm", us), 6)
        bucket: Thread = (*[node] * 10, *collective("allreduce", 500))
        main: Thread = (*[linear(20, 40)] * 30, *ITEM, Give("backward"), Take("gradients"), Wait(7, 20), *[add(10, 30)] * 10)
        return Rank((main, (Take("backward"), *bucket * 4, Give("gradients"))))

    return Program((rank(60), rank(75)))


def two_by_two() -> Program:
    """Two groups of two ranks reduce every layer, and across them two more groups reduce the gradients."""

    def rank(number: int) -> Rank:
        row, column = ((0, 1), (2, 3))[number // 2], ((0, 2), (1, 3))[number % 2]
        layer: Thread = (linear(10, 120 + 15 * number), *collective("allreduce", 80, 20, row), Wait(7, 20))
        return Rank(((*layer * 24, *collective("allreduce", 900, 21, column), Wait(7, 21), add(10, 100), *ITEM),))

    return Program(tuple(map(rank, range(4))))


def experts() -> Program:
    """Tokens are exchanged between four ranks before and after the experts, of which one has more to do."""

    def rank(us: float) -> Rank:
        layer: Thread = (
            linear(10, 60),
            *collective("all_to_all", 100),
            Wait(7, 20),
            Operator("aten::bmm", 10, Kernel("expert_gemm", us), 6),
            *collective("all_to_all", 100),
            Wait(7, 20),
        )
        return Rank(((*layer * 26, *ITEM),))

    return Program((rank(150), rank(260), rank(150), rank(150)))


def _on_cpus(*operator_us: float, buckets: int) -> Program:
    """Ranks that compute on the CPU. A thread of each carries out the reductions, which the loop's thread awaits in the end."""

    def rank(us: float) -> Rank:
        name = "aten::slow_mm" if us > min(operator_us) else "aten::mm"
        bucket: Thread = (*[Operator(name, us)] * 16, Operator("c10d::allreduce_", 20), Give("reduce"))
        main: Thread = (
            *[Operator("aten::linear", 50)] * 20,
            *bucket * buckets,
            *[Take("reduced")] * buckets,
            *[Operator("aten::add_", 30)] * 20,
        )
        carrier: Thread = (Take("reduce"), Exchange("gloo:all_reduce", 1500), Give("reduced")) * buckets
        return Rank((main, carrier))

    return Program(tuple(map(rank, operator_us)))


def on_cpus() -> Program:
    """Two ranks that compute on the CPU and reduce one bucket."""
    return _on_cpus(100, 100, buckets=1)


def straggling_cpu() -> Program:
    """Four ranks that compute on the CPU, one of them slower, and reduce three buckets."""
    return _on_cpus(60, 60, 150, 60, buckets=3)


RANKS = (
    Case("fully sharded", fully_sharded, (Change("*gemm*", 0.2), Change("*AllGather*", 3), Change("*ReduceScatter*", 4))),
    Case("straggling device", straggling_device, (Change("*gemm*", 0.5), Change("*nccl*", 3), Change("*elementwise*", 4))),
    Case("straggling host", straggling_host, (Change("aten::unique", 0.25), Change("*nccl*", 5), Change("*gemm*", 4))),
    Case("eight ranks", eight_ranks, (Change("*AllGather*", 0.2), Change("*AllReduce*", 2), Change("*gemm*", 0.5))),
    Case("two stages", two_stages, (Change("*SendRecv*", 4), Change("backward_gemm", 0.5), Change("ampere*", 2))),
    Case("four stages", four_stages, (Change("*SendRecv*", 5), Change("forward_gemm", 2), Change("backward_gemm", 0.5))),
    Case("stages in groups", grouped_stages, (Change("*SendRecv*", 3), Change("*gemm*", 0.3), Change("*gemm*", 2))),
    Case("overlapping groups", overlapping_groups, (Change("*AllGather*", 3), Change("*ReduceScatter*", 3), Change("expert_gemm", 0.2))),
    Case("gradients accumulated", accumulation, (Change("*nccl*", 3), Change("backward_gemm", 0.3), Change("*nccl*", 0.2))),
    Case("data-parallel", data_parallel, (Change("*nccl*", 3), Change("backward_gemm", 0.3), Change("*Backward0", 3))),
    Case("two by two", two_by_two, (Change("*nccl*", 0.3), Change("*gemm*", 2), Change("*nccl*", 2))),
    Case("experts", experts, (Change("expert_gemm", 0.4), Change("*SendRecv*", 3))),
    Case("CPU ranks", on_cpus, (Change("aten::mm", 0.5), Change("gloo:all_reduce", 3), Change("aten::linear", 2))),
    Case("straggling CPU rank", straggling_cpu, (Change("aten::slow_mm", 0.4), Change("gloo:all_reduce", 4), Change("aten::mm", 3))),
)
