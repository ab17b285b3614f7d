"""A command run without its devices, as a value: what each kind of rank does, in what order, and what the models say that it costs.

Every task of the emulated job has its cost in parts, and each part says what it is the cost of: an operator's own time on its thread, the
time before it, its launch calls, its work on the device, or an exchange. So a price for an operator is a price for its tasks, whatever
tasks it has.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import assigned
from lumos.blocks.price import Pricer, kernel_by_kernel
from lumos.cost.cluster import load_cluster
from lumos.emulation.accelerators import ON_CPUS, emulated_device
from lumos.emulation.device.host import HostClass, host_ns
from lumos.emulation.device.issue import issued
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.device.launch import tensors_of, width
from lumos.emulation.device.ranks import all_ranks
from lumos.emulation.peak import peak
from lumos.emulation.run import Launched, first_rank, records
from lumos.graph.table import Kind, Step
from lumos.scripted.places import placed, step_bounds, step_holding
from lumos.stages import stage
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.analyze.loop.steps import Members
    from lumos.cost.cluster import Cluster
    from lumos.cost.estimate import Float64
    from lumos.emulation.device.program import DeviceProgram
    from lumos.emulation.device.ranks import Ranks
    from lumos.emulation.peak import Peak
    from lumos.emulation.record import Operator, Process
    from lumos.scripted.command import Command
    from lumos.scripted.places import ScriptPlaces
    from lumos.trace.table import Int64
    from lumos.vocabulary import CollectiveKind

#: A tensor that an operator was given: its shape and the name of the type of its elements.
GivenTensor = tuple[tuple[int, ...], str]

#: Stretches of host time that lie before an operator.
_BEFORE = (HostClass.ENGINE, HostClass.PYTHON, HostClass.QUIET_PYTHON)


#: Calls of the runtime that order work or wait for it, which cost the host the same whatever operator makes them.
AWAITING = frozenset(("cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize"))


def given(operator: Operator) -> tuple[GivenTensor, ...]:
    """The tensors that an operator was given, as a recording says it."""
    return tuple((tensor.shape, type_name(tensor.dtype)) for tensor in tensors_of(operator.inputs) if tensor.shape)


@cache
def type_name(name: str) -> str:
    """The name of a type of elements, one for each; "" where it is not known."""
    known = DType.parse(name)
    return "" if known is None else known.torch_name


class Slot(IntEnum):
    """What a part of a task's cost is the cost of. Of each but the last there is one for every operator; of the last for every exchange."""

    OWN = 0  # the operator's own time on its thread
    BEFORE = 1  # the time before it
    CALLS = 2  # its calls that launch
    DEVICE = 3  # its work on the device
    EXCHANGE = 4


class TaskCosts(NamedTuple):
    """What a program's tasks cost, part by part, as columns: the task, the slot, the operator or exchange (-1 for none), the model's ns,
    and how many times as long it may take."""

    task: Int64
    slot: Int64
    of: Int64
    ns: Float64
    high: Float64


@dataclass(frozen=True, eq=False)
class Kindred:
    """What one process of an emulated job did, which stands for every rank that does the same."""

    process: Process
    program: DeviceProgram
    parts: TaskCosts

    @cached_property
    def placed(self) -> ScriptPlaces:
        """Where its operators stand in the script."""
        return placed(self.process)

    @cached_property
    def given(self) -> list[tuple[GivenTensor, ...]]:
        """What each of its operators was given."""
        return [given(operator) for operator in self.process.operators]

    @cached_property
    def modelled(self) -> Float64:
        """The model's price of each operator or exchange, ns, float64[slots, operators or exchanges]."""
        size = max(len(self.process.operators), len(self.process.exchanges), 1)
        out = np.zeros((len(Slot), size))
        known = self.parts.of >= 0
        np.add.at(out, (self.parts.slot[known], self.parts.of[known]), self.parts.ns[known])
        return out

    def exchange_key(self, i: int) -> tuple[CollectiveKind, int]:
        """The kind and the bytes of an exchange."""
        exchange = self.process.exchanges[i]
        elements = max(exchange.input_elements, exchange.kind.is_transfer * exchange.output_elements)
        return exchange.kind, elements * width(exchange.dtype)

    @cached_property
    def exchanges(self) -> dict[int, list[int]]:
        """The exchanges of each step, in the order of their tasks."""
        out: dict[int, list[int]] = {}
        for task, step in zip(self.program.tasks, self.step.tolist(), strict=True):
            if task.exchange >= 0:
                out.setdefault(step, []).append(task.exchange)
        return out

    @cached_property
    def _on_host(self) -> dict[str, tuple[list[int], list[int]]]:
        """The tasks of the host by their name, with the models' time of each, ns."""
        out: dict[str, tuple[list[int], list[int]]] = {}
        for number, task in enumerate(self.program.tasks):
            if task.work is None and task.ns:
                for column, value in zip(out.setdefault(task.name, ([], [])), (number, task.ns), strict=True):
                    column.append(value)
        return out

    @cached_property
    def step(self) -> Int64:
        """The step of each task, its index."""
        bounds = step_bounds(self.process)
        return np.array([step_holding(bounds, at) for at in self.program.at], np.int64)

    def durations(self, prices: Float64, calls: Mapping[str, float] | None) -> Float64:
        """The tasks at these prices, ns. prices: as `modelled`. calls: of the calls that order work, by name; None leaves out what no price
        is for."""
        parts, model = self.parts, self.modelled
        factor = np.full(len(parts.ns), float(calls is not None))
        known = parts.of >= 0
        whole = model[parts.slot[known], parts.of[known]]
        factor[known] = np.divide(prices[parts.slot[known], parts.of[known]], whole, out=np.zeros(len(whole)), where=whole > 0)
        fixed = np.zeros(len(self.program.tasks))
        if calls is not None:
            for name, (at, ns) in self._on_host.items():
                fixed[at] = calls.get(name, ns)
        fixed[parts.task] = 0.0
        return fixed + np.bincount(parts.task, parts.ns * factor, minlength=len(fixed))


@dataclass(frozen=True, eq=False)
class Script:
    """A command as emulated. kinds: the processes that ran. ranks: the job of all ranks, with the models' prices. peaks: the most memory
    that each kind holds."""

    command: Command
    cluster: Cluster
    on_host: bool
    kinds: tuple[Kindred, ...]
    ranks: Ranks
    peaks: tuple[Peak, ...]

    @cached_property
    def owners(self) -> Members:
        """The steps of the job."""
        graph, names = self.ranks.graph, [f"ProfilerStep#{i}" for i in range(self.steps)]
        steps = tuple(Step(rank, name, 0, 0) for rank in graph.ranks for name in names)
        of_task = np.concatenate([self.kinds[kind].step + self.steps * rank for rank, kind in enumerate(self.ranks.of)])
        return assigned(graph, steps, of_task.astype(np.int32))

    @cached_property
    def steps(self) -> int:
        """How many steps were emulated."""
        return len(step_bounds(self.kinds[0].process))


@stage("emulating the script")
def emulated(command: Command, cluster: str, ranks: int, steps: int, limit_s: float) -> Script:
    """Run a command without its devices. cluster: whose devices it is shown, or "cpu". steps: recorded, after a first one.

    Raises LumosError where the script cannot be emulated, with the first line of it that cannot.
    """
    device = emulated_device(cluster)
    known = load_cluster("host" if device.is_cpu else cluster)
    if not device.is_cpu:
        known.check_size(ranks)
    with tempfile.TemporaryDirectory(prefix="lumos-script-") as work:
        processes = records(Launched(command.words, device, ranks, steps, 1, Path(work), limit_s))
    return script(command, processes, known)


@stage("emulating the script once more")
def emulated_again(once: Script, steps: int, limit_s: float) -> Process:
    """Rank 0 of a script in another run of it, of so many steps."""
    device = emulated_device(once.kinds[0].process.accelerator)
    with tempfile.TemporaryDirectory(prefix="lumos-script-") as work:
        return first_rank(Launched(once.command.words, device, len(once.ranks.of), steps, 1, Path(work), limit_s))


def script(command: Command, processes: list[Process], cluster: Cluster) -> Script:
    """The value for the records of a job's processes."""
    on_host = processes[0].accelerator == ON_CPUS
    host, kernels, pricer = host_ns(cluster.accelerator), Kernels(cluster.accelerator), Pricer(cluster, kernel_by_kernel())
    programs = [issued(process, kernels, host, cluster) for process in processes]
    kinds = tuple(_kindred(program, pricer) for program in programs)
    return Script(command, cluster, on_host, kinds, all_ranks(programs, pricer), tuple(map(peak, processes)))


def _kindred(program: DeviceProgram, pricer: Pricer) -> Kindred:
    """The parts of a program's tasks."""
    distinct = list(dict.fromkeys(task.work for task in program.tasks if task.work is not None))
    prices = dict(zip(distinct, pricer(distinct), strict=True))
    rows: list[tuple[int, int, int, float, float]] = []
    for number, task in enumerate(program.tasks):
        if task.work is not None:
            times = prices[task.work].times
            slot, of = (Slot.EXCHANGE, task.exchange) if task.exchange >= 0 else (Slot.DEVICE, task.operator)
            rows.append((number, slot, of, times.best, times.high / max(times.best, 1)))
        elif task.kind == Kind.LAUNCH:
            rows.append((number, Slot.CALLS, task.operator, task.ns, 1.0))
        else:
            spent = ((Slot.BEFORE if part.kind in _BEFORE else Slot.OWN, part) for part in program.spent.get(number, ()))
            rows.extend((number, slot, part.operator, part.ns, 1.0) for slot, part in spent)
    columns = np.array(rows, float).reshape(-1, 5).T
    return Kindred(program.process, program, TaskCosts(*columns[:3].astype(np.int64), *columns[3:]))
