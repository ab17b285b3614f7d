"""Time that the host spends: by class of what it does, in operators, runtime calls, Python and the backward engine.

An operator of eager mode takes its dispatch, then its launch call. `data/host.toml` has a value for each class, with its spread over
recordings on different hosts (`tools/fit_host.py` writes it); the launch call is the accelerator's own where its cluster file has one.
Hosts differ far more than devices do, so the interval of a time is wide. What asks for no operator, such as a logger's work, is not seen.
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.record import ENGINE_PREFIX, enclosed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Process

#: In the name of the row of a node of the backward pass, inside the engine's own.
_NODE = "Backward"
_FILE = Path(__file__).parent / "data" / "host.toml"


class HostClass(StrEnum):
    """What a stretch of host time is. The value is the table in `host.toml`."""

    LEAF = "leaf"  # own time of an operator that launches, without the launch call
    VIEW = "view"  # an operator that neither launches nor calls others
    OUTER = "outer"  # own time of an operator that calls others, of which some launch
    QUIET_OUTER = "quiet-outer"  # the same where none launches
    NODE = "node"  # own time of a node of the backward pass
    ENGINE = "engine"  # between two nodes of the backward pass
    PYTHON = "python"  # between two operators of the script
    QUIET_PYTHON = "quiet-python"  # the same where neither of them launches
    LAUNCH = "launch"  # the call that launches a kernel
    COPY = "copy"  # the call that starts a copy or a fill
    EVENT = "event"  # recording an event, or making a stream wait for one


class OperatorTree(NamedTuple):
    """Of the operators of a process, by their index: those that launch or communicate, themselves or by one that they call, and those that
    call others."""

    launching: set[int]
    calling: set[int]

    @classmethod
    def of(cls, process: Process, launches: Sequence[Sized]) -> OperatorTree:
        """launches: what each operator launches itself."""
        spans = [(operator.thread, operator.begin, operator.end, i) for i, operator in enumerate(process.operators)]
        spans += [(exchange.thread, exchange.begin, exchange.end, -1) for exchange in process.exchanges]
        tree = cls(set(), set())
        for i, around in enclosed(spans):
            if i >= 0:
                tree.calling.update(around[-1:])
            if i < 0 or launches[i]:
                tree.launching.update(around if i < 0 else (*around, i))
        return tree


def class_of(i: int, name: str, tree: OperatorTree) -> HostClass:
    """The class of the own time of operator `i`, which is called `name`."""
    if name.startswith(ENGINE_PREFIX) or (_NODE in name and "::" not in name) or "AccumulateGrad" in name:
        return HostClass.NODE
    if i in tree.calling:
        return HostClass.OUTER if i in tree.launching else HostClass.QUIET_OUTER
    return HostClass.LEAF if i in tree.launching else HostClass.VIEW


@cache
def _shipped() -> Mapping[HostClass, float]:
    """The host times that ship with Lumos, µs: medians over recordings."""
    return {HostClass(name): table["value"] for name, table in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}


def host_ns(accelerator: Accelerator) -> dict[HostClass, int]:
    """The time of each class on a host of this accelerator, ns."""
    out = {kind: round(value * 1e3) for kind, value in _shipped().items()}
    if accelerator.launch_s is not None:
        out[HostClass.LAUNCH] = round(accelerator.launch_s * 1e9)
    return out
