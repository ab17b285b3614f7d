"""Check whether a folder of `.et` files runs on ASTRA-sim: apply every rule to each file and to the set."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from lumos.chakra.checking.issue_order import check_order
from lumos.chakra.checking.nodes import RankFile, Violation, check_file
from lumos.chakra.checking.system import check_system
from lumos.chakra.gather import group_members
from lumos.errors import LumosError
from lumos.result import Shown
from lumos.trace.chakra.companions import Companion, companions
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_NAME = re.compile(r"^(?P<prefix>.*?)\.(?P<rank>\d{1,7})\.et(?P<packed>\.gz)?$")


@dataclass(frozen=True, slots=True, repr=False)
class Checked(Shown):
    """ok: no rule is broken. violations: by file and node. warnings: what simulators pass over, but the user may not have meant.
    ranks, nodes: what was read."""

    ok: bool
    violations: tuple[Violation, ...]
    warnings: tuple[str, ...]
    ranks: int
    nodes: int


def check_set(folder: Path, given: Mapping[Companion, Path] | None = None) -> Checked:
    """Apply every rule to a set. LumosError where the folder holds no set at all, or a given file is not what it should be.

    The communicators, system, network and memory files are those that are given, or else found by their content next to the `.et`
    files; rules about a file are applied only where that file exists.
    """
    files = rank_files(folder)
    beside = {**companions(folder), **_checked_files(given or {})}
    violations: list[Violation] = []
    system, memory = (_json(beside.get(kind), "system", violations) for kind in (Companion.SYSTEM, Companion.MEMORY))
    roofline = bool(system.get("roofline-enabled"))
    expansion = memory.get("memory-type", "NO_MEMORY_EXPANSION") != "NO_MEMORY_EXPANSION"
    world = max(files) + 1
    if len(files) != world:
        missing = sorted(set(range(world)) - set(files))
        violations.append(Violation("rank-files", next(iter(files.values())).name, None, f"ranks {_few(missing)} have no file"))
    ranks = [check_file(path, rank, roofline=roofline, memory=expansion) for rank, path in files.items()]
    groups = _groups(beside.get(Companion.GROUPS), world, violations)
    for file in ranks:
        _check_groups(file, groups, world)
    _check_pairs({file.rank: file for file in ranks})
    network, warnings = check_system(beside, system, world, _kinds(ranks), violations)
    violations += (v for file in ranks for v in file.violations)
    if not violations:
        violations += check_order(ranks, groups, network)
    times = Counter(warning for file in ranks for warning in file.warnings)
    warnings += (f"{n} of {len(files)} files: {warning}" for warning, n in times.items())
    return Checked(not violations, tuple(violations), tuple(warnings), len(files), sum(len(f.nodes) for f in ranks))


def rank_files(folder: Path) -> dict[int, Path]:
    """The `.et` files of a folder by rank. LumosError: no folder, no such files, two sets or two files of one rank."""
    if not folder.is_dir():
        raise LumosError(f"{folder}: no folder of .et files; name the folder that holds PREFIX.0.et, PREFIX.1.et, …")
    try:
        matches = [(m, p) for p in sorted(folder.iterdir()) if (m := _NAME.match(p.name))]
    except OSError as error:
        raise LumosError(f"{folder}: cannot be listed ({error.strerror or error}); check its permissions") from error
    if not matches:
        raise LumosError(f"{folder}: holds no PREFIX.RANK.et; name the folder of a Chakra set")
    prefixes = sorted({m["prefix"] for m, _ in matches})
    if len(prefixes) > 1:
        raise LumosError(f"{folder}: holds several sets ({', '.join(prefixes[:4])}); give each a folder of its own")
    out: dict[int, Path] = {}
    for match, path in matches:
        rank = int(match["rank"])
        if rank in out:
            raise LumosError(f"{out[rank]} and {path} are both of rank {rank}; keep one")
        out[rank] = path
    return dict(sorted(out.items()))


def _kinds(files: list[RankFile]) -> set[Any]:
    """The types of collective that a set has."""
    return {node.value("comm_type") for file in files for node in file.nodes if node.type == NodeType.COLL}


def _checked_files(given: Mapping[Companion, Path]) -> Mapping[Companion, Path]:
    """The given files, which must exist. LumosError where one does not."""
    for kind, path in given.items():
        if not path.is_file():
            raise LumosError(f"{path}: no such file; name the set's {kind.value}")
    return given


def _few(items: list[int]) -> str:
    return ", ".join(map(str, items[:5])) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def _json(path: Path | None, rule: str, violations: list[Violation]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        value: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return value
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        violations.append(Violation(rule, path.name, None, f"no JSON object: {error}"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
    return {}


def _groups(path: Path | None, world: int, violations: list[Violation]) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    if path is None:
        return out
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
            file.find("group-unknown", node.id, f"group {name!r} is not in the file of groups")
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
