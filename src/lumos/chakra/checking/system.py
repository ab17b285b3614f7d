"""The rules about the network and the system file: whether the simulator starts with them, and moves every collective of the set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.chakra.checking.nodes import Violation
from lumos.chakra.system_files import IMPLEMENTATIONS, read_network
from lumos.errors import LumosError
from lumos.trace.chakra.companions import Companion

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lumos.chakra.network import Network


def check_system(
    beside: Mapping[Companion, Path], system: Mapping[str, Any], world: int, kinds: set[Any], violations: list[Violation]
) -> tuple[Network | None, list[str]]:
    """Add what the files break to `violations`; the network, None where the set has none or it is broken; and warnings.

    world: how many ranks the set has. kinds: the types of its collectives.
    """
    path = beside.get(Companion.NETWORK)
    if path is None:
        return None, []
    try:
        network = read_network(path, beside)
    except LumosError as error:
        rule = "network" if str(error).startswith(f"{path}:") else "system"
        violations.append(Violation(rule, path.name, None, str(error)))
        return None, []
    dimensions = network.links.dimensions
    if min(d.npus for d in dimensions) < 2:
        violations.append(Violation("network", path.name, None, "a dimension has fewer than 2 NPUs"))
    if network.links.npus != world:
        violations.append(Violation("network", path.name, None, f"{network.links.npus} NPUs for {world} rank files"))
    if not system:
        return network, []
    name = beside[Companion.SYSTEM].name
    if not network.endpoint and not any(d.latency for d in dimensions):
        violations.append(Violation("system", name, None, "endpoint-delay 0 together with a latency of 0"))
    return network, _implementations(name, system, len(dimensions), kinds, violations)


def _implementations(name: str, system: Mapping[str, Any], dimensions: int, kinds: set[Any], violations: list[Violation]) -> list[str]:
    """Whether every kind of collective has an algorithm for each dimension; warnings of those that leave dimensions out."""
    warnings = []
    for kind, key in IMPLEMENTATIONS.items():
        count = len(system.get(key, ()))
        if count > dimensions:
            violations.append(Violation("system", name, None, f"{key} has {count} entries for {dimensions} dimensions"))
        elif count == 0 and kind in kinds and system.get(f"{key}-custom"):
            warnings.append(f"{name}: {key}-custom names nodes of its own, which are not looked at; other algorithms stand in for them")
        elif count == 0 and kind in kinds:
            violations.append(Violation("system", name, None, f"{key} is missing, and the set has such collectives"))
        elif 0 < count < dimensions and kind in kinds and not str(system[key][-1]).startswith("one"):
            warnings.append(f"{name}: {key} has {count} entries for {dimensions} dimensions: the others are left out")
    return warnings
