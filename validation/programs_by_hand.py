"""Programs whose times a person can work out on paper: the docstrings do so, before and after each change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from validation.program import Action, Collective, Give, Kernel, Operator, Pause, Program, Rank, Synchronise, Take, Thread, Wait


class Change(NamedTuple):
    """Everything whose name matches `glob` takes `factor` times as long. by_hand_ms: the step then, where it was worked out on paper."""

    glob: str
    factor: float
    by_hand_ms: float | None = None


@dataclass(frozen=True)
class Case:
    """A program and the changes to ask about. by_hand_ms: its step, where it was worked out on paper.

    warm_up: the steps that run before the recorded ones, enough for the job to have settled. cycle: after how many steps what a step does
    comes round again; the recording shows whole cycles after its first step.
    """

    name: str
    program: Callable[[], Program]
    changes: tuple[Change, ...]
    warm_up: int = 6
    recorded: int = 4
    by_hand_ms: float | None = None
    cycle: int = 1


def device_bound() -> Program:
    """300 operators launch one kernel each, and nothing ever waits for the device, so the CPU runs ahead until the queue is full.

    The CPU needs 45 + 8 = 53 µs an operator, 15.90 ms a step; the device 60 µs a kernel and 2 µs between two, 18.60 ms a step.
    So a step takes 18.60 ms. With kernels of half the time the device needs 300 × (30 + 2) µs = 9.60 ms, and the CPU sets the
    pace: 15.90 ms. With kernels of 0.9 times their time it is still the device: 300 × (54 + 2) µs = 16.80 ms. With operators
    that take twice as long, the CPU needs 300 × (90 + 8) µs = 29.40 ms.
    """
    return one_rank(*[Operator("aten::mul", 45, Kernel("vectorized_elementwise_kernel", 60), 8)] * 300)


def host_bound() -> Program:
    """Forward on the loop's thread, backward on the thread of autograd, optimizer and Python on the loop's thread again.

    The CPU needs 100 × (60 + 10) µs = 7 ms for the forward, 100 × (80 + 10) µs = 9 ms for the backward, 20 × (40 + 10) µs = 1
    ms for the optimizer, and 3 ms for Python: 20 ms a step. The device needs 200 × (20 + 2) µs for the multiplications and 20 ×
    (65 + 2) µs for the optimizer, 5.74 ms. Multiplications in a tenth of their time change nothing. Operators of the backward
    in half their time save 100 × 40 µs: 16 ms. Multiplications that take six times as long make the device set the pace: 200 ×
    (120 + 2) + 1340 µs = 25.74 ms.
    """
    gemm, update = Kernel("ampere_sgemm_128x64_tn", 20), Kernel("multi_tensor_apply_kernel", 65)
    forward = [Operator("aten::linear", 60, gemm, 10)] * 100
    backward = [Operator("autograd::engine::evaluate_function: AddmmBackward0", 80, gemm, 10)] * 100
    optimizer = [Operator("aten::_foreach_add_", 40, update, 10)] * 20
    main: Thread = (*forward, Give("backward"), Take("gradients"), *optimizer, Pause(3000))
    return Program((Rank((main, (Take("backward"), *backward, Give("gradients")))),))


def queue_bound() -> Program:
    """3,000 short kernels, then 20 ms of CPU work while the device finishes them, then a wait for the device.

    A launch takes 4 µs, a kernel 8 µs and 2 µs until the next. The last launch cannot begin before there is a place in the
    queue, which is when kernel 3000 - 1022 = 1978 has ended. The first kernel starts after the first launch, 4 µs, and the
    latency, 5 µs; kernel 1978 then ends after 1978 × 10 - 2 µs, at 19.787 ms. The last launch returns 4 µs later, and the CPU
    work ends 20 ms after that, at 39.791 ms. The device is done at 9 + 3000 × 10 - 2 µs = 30.007 ms, so that the
    synchronisation only costs its call, 1 µs: 39.792 ms a step. Without a limit of the queue it would be 12 + 20 ms.

    With kernels of 6 µs, 0.75 times their time, kernel 1978 ends at 9 + 1978 × 8 - 2 µs = 15.831 ms: 35.836 ms a step. With
    kernels of 4 µs, half their time, the queue never fills: the launches take 3000 × 4 µs = 12 ms, and the step 32.001 ms. With
    CPU work of 2 ms instead of 20 the wait for the device ends the step: it is done at 30.007 ms, and the call returns 8 µs
    later, 30.015 ms.
    """
    launches = [Operator("aten::add_", 0, Kernel("elementwise_kernel", 8), 4)] * 3000
    return one_rank(*launches, Operator("aten::sort", 20_000), Synchronise())


def loader_bound() -> Program:
    """Each step ends with a wait for the device, and the loop then loads the next batch before it goes on.

    An operator takes 15 µs and launches in 10 µs a kernel of 50 µs, 100 times. The first kernel starts after 25 µs and the
    latency of 5 µs, the last ends 100 × 52 - 2 µs later, at 5.228 ms, and the synchronisation returns at 5.236 ms. The batch
    takes 8 ms to put together, and Python 2 ms: 15.236 ms a step. A batch that takes half as long saves 4 ms: 11.236 ms.
    Kernels of 25 µs leave 25 + 5 + 100 × 27 - 2 + 8 µs = 2.736 ms until the synchronisation returns: 12.736 ms.
    """
    launches = [Operator("aten::relu", 15, Kernel("elementwise_kernel", 50), 10)] * 100
    loading = (Operator("aten::stack", 8000), Pause(2000, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"))
    return Program((Rank(((*launches, Synchronise(7)),), loading),))


def link_bound() -> Program:
    """Two ranks; each of 20 layers ends in an all-reduce on a stream of its own, and the optimizer waits for the last of them.

    A layer takes 500 µs on rank 0 and 600 µs on rank 1, an all-reduce 800 µs, the optimizer 300 µs, and 2 µs lie between two
    kernels of a stream. From the end of the optimizer, the first layer of the slower rank ends after 602 µs. The link then is
    busy for 20 × 800 + 19 × 2 µs, until 16.640 ms, and the optimizer ends at 16.940 ms: that is a step, whatever the CPU does,
    which needs less than 1 ms.

    With all-reduces of 400 µs the slower rank sets the pace: its last layer ends after 20 × 602 µs, the all-reduce takes 400
    µs, the optimizer 300 µs: 12.740 ms. With layers of half the time the first all-reduce begins 300 µs earlier: 16.640 ms.
    With all-reduces of 1,600 µs the link is busy for 20 × 1600 + 38 µs, and the step is 602 + 32038 + 300 µs = 32.940 ms.
    """

    def rank(layer_us: float) -> Rank:
        layer = (
            Operator("aten::linear", 10, Kernel("ampere_sgemm_128x64_tn", layer_us), 6),
            Wait(20, 7),
            Operator("c10d::allreduce_", 12, Kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800, 20, meets=(Collective(),)), 8),
        )
        optimizer = Operator("aten::_foreach_add_", 30, Kernel("multi_tensor_apply_kernel", 300), 6)
        return Rank(((*layer * 20, Wait(7, 20), optimizer),))

    return Program((rank(500), rank(600)))


def one_rank(*actions: Action) -> Program:
    return Program((Rank((actions,)),))


BY_HAND = (
    Case(
        "device-bound, CPU ahead",
        device_bound,
        (Change("*elementwise*", 0.5, 15.9), Change("*elementwise*", 0.9, 16.8), Change("aten::mul", 2, 29.4)),
        40,
        8,
        18.6,
    ),
    Case("host-bound", host_bound, (Change("*gemm*", 0.1, 20), Change("*Backward0", 0.5, 16), Change("*gemm*", 6, 25.74)), 4, 4, 20),
    Case(
        "queue-bound",
        queue_bound,
        (
            Change("elementwise_kernel", 0.75, 35.836),
            Change("elementwise_kernel", 0.5, 32.001),
            Change("aten::sort", 0.1, 30.015),
        ),
        2,
        3,
        39.792,
    ),
    Case("loader-bound", loader_bound, (Change("aten::stack", 0.5, 11.236), Change("elementwise_kernel", 0.5, 12.736)), 4, 4, 15.236),
    Case("link-bound", link_bound, (Change("*nccl*", 0.5, 12.74), Change("*gemm*", 0.5, 16.64), Change("*nccl*", 2, 32.94)), 40, 4, 16.94),
)
