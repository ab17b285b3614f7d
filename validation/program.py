"""Programs for the simulated machine of `validation.machine`: what every thread of every rank does in a step.

Times are in µs. A program says what a training loop does, never when: the machine works that out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Collective:
    """A transfer in which `ranks` join, all ranks of the program where it names none. kind: as the profiler names it."""

    kind: str = "allreduce"
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Message:
    """One side of a transfer between two ranks. sends: whether this rank sends. peer: the other rank."""

    sends: bool
    peer: int


@dataclass(frozen=True)
class Kernel:
    """Work of a stream. meets: the transfers that it carries; its time begins when the last of the ranks in them has arrived.

    behind: in a graph of kernels, the stream whose last kernel before this one it also follows; 0 for none.
    """

    name: str
    us: float
    stream: int = 7
    meets: tuple[Collective | Message, ...] = ()
    behind: int = 0


@dataclass(frozen=True)
class Operator:
    """An operator that computes on the CPU for `us` and, where it has a kernel, then launches it by a call of `call_us`.

    blocking: whether the call returns only when the kernel, a copy, has ended.
    """

    name: str
    us: float
    kernel: Kernel | None = None
    call_us: float = 0.0
    call: str = "cudaLaunchKernel"
    blocking: bool = False


@dataclass(frozen=True)
class LaunchGraph:
    """A call of `call_us` that launches a graph of kernels to `stream`.

    The kernels of each stream run in order. All of them follow what was launched to `stream` before, and come before what is launched to
    it next.
    """

    kernels: tuple[Kernel, ...]
    call_us: float
    stream: int = 7


@dataclass(frozen=True)
class Pause:
    """Python between two operators. name: that of the range around it in the recording; "" for none."""

    us: float
    name: str = ""


@dataclass(frozen=True)
class Synchronise:
    """A call that returns when all work that was launched to the stream (None: to any stream) has ended. call: its name, where it is one
    that waits without saying so."""

    stream: int | None = None
    call: str = ""


@dataclass(frozen=True)
class Record:
    """Record an event: it stands for what has been launched to the stream so far."""

    event: str
    stream: int = 7


@dataclass(frozen=True)
class WaitEvent:
    """Let the next work of a stream wait for an event, as it was recorded last, or `back` records before that; nothing without it."""

    stream: int
    event: str
    back: int = 0


@dataclass(frozen=True)
class SynchroniseEvent:
    """A call that returns when the work has ended that an event stands for; nothing without the event. back: as in `WaitEvent`."""

    event: str
    back: int = 0


@dataclass(frozen=True)
class Poll:
    """Ask again and again, every `us`, whether the work has ended that an event stands for; nothing without the event. back: as in
    `WaitEvent`."""

    event: str
    us: float
    back: int = 0


@dataclass(frozen=True)
class Wait:
    """Let the next work of a stream wait for what has been launched to another one."""

    stream: int
    awaited: int


@dataclass(frozen=True)
class Give:
    """Hand work to the thread that takes it, by the name of a channel."""

    channel: str


@dataclass(frozen=True)
class Take:
    """Wait until the channel has been given to once more than this thread has taken from it. ahead: how often it was given to before the
    run began, as the free places of a bounded queue are. name: that of the range around the wait in the recording; "" for none."""

    channel: str
    ahead: int = 0
    name: str = ""


@dataclass(frozen=True)
class Exchange:
    """A collective that the thread itself carries out with its like on all ranks; its time begins when the last of them has arrived."""

    name: str
    us: float


@dataclass(frozen=True)
class InTurn:
    """What a thread does here from step to step: in step n, `parts[n % len(parts)]`."""

    parts: tuple[Thread, ...]


Action = (
    Operator | LaunchGraph | Pause | Synchronise | Record | WaitEvent | SynchroniseEvent | Poll | Wait | Give | Take | Exchange | InTurn
)
#: What one thread does in a step.
Thread = tuple[Action, ...]


@dataclass(frozen=True)
class Rank:
    """threads: what each does in a step; the first runs the loop. between: what that one does after the mark of a step.

    unseen: how many of the threads, the last ones, are other processes, of which a recording has no rows.
    """

    threads: tuple[Thread, ...]
    between: Thread = ()
    unseen: int = 0


@dataclass(frozen=True)
class Program:
    """A loop that all of its ranks run."""

    ranks: tuple[Rank, ...]


def scaled(program: Program, glob: str, factor: float) -> Program:
    """The program in which kernels, operators, calls and exchanges whose names match take `factor` times as long."""

    def time(name: str, us: float) -> float:
        return us * factor if fnmatchcase(name, glob) else us

    def of_kernel(kernel: Kernel) -> Kernel:
        return replace(kernel, us=time(kernel.name, kernel.us))

    def of_action(action: Action) -> Action:
        match action:
            case Operator(name, us, kernel, call_us, call):
                return replace(action, us=time(name, us), call_us=time(call, call_us), kernel=kernel and of_kernel(kernel))
            case LaunchGraph(kernels):
                return replace(action, kernels=tuple(map(of_kernel, kernels)))
            case Exchange(name, us):
                return Exchange(name, time(name, us))
            case InTurn(parts):
                return InTurn(tuple(map(of_thread, parts)))
        return action

    def of_thread(thread: Thread) -> Thread:
        return tuple(map(of_action, thread))

    return Program(
        tuple(replace(rank, threads=tuple(map(of_thread, rank.threads)), between=of_thread(rank.between)) for rank in program.ranks)
    )


#: What reads a value of the device, and what waits for the device to end, as patterns of names in a recording.
READS, WAITS = "operator:aten::_local_scalar_dense", ("cpu:cudaStreamSynchronize", "cpu:cudaDeviceSynchronize")


def without_synchronising(program: Program) -> Program:
    """The program that reads no value of a device and waits for no stream or device to end; waits for events stay."""

    def of_thread(thread: Thread) -> Thread:
        left = (action for action in thread if not _synchronises(action))
        return tuple(InTurn(tuple(map(of_thread, action.parts))) if isinstance(action, InTurn) else action for action in left)

    return Program(
        tuple(replace(rank, threads=tuple(map(of_thread, rank.threads)), between=of_thread(rank.between)) for rank in program.ranks)
    )


def _synchronises(action: Action) -> bool:
    if isinstance(action, Operator):
        return action.name == READS.partition(":")[2]
    return isinstance(action, Synchronise) and not action.call
