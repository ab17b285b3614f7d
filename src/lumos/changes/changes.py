"""What a what-if changes of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lumos.changes.durations import Durations, in_full
from lumos.changes.machine import Machine
from lumos.changes.settings import FRAMEWORK, check_settings, parse_base, parse_settings
from lumos.cost.cluster import load_cluster
from lumos.errors import UsageError
from lumos.plan.profiles import is_profiled, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.plan.framework import Framework
    from lumos.trace.table import Job


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change. settings: of --set. base: of --base, what was recorded of settings in question, and with which framework
    (FRAMEWORK). base_cluster: where the trace was recorded, for traces that do not say. cluster: where the job is to run. network: factors
    on its links (`hardware.network`). repeat: compare what a loop of the step takes, also where the recording has one step only.
    host_factor: how much longer the CPU's work takes on `cluster`; None where nobody said.

    Raises UsageError for a setting that does not exist, a value that no job could take, a framework of which nothing is known, or a host
    factor without a cluster.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    durations: Durations = field(default_factory=Durations)
    base_cluster: str | None = None
    cluster: str | None = None
    network: tuple[str, ...] = ()
    repeat: bool = False
    host_factor: float | None = None
    base: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self.settings)
        if self.host_factor is not None and self.cluster is None:
            raise UsageError("--host-factor is of the host of --cluster; name one, or slow the measured host with --scale 'cpu:*=F'")
        if self.host_factor is not None and not 0 < self.host_factor < float("inf"):
            raise UsageError(f"--host-factor {self.host_factor:g}: a factor must be above 0")
        if self.framework is not None and not is_profiled(self.framework):
            raise UsageError(
                f"--base {FRAMEWORK}={self.base[FRAMEWORK]}: it is not known what this framework exchanges; leave it out, and the interval"
                " holds what frameworks do"
            )

    @classmethod
    def parse(
        cls, set: Iterable[str] = (), *, base: Iterable[str] = (), scale: Iterable[str] = (), drop: Iterable[str] = (),
        fuse: Iterable[str] = (), rank_slowdown: Iterable[str] = (), network: Iterable[str] = (), cluster: str | None = None,
        base_cluster: str | None = None, repeat: bool = False, host_factor: float | None = None, **settings: str,
    ) -> Changes:  # fmt: skip
        """From the words of the command line. settings: by name, beside those of --set. Raises UsageError for a malformed word."""
        durations = Durations.parse(scale, drop, fuse, rank_slowdown)
        wanted = parse_settings((*set, *(f"{key}={value}" for key, value in settings.items())))
        return cls(wanted, durations, base_cluster, cluster, tuple(network), repeat, host_factor, parse_base(base))

    @property
    def words(self) -> dict[str, Any]:
        """The words that `parse` makes these changes of, without those that change nothing."""
        timed = self.durations
        said = {
            "set": [f"{key}={value}" for key, value in self.settings.items()],
            "base": [f"{key}={value}" for key, value in self.base.items()],
            "scale": [f"{s.glob}={s.value}" for s in timed.scales],
            "drop": [*timed.drops], "fuse": [*timed.fused],
            "rank_slowdown": [f"{rank}={in_full(factor)}" for rank, factor in timed.slow],
            "network": [*self.network], "cluster": self.cluster, "base_cluster": self.base_cluster,
            "repeat": self.repeat, "host_factor": self.host_factor,
        }  # fmt: skip
        return {key: value for key, value in said.items() if value}

    def moves_from(self, measured: Cluster) -> bool:
        """Whether the job is to run on another machine than it was measured on: on another cluster, or beside a host that is described."""
        return self.cluster is not None and (self.host_factor is not None or load_cluster(self.cluster) != measured)

    def machine(self, job: Job, graph: Graph) -> Machine:
        """Where the job was recorded and where it is to run."""
        return Machine(job, graph, self.base_cluster, self.cluster, self.network)

    @property
    def framework(self) -> Framework | None:
        """With what the job is written; None where nobody said. Raises UsageError for a name that is not known."""
        return named(self.base[FRAMEWORK]).framework if FRAMEWORK in self.base else None

    @property
    def hardware_words(self) -> tuple[str, ...]:
        """The other machine, in words."""
        return (*([f"cluster = {self.cluster}"] if self.cluster else ()), *(f"network {word}" for word in self.network))

    @property
    def structural(self) -> bool:
        """Whether more than durations of named tasks change."""
        return bool(self.settings or self.cluster or self.network)
