"""Time that the host spends: by class of what it does, in operators, runtime calls, Python and the backward engine.

An operator of eager mode takes its dispatch, then its launch call. `data/host.toml` has a value for each class, with its spread over
recordings on different hosts (`tools/fit_host.py` writes it); the launch call is the accelerator's own where its cluster file has one.
Hosts differ far more than devices do, so the interval of a time is wide.

Limits: the work of Python between two operators is the same everywhere; a loader's, a logger's or an optimizer's loop over its parameters,
which asks the device for nothing, is not seen.
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.cost.cluster import Accelerator

_FILE = Path(__file__).parent / "data" / "host.toml"


class HostClass(StrEnum):
    """What a stretch of host time is. The value is the table in `host.toml`."""

    LEAF = "leaf"  # own time of an operator that launches, without the launch call
    VIEW = "view"  # an operator that neither launches nor calls others
    OUTER = "outer"  # own time of an operator that calls others
    NODE = "node"  # own time of a node of the backward pass
    ENGINE = "engine"  # between two nodes of the backward pass
    PYTHON = "python"  # between two operators of the script
    LAUNCH = "launch"  # the call that launches a kernel
    COPY = "copy"  # the call that starts a copy or a fill
    EVENT = "event"  # recording an event, or making a stream wait for one


class HostTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one class, µs: median, first and third quartile over recordings, and how many there were."""

    value: float
    low: float
    high: float
    recordings: int


@cache
def shipped_host_times() -> Mapping[HostClass, HostTime]:
    """The host times that ship with Lumos."""
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), dict[HostClass, HostTime])


def host_ns(accelerator: Accelerator) -> dict[HostClass, int]:
    """The time of each class on a host of this accelerator, ns."""
    out = {kind: round(time.value * 1e3) for kind, time in shipped_host_times().items()}
    if accelerator.launch_s is not None:
        out[HostClass.LAUNCH] = round(accelerator.launch_s * 1e9)
    return out
