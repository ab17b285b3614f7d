"""Read the network, system and memory files that a simulator takes beside a set."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from lumos.chakra.algorithms import Algorithm, Implementation
from lumos.chakra.network import Dimension, Network, RemoteKind, RemoteMemory, Topology
from lumos.errors import LumosError
from lumos.trace.chakra.companions import Companion, companions, yaml_lists
from lumos.trace.chakra.schema import CollectiveType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

#: The keys of a system file that name the algorithms of each kind.
IMPLEMENTATIONS = {
    CollectiveType.ALL_REDUCE: "all-reduce-implementation",
    CollectiveType.ALL_GATHER: "all-gather-implementation",
    CollectiveType.REDUCE_SCATTER: "reduce-scatter-implementation",
    CollectiveType.ALL_TO_ALL: "all-to-all-implementation",
}
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ALGORITHM = re.compile(r"^([a-zA-Z]+?)(\d*)$")


def network_of(folder: Path) -> Network | None:
    """The network of a set's folder, None where it has no network file. LumosError where a file cannot be understood."""
    files = companions(folder)
    return read_network(files[Companion.NETWORK], files) if Companion.NETWORK in files else None


def read_network(network: Path, beside: Mapping[Companion, Path] | None = None) -> Network:
    """The network of a network file; algorithms, delays and rates from the system file, or the simulator's usual ones.

    beside: the system file and the memory file, as far as there are any. Raises LumosError, which names the file and what it cannot
    understand.
    """
    system, memory = ((beside or {}).get(kind) for kind in (Companion.SYSTEM, Companion.MEMORY))
    of_file = Network(_understood(network, "network", lambda text: _dimensions(yaml_lists(text.decode(errors="replace")))))
    if system is not None:
        of_file = replace(of_file, **_understood(system, "system", lambda text: _system(_OBJECT.decode(text))))
    return of_file if memory is None else replace(of_file, memory=_understood(memory, "memory", lambda text: _memory(_OBJECT.decode(text))))


def _understood(path: Path, what: str, meaning: Callable[[bytes], Any]) -> Any:
    """What a file means. LumosError, with the file and the reason, where `meaning` cannot make it out."""
    try:
        return meaning(path.read_bytes())
    except (KeyError, ValueError, msgspec.MsgspecError, OSError, RecursionError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise LumosError(f"{path}: the {what} cannot be understood ({why}); see `chakra export --astra-sim`") from error


def _memory(values: Mapping[str, Any]) -> RemoteMemory | None:
    kind = values.get("memory-type", RemoteKind.NONE)
    if kind not in list(RemoteKind):
        raise ValueError(f"memory-type {kind!r} is none of {', '.join(RemoteKind)}")
    if kind == RemoteKind.NONE:
        return None
    return RemoteMemory(
        RemoteKind(kind),
        latency=int(_number(values, "remote-mem-latency", 0, least=0)),
        bandwidth=_number(values, "remote-mem-bw", 1, least=1e-9),
        node=int(_number(values, "num-npus-per-node", 1, least=1)),
    )


def _dimensions(lists: Mapping[str, list[str]]) -> tuple[Dimension, ...]:
    columns = [lists[key] for key in ("topology", "npus_count", "bandwidth", "latency")]
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        raise ValueError("topology, npus_count, bandwidth and latency need one entry a dimension each")
    return tuple(_dimension(*row) for row in zip(*columns, strict=True))


def _dimension(topology: str, npus: str, bandwidth: str, latency: str) -> Dimension:
    if topology not in list(Topology):
        raise ValueError(f"topology {topology!r} is none of {', '.join(Topology)}")
    out = Dimension(int(float(npus)), float(bandwidth), float(latency), Topology(topology))
    if out.npus < 1 or not out.bandwidth > 0 or not out.latency >= 0:
        raise ValueError(f"a dimension of {npus} ranks with {bandwidth} GiB/s and {latency} ns")
    return out


def _system(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a system file says of a `Network`."""
    implementations = {kind: values[key] for kind, key in IMPLEMENTATIONS.items() if key in values}
    for names in implementations.values():
        if not isinstance(names, list):
            raise ValueError(f"an implementation is a list of algorithms, not {names!r}")
    return {
        "implementations": {kind: tuple(_implementation(str(name)) for name in names) for kind, names in implementations.items()},
        "endpoint": int(_number(values, "endpoint-delay", 10, least=0)),
        "chunks": int(_number(values, "preferred-dataset-splits", 4, least=1)),
        "active": int(_number(values, "active-chunks-per-dimension", 1, least=1)),
        "local": _number(values, "local-mem-bw", 1600, least=1e-9),
        "peak": _number(values, "peak-perf", 900, least=1e-9),
        "roofline": bool(_number(values, "roofline-enabled", 0, least=0)),
        "hierarchical": values.get("collective-optimization", "localBWAware") != "baseline",
    }


def _implementation(name: str) -> Implementation:
    match = _ALGORITHM.match(name)
    if match is None or match[1] not in list(Algorithm):
        raise ValueError(f"algorithm {name!r} is none of {', '.join(Algorithm)}")
    return Implementation(Algorithm(match[1]), int(match[2]) if match[2] else None)


def _number(values: Mapping[str, Any], key: str, default: float, *, least: float) -> float:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
        raise ValueError(f"{key} is {value!r}")
    return float(value)
