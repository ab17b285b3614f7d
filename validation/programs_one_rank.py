"""Programs of one rank: streams that wait for each other, calls that wait for the device, threads that wait for threads."""

from __future__ import annotations

from validation.program import (
    Action,
    Give,
    Kernel,
    LaunchGraph,
    Operator,
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

GEMM, ELEMENTWISE = "ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel"
TO_DEVICE, TO_HOST = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"


def linear(us: float = 10, kernel_us: float = 400, stream: int = 7) -> Operator:
    """A multiplication."""
    return Operator("aten::linear", us, Kernel(GEMM, kernel_us, stream), 6)


def add(us: float = 10, kernel_us: float = 20, stream: int = 7) -> Operator:
    """An operator on every element."""
    return Operator("aten::add_", us, Kernel(ELEMENTWISE, kernel_us, stream), 6)


def to_device(us: float, stream: int = 13) -> Operator:
    """A copy to the device that does not block its call."""
    return Operator("aten::copy_", 5, Kernel(TO_DEVICE, us, stream), 6, "cudaMemcpyAsync")


#: The value of a tensor on the CPU: the copy blocks its call, and the thread then waits for the stream.
ITEM: Thread = (
    Operator("aten::_local_scalar_dense", 5, Kernel("Memcpy DtoH (Device -> Pageable)", 2), 8, "cudaMemcpyAsync", blocking=True),
    Synchronise(7),
)


def limiter() -> Program:
    """Weights are copied layer by layer; a layer is not begun before the second layer back has been computed."""
    layer: Thread = (SynchroniseEvent("free", 1), to_device(300), Wait(7, 13), linear(), add(), Record("free"))
    return one_rank(*layer * 30)


def prefetch() -> Program:
    """The next batch is copied on a side stream while this one is computed; the CPU runs at most two steps ahead."""
    compute = (linear(10, 80), add(10, 20)) * 30
    return one_rank(
        SynchroniseEvent("used", 1),
        WaitEvent(7, "batch"),
        WaitEvent(13, "used"),
        to_device(2000),
        Record("batch", 13),
        *compute,
        Record("used"),
    )


def two_streams() -> Program:
    """Two streams wait for events that other work of the awaited stream was launched behind."""
    block: Thread = (
        add(8, 100),
        Record("first"),
        Operator("aten::mul", 8, Kernel("mul_kernel", 300), 6),
        WaitEvent(8, "first"),
        linear(8, 250, 8),
        Record("second", 8),
        Operator("aten::gelu", 8, Kernel("gelu_kernel", 60, 8), 6),
        WaitEvent(7, "second"),
    )
    return one_rank(*block * 15, add(), *ITEM)


def events_together() -> Program:
    """Events that are recorded just before they are awaited, the other way round in every other block."""
    one: Thread = (add(8, 100), Record("there"), WaitEvent(8, "there"), linear(8, 250, 8))
    other: Thread = (Record("back", 8), WaitEvent(7, "back"), Operator("aten::mul", 8, Kernel("mul_kernel", 90), 6))
    return one_rank(*(*one, *other) * 20, *ITEM)


def item() -> Program:
    """The loss is read in the middle and at the end of every step."""
    half = (linear(25, 40), add(25, 10)) * 20
    return one_rank(*half, *ITEM, *half, *ITEM)


def item_host_bound() -> Program:
    """The loss is read after every step, and the CPU is slower than the device."""
    return one_rank(*(linear(60, 30), add(40, 10)) * 30, *ITEM)


def graph() -> Program:
    """Graphs of two branches, between operators that are launched one by one."""
    main, side = (Kernel("fused_kernel", 30),) * 10, (Kernel("side_kernel", 40, 9),) * 6
    part: Thread = (*(add(10, 25),) * 10, LaunchGraph((*main, *side), 60))
    return one_rank(*part * 6, *ITEM)


def launch_bound() -> Program:
    """Many kernels that take less time than their launches."""
    return one_rank(*[Operator("aten::add_", 3, Kernel(ELEMENTWISE, 2), 5)] * 400, *ITEM)


def autograd() -> Program:
    """The loss is read before the backward pass, which another thread launches; then the optimizer."""
    node = Operator("autograd::engine::evaluate_function: MmBackward0", 30, Kernel(GEMM, 50), 6)
    main: Thread = (*[linear(20, 30)] * 40, *ITEM, Give("backward"), Take("gradients"), *[add(15, 25)] * 20)
    return Program((Rank((main, (Take("backward"), *[node] * 60, Give("gradients")))),))


def autograd_synchronised() -> Program:
    """The same with a wait for the device at the end of the step, device-bound."""
    node = Operator("autograd::engine::evaluate_function: MmBackward0", 12, Kernel(GEMM, 90), 6)
    main: Thread = (*[linear(10, 45)] * 40, Give("backward"), Take("gradients"), *[add(8, 25)] * 20, Synchronise())
    return Program((Rank((main, (Take("backward"), *[node] * 60, Give("gradients")))),))


def phases() -> Program:
    """Every phase of a step ends in a wait for the whole device, as in loops that are timed by hand."""
    phase: Thread = (*(linear(12, 35), add(12, 15, 8)) * 10, Synchronise())
    return one_rank(*phase * 5)


def offload() -> Program:
    """Gradients are copied to the CPU, which takes the optimizer's step bucket by bucket while the rest is copied."""
    backward: Thread = (*[linear(8, 60)] * 50, Record("gradients"), WaitEvent(13, "gradients"))
    copies = [
        action
        for i in range(8)
        for action in (Operator("aten::copy_", 5, Kernel(TO_HOST, 200, 13), 6, "cudaMemcpyAsync"), Record(f"bucket{i}", 13))
    ]
    steps = [action for i in range(8) for action in (SynchroniseEvent(f"bucket{i}"), Operator("cpu_adam", 260), to_device(150, 14))]
    return one_rank(*backward, *copies, *steps, Wait(7, 14))


def two_threads() -> Program:
    """The thread of autograd records an event behind each node, and the loop's thread lets its optimizer's stream wait for them."""
    node = Operator("autograd::engine::evaluate_function: MmBackward0", 30, Kernel("backward_gemm", 80), 6)
    nodes: list[Action] = [action for i in range(10) for action in (node, node, Record(f"gradient{i}"), add(10, 90))]
    updates: list[Action] = [
        action for i in range(10) for action in (WaitEvent(9, f"gradient{i}"), Operator("update", 15, Kernel("adam_kernel", 160, 9), 6))
    ]
    main: Thread = (*[linear(20, 30)] * 30, Give("backward"), Take("gradients"), *updates, Wait(7, 9), *ITEM)
    return Program((Rank((main, (Take("backward"), *nodes, Give("gradients")))),))


def double_buffers() -> Program:
    """Results are copied to the CPU from two buffers in turn, and the CPU reads a buffer when its copy two parts back has ended."""
    parts: list[Action] = []
    for i in range(24):
        name = f"buffer{i % 2}"
        parts += [
            SynchroniseEvent(name),
            Operator("aten::numpy", 120),
            linear(10, 150),
            add(10, 10),
            Wait(13, 7),
            Operator("aten::copy_", 5, Kernel(TO_HOST, 130, 13), 6, "cudaMemcpyAsync"),
            Record(name, 13),
        ]
    return one_rank(*parts)


def graph_joined_inside() -> Program:
    """A graph whose side branch begins behind the third kernel of the other one: the recording does not say so."""
    kernels = (*(Kernel("fused_kernel", 30),) * 3, Kernel("side_kernel", 100, 9, behind=7), *(Kernel("fused_kernel", 30),) * 4)
    return one_rank(*(*(add(10, 25),) * 10, LaunchGraph(kernels, 60)) * 6, *ITEM)


_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def _loader(load_us: float, unseen: int) -> Program:
    main: Thread = (Take("batch", 0, _NEXT), *(linear(15, 60), add(15, 20)) * 30, *ITEM, Give("free"))
    worker: Thread = (Take("free", 2), *[Operator("aten::stack", load_us / 10)] * 10, Give("batch"))
    return Program((Rank((main, worker), unseen=unseen),))


def loader_thread() -> Program:
    """A thread beside the loop loads two batches ahead and is slower than the loop."""
    return _loader(4500, 0)


def loader_process() -> Program:
    """The same in another process, of which the recording has nothing; it is faster than the loop, which never waits."""
    return _loader(2000, 1)


def slow_loader_process() -> Program:
    """A loader in another process that is slower than the loop: what the loop waits for is not in the recording."""
    return _loader(4500, 1)


ONE_RANK = (
    Case("limiter", limiter, (Change("*gemm*", 0.2), Change("Memcpy*", 2), Change("*elementwise*", 4))),
    Case("prefetch", prefetch, (Change("*gemm*", 0.3), Change("Memcpy*", 3), Change("aten::linear", 10))),
    Case("two streams", two_streams, (Change("mul_kernel", 2), Change("mul_kernel", 0.1), Change("*gemm*", 2), Change("gelu_kernel", 5))),
    Case("two streams in turn", events_together, (Change("*gemm*", 0.5), Change("mul_kernel", 3), Change("*elementwise*", 0.2))),
    Case("loss read twice", item, (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("aten::linear", 0.4))),
    Case("loss read, host-bound", item_host_bound, (Change("aten::linear", 0.2), Change("*gemm*", 4), Change("*gemm*", 0.5))),
    Case("graphs", graph, (Change("side_kernel", 3), Change("fused_kernel", 0.5), Change("*elementwise*", 2))),
    Case("launch-bound", launch_bound, (Change("cudaLaunchKernel", 0.5), Change("aten::add_", 2), Change("*elementwise*", 5))),
    Case("autograd", autograd, (Change("*gemm*", 0.3), Change("*gemm*", 3), Change("*Backward0", 2))),
    Case(
        "autograd, device-bound",
        autograd_synchronised,
        (Change("*gemm*", 0.1), Change("*Backward0", 20), Change("*elementwise*", 3)),
    ),
    Case("phases", phases, (Change("*gemm*", 0.3), Change("*elementwise*", 4), Change("aten::linear", 3))),
    Case("optimizer on the CPU", offload, (Change("cpu_adam", 0.2), Change("Memcpy DtoH*", 3), Change("*gemm*", 0.5))),
    Case("two threads", two_threads, (Change("adam_kernel", 0.2), Change("backward_gemm", 3), Change("*elementwise*", 0.1))),
    Case("double buffers", double_buffers, (Change("aten::numpy", 2), Change("Memcpy*", 3), Change("*gemm*", 0.2))),
    Case("graphs joined inside", graph_joined_inside, (Change("side_kernel", 2), Change("fused_kernel", 2))),
    Case("loader thread", loader_thread, (Change("aten::stack", 0.5), Change("*gemm*", 0.5), Change("*gemm*", 3)), 10),
    Case("loader process", loader_process, (Change("*gemm*", 2), Change("aten::linear", 3), Change("*gemm*", 0.3))),
    Case("slow loader process", slow_loader_process, (Change("*gemm*", 0.5), Change("*gemm*", 3)), 10),
)
