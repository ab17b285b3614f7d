"""Clusters as data: what an accelerator, its node and the fabric between nodes can do.

A cluster is one TOML file (`data/clusters/NAME.toml`, or a user's file of the same form) with the tables `accelerator`,
`node`, `fabric` and `source`. Keys carry their units. A number nobody published stays out of the file; what needs it
raises an error that asks for it. `based_on = "NAME"` takes another cluster's values and states only what differs.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from lumos.errors import LumosError, UsageError
from lumos.vocabulary import DType

DATA = Path(__file__).parent / "data"

#: Types that hardware states a rate of.
DTYPES = (DType.FP64, DType.FP32, DType.TF32, DType.BF16, DType.FP16, DType.FP8, DType.INT8)


def dtype_of(name: str) -> DType:
    """The type that PyTorch or a table calls so, as hardware counts it. Raises UsageError with the valid ones."""
    found = DType.parse(name)
    if found is None or found.arithmetic not in DTYPES:
        raise UsageError(f"dtype {name!r} is not known; valid: {', '.join(DTYPES)}")
    return found.arithmetic


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a cluster file; `require` turns a blank into an error that asks."""

    def require(self, key: str, cluster: str = "") -> Any:
        """Value of `key`. Raises LumosError where it is blank, naming the key to fill in."""
        value = getattr(self, key)
        if value is None or value == {}:
            owner = getattr(self, "name", "") or cluster or type(self).__name__.lower()
            raise LumosError(
                f"{owner}: {key} is not published and needed here; copy the cluster to a TOML file "
                f"(based_on = ...), set {key} under [{type(self).__name__.lower()}] and pass the file's path"
            )
        return value


class Accelerator(_Table, frozen=True):
    """One device. Rates are dense peaks at boost clock, in FLOP/s and bytes/s; None = not published."""

    name: str
    vendor: str
    peak_flops: dict[str, float] = {}  # by dtype
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    cache_bytes: float | None = None
    cores: int | None = None  # SMs, CUs, processing elements: what a tile of work runs on
    clock_hz: float | None = None
    #: clock held under hours of training / clock of a short benchmark
    sustained_clock: float | None = None
    #: host time of one asynchronous launch, and from its end to the kernel's start
    launch_s: float | None = None
    launch_latency_s: float | None = None
    #: accelerators whose fitted coefficients apply where it has none of its own, the nearest kin first
    fitted_as: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s of `dtype`. Raises UsageError naming the dtypes that the device has."""
        name = dtype_of(dtype)
        if not self.peak_flops:
            self.require("peak_flops")
        if name not in self.peak_flops:
            raise UsageError(f"{self.name} has no {name} rate; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[name]


class Node(_Table, frozen=True):
    """How the devices of one node reach each other and the fabric. Rates are per direction."""

    devices: int
    #: "switch" (any pair at full rate), "mesh" (links split over peers), "pcie" (one shared root), "loopback" (host memory)
    topology: str
    link_bytes_per_s: float | None = None  # per device
    link_latency_s: float | None = None  # least time of a hop, where it is more than NCCL's own over NVLink
    multicast: bool = False  # reduces and multicasts inside the switch (NVLink SHARP)
    nics: int | None = None
    nic_bytes_per_s: float | None = None  # per NIC
    host_cores: int | None = None
    host_memory_bytes_per_s: float | None = None

    def nic_total(self, cluster: str = "") -> float:
        """Bytes/s of all NICs of the node together. Raises LumosError where unknown."""
        return float(self.require("nics", cluster)) * float(self.require("nic_bytes_per_s", cluster))


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of the fabric: groups within `devices` devices see bandwidth / `oversubscription`."""

    name: str
    devices: int
    oversubscription: float = 1.0


class Fabric(_Table, frozen=True):
    """The network between nodes: tiers ascending by size; the last one bounds the cluster."""

    #: "rail" (NIC i of every node on one switch), "tree", "none"
    topology: str = "none"
    latency_s: float | None = None
    reduction: bool = False  # switches reduce (SHARP)
    levels: tuple[Level, ...] = ()

    def oversubscription(self, devices: int) -> float:
        """Share of a NIC's rate lost to a group that spans `devices` devices; 1 = none."""
        factor = 1.0
        for level in self.levels:
            factor = level.oversubscription
            if devices <= level.devices:
                break
        return factor


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accelerators, their node and fabric, with the source of every number by its dotted key."""

    name: str
    accelerator: Accelerator
    node: Node
    fabric: Fabric = Fabric()
    description: str = ""
    aliases: tuple[str, ...] = ()
    source: dict[str, str] = {}

    @property
    def devices(self) -> int:
        """Devices the fabric can hold (one node's where there is no fabric)."""
        return self.fabric.levels[-1].devices if self.fabric.levels else self.node.devices

    def check_size(self, devices: int) -> None:
        """Raises LumosError where the cluster has fewer than `devices` devices."""
        if devices > self.devices:
            raise LumosError(f"{devices} devices asked for, but cluster {self.name!r} has {self.devices}")


def cluster_names() -> tuple[str, ...]:
    """Names of the clusters that ship with Lumos, sorted."""
    return tuple(sorted(p.stem for p in (DATA / "clusters").glob("*.toml")))


def load_cluster(name: str) -> Cluster:
    """The cluster of that name, spelling of published tables ("H100-SXM5-80GB"), or path of a TOML file.

    Raises LumosError for an unknown name (the valid ones and the nearest are listed), LumosError for a bad file.
    """
    if name.endswith(".toml") or "/" in name:
        return _read(Path(name))
    key = _plain(name)
    known = _spellings()
    if key in known:
        return _shipped(known[key])
    candidates = [s for s in known if key.startswith(s + "-")]
    if candidates:  # "h100-sxm5-80gb-hbm3" and the like: the longest known prefix of whole words
        return _shipped(known[max(candidates, key=len)])
    near = difflib.get_close_matches(key, known, 1)
    hint = f"; nearest: {known[near[0]]}" if near else ""
    raise LumosError(f"cluster {name!r} is not known{hint}; valid: {', '.join(cluster_names())}, or the path of a .toml file")


def _plain(name: str) -> str:
    lower = name.lower().replace("_", "-").replace(" ", "-")
    for word in ("nvidia-", "amd-", "tesla-", "instinct-", "dgx-", "hgx-"):
        lower = lower.removeprefix(word)
    return lower


@cache
def _spellings() -> Mapping[str, str]:
    known = {}
    for name in cluster_names():
        known[_plain(name)] = name
        for alias in _shipped(name).aliases:
            known[_plain(alias)] = name
    return known


@cache
def _shipped(name: str) -> Cluster:
    return _read(DATA / "clusters" / f"{name}.toml")


def _read(path: Path) -> Cluster:
    return _validated(_merged(path), path)


def _merged(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's tables over those of the cluster that it is based on."""
    if path in seen:
        raise LumosError(f"{path}: based_on goes in a circle: {' -> '.join(map(str, (*seen, path)))}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LumosError(
            f"{path}: cannot be read ({error.strerror}); clusters that ship with Lumos: {', '.join(cluster_names())}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LumosError(f"{path}: is not TOML: {error}") from error
    base_name = table.pop("based_on", None)
    if base_name is None:
        return table
    if base_name not in cluster_names():
        raise LumosError(f"{path}: based_on = {base_name!r} is not a cluster; valid: {', '.join(cluster_names())}")
    base = _merged(DATA / "clusters" / f"{base_name}.toml", (*seen, path))
    base.pop("aliases", None)
    base["accelerator"]["fitted_as"] = [base_name, *base["accelerator"].get("fitted_as", [])]
    if "accelerator" not in table:
        base["accelerator"].setdefault("name", base_name)
    return _overlay(base, table)


def _overlay(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = _overlay(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return merged


def _validated(table: dict[str, Any], path: Path) -> Cluster:
    table.setdefault("name", path.stem)
    if isinstance(table.get("accelerator"), dict):
        table["accelerator"].setdefault("name", table["name"])
    try:
        cluster = msgspec.convert(table, Cluster)
    except msgspec.ValidationError as error:
        raise LumosError(f"{path}: {_with_valid_keys(str(error))}") from error
    for key, value in _numbers(table):
        if value <= 0:
            raise LumosError(f"{path}: {key} = {value} must be positive; leave the key out where the number is unknown")
    for dtype in cluster.accelerator.peak_flops:
        if dtype not in DTYPES:
            raise LumosError(f"{path}: accelerator.peak_flops.{dtype} is not a dtype; valid: {', '.join(DTYPES)}")
    if cluster.node.topology not in ("switch", "mesh", "pcie", "loopback"):
        raise LumosError(f"{path}: node.topology = {cluster.node.topology!r}; valid: switch, mesh, pcie, loopback")
    if cluster.fabric.topology not in ("rail", "tree", "none"):
        raise LumosError(f"{path}: fabric.topology = {cluster.fabric.topology!r}; valid: rail, tree, none")
    return cluster


def _with_valid_keys(message: str) -> str:
    """msgspec's message, with the keys that the table has where a key is unknown."""
    if "unknown field" not in message:
        return message
    owners = {"$.accelerator": Accelerator, "$.node": Node, "$.fabric": Fabric, "$.fabric.levels[...]": Level}
    place = message.rsplit("at `", 1)[1].rstrip("`") if "at `" in message else "$"
    fields = owners.get(place, Cluster).__struct_fields__
    unknown = message.split("`")[1]
    near = difflib.get_close_matches(unknown, fields, 1)
    return f"{message}{f'; nearest: {near[0]}' if near else ''}; valid: {', '.join(fields)}"


def _numbers(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """(dotted key, value) of every number of the file."""
    found: list[tuple[str, float]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + key, float(value)))
    return found
