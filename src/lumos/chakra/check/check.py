"""Check whether a folder of `.et` files runs on ASTRA-sim: apply every rule of `rules` to each file and to the set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from lumos.chakra.check.issue_order import check_order
from lumos.chakra.check.nodes import RankFile, check_file
from lumos.chakra.check.rules import Violation
from lumos.chakra.files import rank_files
from lumos.chakra.gather import group_members
from lumos.chakra.network import yaml_lists
from lumos.errors import LumosError
from lumos.result import Shown
from lumos.trace.chakra_wire import NodeType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_GROUPS, _SYSTEM, _MEMORY, _NETWORK = "groups.json", "sys.json", "mem.json", "net.yml"


@dataclass(frozen=True, slots=True, repr=False)
class Checked(Shown):
    """ok: no rule is broken. violations: by file and node. ranks, nodes: what was read."""

    ok: bool
    violations: tuple[Violation, ...]
    ranks: int
    nodes: int


def check_set(folder: Path) -> Checked:
    """Apply every rule to a set. LumosError where the folder holds no set at all.

    The communicators, system, network and memory files are those that `chakra export` writes next to the `.et` files;
    rules about a file are applied only where that file exists.
    """
    files = rank_files(folder)
    violations: list[Violation] = []
    system, memory = _json(folder / _SYSTEM, "system", violations), _json(folder / _MEMORY, "system", violations)
    roofline = bool(system.get("roofline-enabled"))
    expansion = memory.get("memory-type", "NO_MEMORY_EXPANSION") != "NO_MEMORY_EXPANSION"
    world = max(files) + 1
    if len(files) != world:
        missing = sorted(set(range(world)) - set(files))
        violations.append(Violation("rank-files", next(iter(files.values())).name, None, f"ranks {_few(missing)} have no file"))
    ranks = [check_file(path, rank, roofline=roofline, memory=expansion) for rank, path in files.items()]
    groups = _groups(folder / _GROUPS, world, violations)
    for file in ranks:
        _check_groups(file, groups, world)
    _check_pairs({file.rank: file for file in ranks})
    _check_system(folder, system, world, violations)
    violations += (v for file in ranks for v in file.violations)
    if not violations:
        violations += check_order(ranks, groups)
    return Checked(not violations, tuple(violations), len(files), sum(len(f.nodes) for f in ranks))


def _few(items: list[int]) -> str:
    return ", ".join(map(str, items[:5])) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def _json(path: Path, rule: str, violations: list[Violation]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return value
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        violations.append(Violation(rule, path.name, None, f"no JSON object: {error}"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
    return {}


def _groups(path: Path, world: int, violations: list[Violation]) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for key, ranks in _json(path, "groups-file", violations).items():
        if not (key.isascii() and key.isdigit()) or int(key) < 1:
            violations.append(Violation("groups-file", path.name, None, f"the key {key!r} is no decimal integer of at least 1"))
        elif not isinstance(ranks, list) or not all(type(r) is int and 0 <= r < world for r in ranks) or len(set(ranks)) != len(ranks):
            violations.append(Violation("groups-file", path.name, None, f"group {key} is no list of different ranks below {world}"))
        else:
            out[str(int(key))] = tuple(ranks)
    return out


def _check_groups(file: RankFile, groups: Mapping[str, tuple[int, ...]], world: int) -> None:
    for node in file.nodes:
        if node.type != NodeType.COLL:
            continue
        name = node.value("pg_name")
        members = group_members(name, groups, world)
        if members is None:
            file.find("group-unknown", node.id, f"group {name!r} is not in {_GROUPS}")
        elif file.rank not in members:
            file.find("group-member", node.id, f"rank {file.rank} is not in group {name!r}")
        elif len(members) < 2:
            file.find("group-size", node.id, f"group {name!r} has one rank")


def _check_pairs(files: Mapping[int, RankFile]) -> None:
    """Report every send without a receive of its tag and size, and every receive without a send."""
    unpaired: dict[tuple[Any, ...], list[tuple[RankFile, int]]] = {}
    for file in files.values():
        for node in file.nodes:
            if node.type not in (NodeType.SEND, NodeType.RECV):
                continue
            sends = node.type == NodeType.SEND
            peer = node.value("comm_dst" if sends else "comm_src")
            if not isinstance(peer, int) or node.value("comm_tag") is None or node.value("comm_size") is None:
                continue  # reported as a missing attribute
            if peer not in files or peer == file.rank:
                file.find("peer", node.id, f"its peer is rank {peer}, which {'is itself' if peer == file.rank else 'has no file'}")
                continue
            pair = (file.rank, peer) if sends else (peer, file.rank)
            key = (*pair, node.value("comm_tag"), node.value("comm_size"))
            partners = unpaired.setdefault((not sends, *key), [])
            if partners:
                partners.pop()
            else:
                unpaired.setdefault((sends, *key), []).append((file, node.id))
    for (sends, source, target, tag, size), nodes in unpaired.items():
        for file, node_id in nodes:
            what = f"receive at rank {target}" if sends else f"send from rank {source}"
            file.find("unpaired", node_id, f"no {what} with tag {tag} and {size} bytes")


def _check_system(folder: Path, system: Mapping[str, Any], world: int, violations: list[Violation]) -> None:
    path = folder / _NETWORK
    if not path.is_file():
        return
    network = yaml_lists(path.read_text(errors="replace"))

    def wrong(rule: str, file: str, message: str) -> None:
        violations.append(Violation(rule, file, None, message))

    lists = [network.get(key, []) for key in ("topology", "npus_count", "bandwidth", "latency")]
    if len({len(items) for items in lists}) != 1 or not lists[0]:
        wrong("network", _NETWORK, "topology, npus_count, bandwidth and latency need one entry a dimension each")
        return
    counts = [int(float(n)) if re.fullmatch(r"\d+(\.0*)?", n) else 0 for n in lists[1]]
    if min(counts) < 2:
        wrong("network", _NETWORK, "a dimension has fewer than 2 NPUs")
    total = 1
    for count in counts:
        total *= count
    if total != world:
        wrong("network", _NETWORK, f"{total} NPUs for {world} rank files")
    for key in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        entries = system.get(f"{key}-implementation")
        if system and (not isinstance(entries, list) or len(entries) != len(counts)):
            wrong("system", _SYSTEM, f"{key}-implementation needs one entry for each of the {len(counts)} dimensions")
    if system and not system.get("endpoint-delay") and all(float(n) == 0 for n in lists[3] if re.fullmatch(r"[\d.]+", n)):
        wrong("system", _SYSTEM, "endpoint-delay 0 together with a latency of 0")
