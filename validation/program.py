"""Programs for the simulated machine of `validation.machine`: what every thread of every rank does in a step.

Times are in µs. A program says what a training loop does, never when: the machine works that out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Kernel:
    """Work of a stream. transfer: whether all ranks join in it; its time then begins when the last of them has arrived."""

    name: str
    us: float
    stream: int = 7
    transfer: bool = False


@dataclass(frozen=True)
class Operator:
    """An operator that computes on the CPU for `us` and, where it has a kernel, then launches it by a call of `call_us`."""

    name: str
    us: float
    kernel: Kernel | None = None
    call_us: float = 0.0
    call: str = "cudaLaunchKernel"


@dataclass(frozen=True)
class Pause:
    """Python between two operators. name: that of the range around it in the recording; "" for none."""

    us: float
    name: str = ""


@dataclass(frozen=True)
class Synchronise:
    """A call that returns when all work that was launched to the stream (None: to any stream) has ended."""

    stream: int | None = None


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
    """Wait until the channel has been given to once more than this thread has taken from it."""

    channel: str


Action = Operator | Pause | Synchronise | Wait | Give | Take
#: What one thread does in a step.
Thread = tuple[Action, ...]


@dataclass(frozen=True)
class Rank:
    """threads: what each does in a step; the first runs the loop. between: what that one does after the mark of a step."""

    threads: tuple[Thread, ...]
    between: Thread = ()


@dataclass(frozen=True)
class Program:
    """A loop that all of its ranks run."""

    ranks: tuple[Rank, ...]


def scaled(program: Program, glob: str, factor: float) -> Program:
    """The program in which kernels, operators and calls whose names match take `factor` times as long."""

    def time(name: str, us: float) -> float:
        return us * factor if fnmatchcase(name, glob) else us

    def of_action(action: Action) -> Action:
        if not isinstance(action, Operator):
            return action
        kernel = action.kernel
        return replace(
            action,
            us=time(action.name, action.us),
            call_us=time(action.call, action.call_us),
            kernel=kernel and replace(kernel, us=time(kernel.name, kernel.us)),
        )

    def of_thread(thread: Thread) -> Thread:
        return tuple(map(of_action, thread))

    return Program(tuple(Rank(tuple(map(of_thread, rank.threads)), of_thread(rank.between)) for rank in program.ranks))
