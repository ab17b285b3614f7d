"""Clusters as data: the rates and sizes of an accelerator, its node and the fabric between nodes.

A cluster is one TOML file (`data/clusters/NAME.toml`, or a user's file of the same form) with the tables `accelerator`,
`node`, `fabric`, `operation` and `source`. Keys carry their units. A number that is not published is not in the file; whatever needs it
raises an error that asks for it. With `based_on = "NAME"` a file takes another cluster's values and states only the differences.
`data/prices.toml` holds what renting a device costs, as published on a date.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lumos.errors import LumosError, UsageError
from lumos.vocabulary import AttentionKernel, DType

if TYPE_CHECKING:
    import os

CLUSTER_FOLDER = Path(__file__).parent / "data"

#: Types for which hardware has a peak rate.
DTYPES = (DType.FP64, DType.FP32, DType.TF32, DType.BF16, DType.FP16, DType.FP8, DType.FP4, DType.INT8)


def dtype_of(name: str) -> DType:
    """The type whose peak rate applies to a type as PyTorch or a table names it. Raises UsageError that lists the valid ones."""
    dtype = DType.parse(name)
    if dtype is None or dtype.arithmetic not in DTYPES:
        raise UsageError(f"dtype {name!r} is not known; valid: {', '.join(DTYPES)}")
    return dtype.arithmetic


class _Unit(NamedTuple):
    """keys: matches those in a unit. name: of the unit. least, most: between which any machine's number is, by a factor of a hundred."""

    keys: str
    name: str
    least: float
    most: float


#: The units of a cluster file; a number of another unit, such as GB/s, is none of them. The last is of all other numbers.
_UNITS = (
    _Unit("bytes_per_s$", "bytes per second", 1e6, 1e16),
    _Unit("_flops[.]", "FLOP per second", 1e8, 1e19),
    _Unit("_bytes$", "bytes", 1e3, 1e16),
    _Unit("(launch|latency)_s$", "seconds", 1e-10, 1.0),
    _Unit("clock_hz$", "Hz", 1e6, 1e12),
    _Unit("", "positive", 0.0, 1e30),
)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a cluster file."""

    def require(self, key: str, cluster: str = "") -> Any:
        """Value of `key`. Raises LumosError where it is not given, with the key to fill in."""
        value = getattr(self, key)
        if value is None or value == {}:
            where = getattr(self, "name", "") or cluster or type(self).__name__.lower()
            raise LumosError(
                f"{where}: {key} is not published and needed here; copy the cluster to a TOML file "
                f"(based_on = ...), set {key} under [{type(self).__name__.lower()}] and pass the file's path"
            )
        return value


#: Of the bytes of a device, where a GB of its data sheet is a GiB of the chip, the share that its driver shows: 0.985 to 0.992 in
#: recordings of a V100, three A100 and two H100, and of an H200 139.8 GiB of 141. AMD's drivers show 0.9999 on an MI300X and an MI210.
_SHOWN, _SHOWN_BY_AMD = 0.99, 0.9999
#: Bytes that a process holds beside what PyTorch reserves, such as its context: the median of what messages of torch tell of six single
#: processes on A100 and H100 that ran out of memory, 0.48 to 0.80 GiB.
OUTSIDE_BYTES = int(0.58 * (1 << 30))


class Accelerator(_Table, frozen=True):
    """One device. Rates are dense peaks at boost clock, in FLOP/s and bytes/s; None = not published. memory_bytes: as its data sheet
    counts, of whose GB the chip has GiB."""

    name: str
    vendor: str
    peak_flops: dict[str, float] = {}  # by dtype
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    cache_bytes: float | None = None
    cores: int | None = None  # units that a tile of work runs on: SMs, CUs, processing elements
    clock_hz: float | None = None
    power_w: float | None = None  # what one device may draw
    #: by dtype, the FLOP/s that the vendor says long multiplications reach within the power limit
    achievable_flops: dict[str, float] = {}
    #: exponentials of a core and clock / those of the accelerators in `fitted_as`
    exponential_rate: float | None = None
    #: bytes that the shared memory of one core moves in a clock, where that can hold attention back; None: it does not
    shared_bytes_per_clock: float | None = None
    #: launch_s: host time of one asynchronous launch call. launch_latency_s: from its end to the kernel's start.
    launch_s: float | None = None
    launch_latency_s: float | None = None
    #: accelerators whose fitted coefficients are used where there are none for this one, the most similar first
    fitted_as: tuple[str, ...] = ()
    #: flash attention kernels that are written for it, the fastest first, where not all that were measured on `fitted_as` are
    attention_kernels: tuple[AttentionKernel, ...] = ()
    #: kernels written for the generation before: the accelerator whose coefficients they have, and the share of the peak at which this
    #: device runs their matrix instructions
    older_kernels_as: str | None = None
    older_kernels_rate: float | None = None

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s of `dtype`. Raises UsageError that lists the device's dtypes where it is none of them."""
        name = dtype_of(dtype)
        if not self.peak_flops:
            self.require("peak_flops")
        if name not in self.peak_flops:
            raise UsageError(f"{self.name} has no {name} rate; it has {', '.join(self.peak_flops)} (--precision)")
        return self.peak_flops[name]

    @property
    def shown_bytes(self) -> float | None:
        """Bytes of memory that the driver shows; None where the data sheet's are not known."""
        shown = _SHOWN_BY_AMD if self.vendor == "AMD" else _SHOWN
        return None if self.memory_bytes is None else self.memory_bytes / 1e9 * (1 << 30) * shown

    @property
    def usable_bytes(self) -> float | None:
        """Bytes that a process can have for its tensors."""
        return None if self.shown_bytes is None else self.shown_bytes - OUTSIDE_BYTES

    def with_older_kernels(self) -> Accelerator:
        """The device as kernels find it that are written for the generation before; itself where nothing is known of those."""
        if self.older_kernels_as is None or self.older_kernels_rate is None:
            return self
        peaks = {dtype: rate * self.older_kernels_rate for dtype, rate in self.peak_flops.items()}
        name, kin = f"{self.name} with kernels of the generation before", (self.older_kernels_as,)
        return msgspec.structs.replace(self, name=name, peak_flops=peaks, achievable_flops={}, fitted_as=kin)  # stated for its own kernels


class Node(_Table, frozen=True):
    """How the devices of one node reach each other and the fabric. Rates are per direction."""

    devices: int
    #: "switch" (any pair at full rate), "mesh" (links split over peers), "pcie" (one shared root), "loopback" (host memory)
    topology: str
    link_bytes_per_s: float | None = None  # per device
    link_latency_s: float | None = None  # least time of a hop, where it is more than NCCL's over NVLink
    multicast: bool = False  # whether the switch reduces and multicasts (NVLink SHARP)
    nics: int | None = None
    nic_bytes_per_s: float | None = None  # per NIC
    host_cores: int | None = None
    tray: int | None = None  # devices of one host, where the links join several hosts (a rack)

    def nic_total(self, cluster: str = "") -> float:
        """Bytes/s of all NICs of the node together. Raises LumosError where unknown."""
        return float(self.require("nics", cluster)) * float(self.require("nic_bytes_per_s", cluster))

    def resized(self, devices: int) -> Node:
        """A node of as many devices, of the same kind: its NICs and host cores are in proportion, and it has at least one of each."""
        nics, cores = (None if n is None else max(1, -(-n * devices // self.devices)) for n in (self.nics, self.host_cores))
        return msgspec.structs.replace(self, devices=devices, nics=nics, host_cores=cores)


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of the fabric. Groups that span at most `devices` devices get the NICs' rate / `oversubscription`."""

    name: str
    devices: int
    oversubscription: float = 1.0


class Fabric(_Table, frozen=True):
    """The network between nodes. levels: its tiers, ascending by size; the last one gives the size of the cluster."""

    #: "rail" (NIC i of every node on one switch), "tree", "none"
    topology: str = "none"
    latency_s: float | None = None
    reduction: bool = False  # switches reduce (SHARP)
    levels: tuple[Level, ...] = ()

    def oversubscription(self, devices: int, ring: int = 1) -> float:
        """The factor by which a NIC's rate is divided for a group that spans `devices` devices; 1 means the full rate. ring: so many ranks,
        evenly spread, pass data on in the order of their places, so that of those in one part of the tier below one sends beyond it."""
        factor = next((x.oversubscription for x in self.levels if devices <= x.devices or x is self.levels[-1]), 1.0)
        below = max((x.devices for x in self.levels if x.devices < devices), default=1)
        return max(1.0, factor * devices / max(devices, ring * below))


class Operation(_Table, frozen=True):
    """What it takes to keep the cluster running, as its operator knows it; no shipped cluster has prices or failures.

    price_per_hour: dollars that one device costs an hour. power_w: watts that one device draws with its share of host, network and
    cooling; without it, the accelerator's own limit counts. mtbf_hours: hours between failures that stop the job, of one device;
    checkpoint_s: how long a checkpoint holds the job up; restart_s: from a failure until the job runs again. The last three belong
    together.
    """

    price_per_hour: float | None = None
    power_w: float | None = None
    mtbf_hours: float | None = None
    checkpoint_s: float | None = None
    restart_s: float | None = None


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accelerators, their nodes and the fabric. source: where each number comes from, by its dotted key."""

    name: str
    accelerator: Accelerator
    node: Node
    fabric: Fabric = Fabric()
    operation: Operation = Operation()
    description: str = ""
    aliases: tuple[str, ...] = ()
    source: dict[str, str] = {}

    @property
    def devices(self) -> int:
        """How many devices the fabric connects (those of one node where there is no fabric)."""
        return self.fabric.levels[-1].devices if self.fabric.levels else self.node.devices

    def check_size(self, devices: int) -> None:
        """Raises LumosError where the cluster has fewer than `devices` devices."""
        if devices > self.devices:
            raise LumosError(
                f"{devices} devices asked for, but cluster {self.name!r} has {self.devices}; ask for fewer, or describe a larger one in a"
                ' .toml file (fabric.levels, on top of based_on = "…")'
            )


def cluster_names() -> tuple[str, ...]:
    """Names of the clusters that ship with Lumos, sorted."""
    return tuple(sorted(_files()))


@cache
def _files() -> Mapping[str, Path]:
    """The files of the clusters that ship, by name; their folders only sort them."""
    return {p.stem: p for p in (CLUSTER_FOLDER / "clusters").rglob("*.toml")}


def load_cluster(name: str | os.PathLike[str]) -> Cluster:
    """The cluster of a name, of a spelling in published tables ("H100-SXM5-80GB"), or of the path of a TOML file.

    Raises LumosError for an unknown name (with the valid names and the nearest of them), or for a bad file.
    """
    if not isinstance(name, str) or name.endswith(".toml") or "/" in name:
        return _read(Path(name))
    key = _plain(name)
    if key in _files():  # the usual case, for which one file is read and not all of them
        return _shipped(key)
    known = _spellings()
    if key in known:
        return _shipped(known[key])
    # "h100-sxm5-80gb-hbm3" and the like: the longest known name before words of form and memory that are true of it
    alike = [s for s in known if key.startswith(s + "-") and all(_has(_shipped(known[s]), word) for word in key[len(s) + 1 :].split("-"))]
    if alike:
        return _shipped(known[max(alike, key=len)])
    near = [_shipped(known[spelling]) for spelling in difflib.get_close_matches(key, known, 1)]
    hint = "".join(f"; nearest: {c.name} ({(c.accelerator.memory_bytes or 0) / 1e9:.0f} GB, {c.node.devices} a node)" for c in near)
    raise LumosError(f"cluster {name!r} is not known{hint}; valid: {', '.join(cluster_names())}, or the path of a .toml file")


#: Words of a product's name that say in which form it is sold, and with how much memory of which kind.
_FORM = re.compile(r"(sxm)\d?|(pcie)|nvl(\d+)|(oam)|(\d+)gb|hbm\d?e?|gpu|accelerator")
#: How far the memory that a name states may be from what a cluster's file does: some state what is left where errors are corrected.
_SAME_SIZE = 0.12


def _has(cluster: Cluster, word: str) -> bool:
    """Whether it is a word of form, and true of the cluster."""
    form, node = _FORM.fullmatch(word), cluster.node
    if form is None:
        return False
    sxm, pcie, rack, oam, size = form.groups()
    if size and abs(float(size) * 1e9 / (cluster.accelerator.memory_bytes or 1.0) - 1) > _SAME_SIZE:
        return False
    if (rack and int(rack) != node.devices) or (node.topology != "pcie" if pcie else sxm and node.topology == "pcie"):
        return False
    return not (sxm or oam) or (cluster.accelerator.vendor == "NVIDIA") == bool(sxm)


def _plain(name: str) -> str:
    lower = name.lower()
    machine = re.fullmatch(r"(.*\S)\s*\(([a-z][^\s,()]*)\)", lower)  # the name of a machine around it
    if machine and not _FORM.fullmatch(machine.group(2)):
        lower = machine.group(1)
    lower = re.sub(r"[\s_(),]+", "-", lower).strip("-")
    for word in ("nvidia-", "amd-", "tesla-", "instinct-", "dgx-", "hgx-"):
        lower = lower.removeprefix(word)
    return lower


@cache
def _spellings() -> Mapping[str, str]:
    return {_plain(word): name for name in cluster_names() for word in (name, *_shipped(name).aliases)}


@cache
def _shipped(name: str) -> Cluster:
    return _read(_files()[name])


def _read(path: Path) -> Cluster:
    return _validated(_merged(path), path)


def _merged(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's tables, with the values of the cluster that it is based on where it has none itself."""
    if path in seen:
        raise LumosError(f"{path}: based_on goes in a circle: {' -> '.join(map(str, (*seen, path)))}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LumosError(
            f"{path}: cannot be read ({error.strerror}); clusters that ship with Lumos: {', '.join(cluster_names())}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LumosError(f"{path}: is not TOML: {error}") from error
    base_name = table.pop("based_on", None)
    if base_name is None:
        return table
    if base_name not in cluster_names():
        raise LumosError(f"{path}: based_on = {base_name!r} is not a cluster; valid: {', '.join(cluster_names())}")
    base = _merged(_files()[base_name], (*seen, path))
    base.pop("aliases", None)
    base["accelerator"]["fitted_as"] = [base_name, *base["accelerator"].get("fitted_as", [])]
    if "accelerator" not in table:
        base["accelerator"].setdefault("name", base_name)
    return _overlay(base, table)


def _overlay(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    inner = {key for key, value in change.items() if isinstance(value, dict) and isinstance(base.get(key), dict)}
    return base | {key: _overlay(base[key], value) if key in inner else value for key, value in change.items()}


def _validated(table: dict[str, Any], path: Path) -> Cluster:
    table.setdefault("name", path.stem)
    if isinstance(table.get("accelerator"), dict):
        table["accelerator"].setdefault("name", table["name"])
    try:
        cluster = msgspec.convert(table, Cluster)
    except msgspec.ValidationError as error:
        raise LumosError(f"{path}: {_with_valid_keys(str(error))}") from error
    for key, value in _numbers(table):
        _, unit, least, most = next(limits for limits in _UNITS if re.search(limits.keys, key))
        if not least < value < most:
            bounds = f"more than {least:g} and below {most:g}"
            raise LumosError(f"{path}: {key} = {value} must be {unit}, {bounds}; leave the key out where it is unknown")
    for key, rates in (("peak_flops", cluster.accelerator.peak_flops), ("achievable_flops", cluster.accelerator.achievable_flops)):
        for dtype in set(rates) - set(DTYPES):
            raise LumosError(f"{path}: accelerator.{key}.{dtype} is not a dtype; valid: {', '.join(DTYPES)}")
    if cluster.node.topology not in ("switch", "mesh", "pcie", "loopback"):
        raise LumosError(f"{path}: node.topology = {cluster.node.topology!r}; valid: switch, mesh, pcie, loopback")
    if cluster.fabric.topology not in ("rail", "tree", "none"):
        raise LumosError(f"{path}: fabric.topology = {cluster.fabric.topology!r}; valid: rail, tree, none")
    failures = [key for key in _FAILURES if getattr(cluster.operation, key) is not None]
    if 0 < len(failures) < len(_FAILURES):
        missing = ", ".join(f"operation.{key}" for key in _FAILURES if key not in failures)
        raise LumosError(f"{path}: operation.{failures[0]} needs {missing} beside it; give all of {', '.join(_FAILURES)}, or none")
    return cluster


#: Keys of `Operation` that say together how failures slow a job.
_FAILURES = ("mtbf_hours", "checkpoint_s", "restart_s")


def _with_valid_keys(message: str) -> str:
    """msgspec's message and, where a key is unknown, the valid keys of the table."""
    if "unknown field" not in message:
        return message
    tables = {"$.accelerator": Accelerator, "$.node": Node, "$.fabric": Fabric, "$.operation": Operation, "$.fabric.levels[...]": Level}
    table = message.rsplit("at `", 1)[1].rstrip("`") if "at `" in message else "$"
    fields = tables.get(table, Cluster).__struct_fields__
    unknown = message.split("`")[1]
    near = difflib.get_close_matches(unknown, fields, 1)
    return f"{message}{f'; nearest: {near[0]}' if near else ''}; valid: {', '.join(fields)}"


def _numbers(value: object, path: str = "") -> list[tuple[str, float]]:
    """(dotted key, value) of every number of the file."""
    if isinstance(value, Mapping):
        return [number for key, inner in value.items() for number in _numbers(inner, f"{path}.{key}" if path else key)]
    if isinstance(value, list):
        return [number for i, inner in enumerate(value) for number in _numbers(inner, f"{path}[{i}]")]
    return [(path, value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


class RentalPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars of one device and hour. date: year and month of the price, empty for one that the user states; source: whose it is."""

    dollars_per_hour: float
    date: str
    source: str


@cache
def _prices() -> Mapping[str, RentalPrice]:
    return msgspec.toml.decode((CLUSTER_FOLDER / "prices.toml").read_bytes(), type=dict[str, RentalPrice])


def rental_price(cluster: Cluster, own: float | None = None) -> RentalPrice | None:
    """The price of a cluster's device: `own`, else what the cluster's file says, else a published one; None if there is none."""
    stated = cluster.operation.price_per_hour if own is None else own
    if stated is not None:
        return RentalPrice(stated, "", "as stated" if own is not None else f"as the file of {cluster.name} states")
    return _prices().get(cluster.accelerator.name)
