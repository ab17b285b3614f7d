"""Ask Lumos about programs whose times are known, before and after a change.

    python -m validation.truth

Every program runs on a small simulated machine (`validation.machine`) that knows nothing of Lumos, once as it is and once for every
change. The recording of the unchanged run is all that Lumos gets. Its answers, to be right, must be what the changed program takes on
the machine, and that is what a person works out on paper: the docstrings below do so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.document import markdown_table, write_section
from validation.machine import run
from validation.machine_trace import write_trace
from validation.program import Give, Kernel, Operator, Pause, Program, Rank, Synchronise, Take, Thread, Wait, scaled

from lumos.graph.build import build
from lumos.trace import read
from lumos.whatif.durations import Durations, Scale
from lumos.whatif.whatif import Changes, answer_changes

#: The error to reach, as a fraction.
REACH = 0.005


@dataclass(frozen=True)
class Case:
    """A program, its period in ms worked out by hand, and that after each change: (glob, factor) -> ms.

    warm_up: the steps that run before the recorded ones, enough for the job to have settled.
    """

    name: str
    program: Callable[[], Program]
    period_ms: float
    changes: tuple[tuple[str, float, float], ...]
    warm_up: int
    recorded: int


@dataclass(frozen=True)
class Answered:
    """One line of the table, times in ms. by_hand: worked out on paper. truth: what the machine took. lumos: what Lumos says."""

    program: str
    change: str
    by_hand: float
    truth: float
    lumos: float

    @property
    def error(self) -> float:
        return self.lumos / self.truth - 1


def device_bound() -> Program:
    """300 operators launch one kernel each, and nothing ever waits for the device, so the CPU runs ahead until the queue is full.

    The CPU needs 45 + 8 = 53 µs an operator, 15.90 ms a step; the device 60 µs a kernel and 2 µs between two, 18.60 ms a step.
    So a step takes 18.60 ms. With kernels of half the time the device needs 300 × (30 + 2) µs = 9.60 ms, and the CPU sets the
    pace: 15.90 ms. With kernels of 0.9 times their time it is still the device: 300 × (54 + 2) µs = 16.80 ms. With operators
    that take twice as long, the CPU needs 300 × (90 + 8) µs = 29.40 ms.
    """
    return _one_rank(*[Operator("aten::mul", 45, Kernel("vectorized_elementwise_kernel", 60), 8)] * 300)


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
    return _one_rank(*launches, Operator("aten::sort", 20_000), Synchronise())


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
            Operator("c10d::allreduce_", 12, Kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800, 20, transfer=True), 8),
        )
        optimizer = Operator("aten::_foreach_add_", 30, Kernel("multi_tensor_apply_kernel", 300), 6)
        return Rank(((*layer * 20, Wait(7, 20), optimizer),))

    return Program((rank(500), rank(600)))


def _one_rank(*actions: Operator | Synchronise) -> Program:
    return Program((Rank((actions,)),))


CASES = (
    Case(
        "device-bound, CPU ahead",
        device_bound,
        18.6,
        (("*elementwise*", 0.5, 15.9), ("*elementwise*", 0.9, 16.8), ("aten::mul", 2, 29.4)),
        40,
        8,
    ),
    Case("host-bound", host_bound, 20, (("*gemm*", 0.1, 20), ("*Backward0", 0.5, 16), ("*gemm*", 6, 25.74)), 4, 4),
    Case(
        "queue-bound",
        queue_bound,
        39.792,
        (("elementwise_kernel", 0.75, 35.836), ("elementwise_kernel", 0.5, 32.001), ("aten::sort", 0.1, 30.015)),
        2,
        3,
    ),
    Case("loader-bound", loader_bound, 15.236, (("aten::stack", 0.5, 11.236), ("elementwise_kernel", 0.5, 12.736)), 4, 4),
    Case("link-bound", link_bound, 16.94, (("*nccl*", 0.5, 12.74), ("*gemm*", 0.5, 16.64), ("*nccl*", 2, 32.94)), 40, 4),
)


def truth_ms(case: Case, program: Program) -> float:
    """What a step of a changed program takes on the machine, once it has settled."""
    return run(program, case.warm_up + case.recorded).period_ns(2) / 1e6


def answered(case: Case, folder: Path) -> list[Answered]:
    """The lines of one program: the base, and every change. folder: where its recording is written."""
    program = case.program()
    paths = write_trace(run(program, case.warm_up + case.recorded), folder, case.recorded)
    job = read(*paths)
    graph = build(job)
    lines: list[Answered] = []
    for glob, factor, by_hand in case.changes:
        answer = answer_changes(job, graph, Changes(durations=Durations(scales=(Scale(glob, factor),))))
        if not lines:
            lines.append(Answered(case.name, "–", case.period_ms, truth_ms(case, program), answer.base.step_time_s * 1e3))
        changed = truth_ms(case, scaled(program, glob, factor))
        lines.append(Answered(case.name, f"`{glob}` × {factor:g}", by_hand, changed, answer.outcome.step_time_s * 1e3))
    return lines


def section(lines: list[Answered]) -> str:
    """The section of docs/accuracy.md."""
    return "\n\n".join(
        [
            "Written by `python -m validation.truth`. Programs whose times a person can work out (the docstrings of the script"
            " do so) run on a simulated machine that shares no code with Lumos. Lumos gets the recording of the unchanged program"
            " only. Times are those of a step once the loop has settled.",
            markdown_table(("what", "to reach", "reached"), [("largest error, before and after a change", "≤ 0.5 %", _worst(lines))]),
            markdown_table(
                ("program", "change", "by hand, ms", "machine, ms", "Lumos, ms", "error"),
                [(x.program, x.change, f"{x.by_hand:.3f}", f"{x.truth:.3f}", f"{x.lumos:.3f}", f"{100 * x.error:+.3f} %") for x in lines],
            ),
        ]
    )


def _worst(lines: list[Answered]) -> str:
    return f"{100 * max(abs(line.error) for line in lines):.2f} %"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for i, case in enumerate(CASES) for line in answered(case, Path(folder) / str(i))]
    print(f"{'program':23} {'change':26} {'machine':>8} {'Lumos':>8} {'error':>9}   (ms a step)")
    for line in lines:
        print(f"{line.program:23} {line.change.replace('`', ''):26} {line.truth:8.3f} {line.lumos:8.3f} {100 * line.error:+7.3f} %")
    write_section("docs/accuracy.md", "truth", section(lines))
    return 0 if all(abs(line.error) <= REACH for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
