"""The program of a process that runs on CPUs, where an operator is the work of its thread.

There are no kernels: the time of an operator is its own time on its thread. A collective runs on a thread that its process group keeps, as
gloo does: it is handed over when it is called, and whoever waits for it goes on when it has ended.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lumos.emulation.device.host import HostClass
from lumos.emulation.device.issue import Walk, What, exchange_work
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.device.program import MarkedEvent
from lumos.emulation.record import CallKind
from lumos.graph.table import Dependency, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.cost.cluster import Cluster
    from lumos.emulation.device.program import DeviceProgram
    from lumos.emulation.record import DeviceCall, Process


#: Threads of a process group of gloo, which take its exchanges in turn (ProcessGroupGloo::Options in torch's ProcessGroupGloo.hpp).
_GLOO_THREADS = 2


def issued_on_host(process: Process, host: Mapping[HostClass, int], cluster: Cluster) -> DeviceProgram:
    """The program of a process on CPUs. host: ns of each class. Raises LumosError for a record that contradicts itself."""
    return _HostWalk(process, Kernels(cluster.accelerator), host, cluster).run()


class _HostWalk(Walk):
    """The state of such a process between two moments."""

    def __init__(self, process: Process, kernels: Kernels, host: Mapping[HostClass, int], cluster: Cluster) -> None:
        super().__init__(process, kernels, host, cluster)
        self.turns: Counter[str] = Counter()

    def _exchange_begins(self, i: int) -> None:
        exchange, p = self.process.exchanges[i], self.program
        self.begun[What.EXCHANGE_BEGINS, i] = self.threads.here()
        self._spend(HostClass.LEAF, (self.threads.operators[self.threads.current] or [-1])[-1])
        call = self.threads.call(exchange.name, Kind.RUNTIME, 0)
        name = (exchange.group, self.turns[exchange.group] % _GLOO_THREADS)
        self.turns[exchange.group] += 1
        work = exchange_work(exchange, self.process.rank, self.groups[exchange.group], self.process.world, self.cluster)
        task = self.threads.hand_over(call, self.threads.stream(name), f"gloo:{exchange.kind}", work, i)
        self.ends[i] = MarkedEvent((task,), p.tasks[task].lane, call)

    def _operator_ends(self, i: int) -> None:
        super()._operator_ends(i)
        self.threads.flush(self.process.operators[i].name)  # a task for each, as in the graph of a recording

    def _call(self, call: DeviceCall) -> None:
        if call.kind is CallKind.STREAM_WAITS_EXCHANGE and call.exchange in self.ends:
            back = self.threads.call(call.kind, Kind.RETURN, 0)
            self.program.edges += [(before, back, Dependency.HAND_OFF) for before in self.ends[call.exchange].tasks]
