"""Check whether a folder of `.et` files runs on ASTRA-sim: apply every rule to each file, to the files beside them and to the set.

Whether ranks wait for one another for ever is found by playing the set. The order in which a simulator issues nodes depends on their
times. So the answer holds, as in the simulator, for the durations that the set gives, or that follow from its network, system and memory
files.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.chakra.gather import gather, group_members
from lumos.chakra.play import as_run, play
from lumos.chakra.rules import RankFile, Violation, check_file
from lumos.chakra.system_files import IMPLEMENTATIONS, read_network
from lumos.errors import LumosError
from lumos.result import Shown
from lumos.trace.chakra.companions import Companion, companions
from lumos.trace.chakra.et import trace_of
from lumos.trace.chakra.schema import CollectiveType, Metadata, NodeType
from lumos.trace.table import ABSENT, Job, ProcessGroup

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.chakra.network import Network
    from lumos.chakra.workload import Workload

_NAME = re.compile(r"^(?P<prefix>.*?)\.(?P<rank>\d{1,7})\.et(?P<packed>\.gz)?$")
#: At most this many nodes are listed where ranks hang.
_NAMED = 20


@dataclass(frozen=True, slots=True, repr=False)
class Checked(Shown):
    """ok: no rule is broken. violations: by file and node. warnings: what simulators pass over, but the user may not have meant.
    ranks, nodes: what was read."""

    ok: bool
    violations: tuple[Violation, ...]
    warnings: tuple[str, ...]
    ranks: int
    nodes: int


def check(
    folder: str | os.PathLike[str],
    *,
    groups: str | os.PathLike[str] | None = None,
    network: str | os.PathLike[str] | None = None,
    system: str | os.PathLike[str] | None = None,
    memory: str | os.PathLike[str] | None = None,
) -> Checked:
    """Check a set against every rule of ASTRA-sim. LumosError where the folder holds no set, or a given file is not what it should be.

    groups, network, system, memory: the files that the simulator is given; found by their content next to the `.et` files where absent.
    Rules about a file are applied only where that file exists.
    """
    files = rank_files(Path(folder))
    named = {Companion.GROUPS: groups, Companion.NETWORK: network, Companion.SYSTEM: system, Companion.MEMORY: memory}
    given = {kind: Path(path) for kind, path in named.items() if path is not None}
    for kind, path in given.items():
        if not path.is_file():
            raise LumosError(f"{path}: no such file; name the set's {kind.value}")
    return _checked(files, {**companions(Path(folder)), **given})


def _checked(files: Mapping[int, Path], beside: Mapping[Companion, Path]) -> Checked:
    violations: list[Violation] = []
    system, memory = (_json(beside.get(kind), "system", violations) for kind in (Companion.SYSTEM, Companion.MEMORY))
    expansion = memory.get("memory-type", "NO_MEMORY_EXPANSION") != "NO_MEMORY_EXPANSION"
    world = max(files) + 1
    missing = sorted(set(range(world)) - set(files))
    if missing:
        few = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        violations.append(Violation("rank-files", next(iter(files.values())).name, None, f"ranks {few} have no file"))
    ranks = [check_file(path, rank, roofline=bool(system.get("roofline-enabled")), memory=expansion) for rank, path in files.items()]
    groups = _groups(beside.get(Companion.GROUPS), world, violations)
    for file in ranks:
        _check_groups(file, groups, world)
    _check_pairs({file.rank: file for file in ranks})
    network, warnings = _network(beside, system, world, ranks, violations)
    violations += (v for file in ranks for v in file.violations)
    if not violations:
        violations += _never_ending(ranks, groups, network)
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
        if out.setdefault(int(match["rank"]), path) != path:
            raise LumosError(f"{out[int(match['rank'])]} and {path} are both of rank {int(match['rank'])}; keep one")
    return dict(sorted(out.items()))


def _json(path: Path | None, rule: str, violations: list[Violation]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        violations.append(Violation(rule, path.name, None, f"no JSON object: {error}"))
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
    return {}


def _groups(path: Path | None, world: int, violations: list[Violation]) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for key, ranks in _json(path, "groups-file", violations).items():
        problem = ""
        if not (key.isascii() and key.isdigit()) or int(key) < 1:
            problem = f"the key {key!r} is no decimal integer of at least 1"
        elif not isinstance(ranks, list) or not all(type(r) is int and 0 <= r < world for r in ranks) or len(set(ranks)) != len(ranks):
            problem = f"group {key} is no list of different ranks below {world}"
        else:
            out[str(int(key))] = tuple(ranks)
        if problem and path is not None:
            violations.append(Violation("groups-file", path.name, None, problem))
    return out


def _check_groups(file: RankFile, groups: Mapping[str, tuple[int, ...]], world: int) -> None:
    for node in (node for node in file.nodes if node.type == NodeType.COLL):
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
    messages: dict[tuple[Any, ...], tuple[list[tuple[RankFile, int]], ...]] = {}  # sends and receives, by both ranks, tag and size
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
            messages.setdefault(key, ([], []))[not sends].append((file, node.id))
    for (source, target, tag, size), (sent, received) in messages.items():
        what = f"receive at rank {target}" if len(sent) > len(received) else f"send from rank {source}"
        first, then = (sent, received) if source < target else (received, sent)  # in the order of files
        for file, node_id in first[: max(len(first) - len(then), 0)] + then[len(first) :]:
            file.find("unpaired", node_id, f"no {what} with tag {tag} and {size} bytes")


def _network(
    beside: Mapping[Companion, Path], system: Mapping[str, Any], world: int, files: Sequence[RankFile], violations: list[Violation]
) -> tuple[Network | None, list[str]]:
    """Whether the simulator starts with the network and system files, and moves every collective: adds what they break to `violations`.

    Returns the network, None where the set has none or it is broken, and warnings. world: how many ranks the set has.
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
    dimensions = network.dimensions
    if min(d.npus for d in dimensions) < 2:
        violations.append(Violation("network", path.name, None, "a dimension has fewer than 2 NPUs"))
    if network.npus != world:
        violations.append(Violation("network", path.name, None, f"{network.npus} NPUs for {world} rank files"))
    if not system:
        return network, []
    name, warnings = beside[Companion.SYSTEM].name, []
    if not network.endpoint and not any(d.latency for d in dimensions):
        violations.append(Violation("system", name, None, "endpoint-delay 0 together with a latency of 0"))
    kinds = {node.value("comm_type") for file in files for node in file.nodes if node.type == NodeType.COLL}
    for kind, key in IMPLEMENTATIONS.items():
        count = len(system.get(key, ()))
        if count > len(dimensions):
            violations.append(Violation("system", name, None, f"{key} has {count} entries for {len(dimensions)} dimensions"))
        elif kind not in kinds:
            continue
        elif count == 0 and system.get(f"{key}-custom"):
            warnings.append(f"{name}: {key}-custom names nodes of its own, which are not looked at; other algorithms stand in for them")
        elif count == 0:
            violations.append(Violation("system", name, None, f"{key} is missing, and the set has such collectives"))
        elif count < len(dimensions) and not str(system[key][-1]).startswith("one"):
            warnings.append(f"{name}: {key} has {count} entries for {len(dimensions)} dimensions: the others are left out")
    return network, warnings


def _never_ending(files: Sequence[RankFile], groups: Mapping[str, tuple[int, ...]], network: Network | None) -> list[Violation]:
    """The nodes at which ranks hang, if any. The files must satisfy all other rules. network: None where the set has no network file."""
    traces = tuple(trace_of(f.path, Metadata(), f.nodes) for f in files)
    workload = gather(Job(traces, tuple(ProcessGroup(key, ranks) for key, ranks in groups.items())))
    played = play(workload if network is None else as_run(workload, network), network)
    rank, number = workload.rank_of(), workload.id
    assert number is not None
    violations = list(_counts(workload, files))
    for first, other in played.mismatched[:_NAMED]:
        message = f"meets node {int(number[first])} of {files[rank[first]].path.name}, which differs in kind or size"
        violations.append(Violation("collective-order", files[rank[other]].path.name, int(number[other]), message))
    if violations:
        return violations
    hung = [n for n in played.hung if workload.type[n]]
    why = "is issued and never ends: its peers wait for something else" if hung else "never runs"
    stuck = (hung or np.flatnonzero(played.end == ABSENT).tolist())[:_NAMED]
    return [Violation("deadlock", files[rank[node]].path.name, int(number[node]), why) for node in stuck]


def _counts(workload: Workload, files: Sequence[RankFile]) -> Iterator[Violation]:
    """Violations by groups whose members issue different numbers of collectives."""
    facts = workload.communication
    meets = facts.type != CollectiveType.BROADCAST
    counts = Counter(zip(facts.group[meets].tolist(), workload.rank_of()[facts.node][meets].tolist(), strict=True))
    for group, members in enumerate(workload.groups):
        most = max(counts[group, r] for r in members)
        for r in (r for r in members if counts[group, r] < most):
            message = f"issues {counts[group, r]} collectives in the group of ranks {list(members)}, another member {most}"
            yield Violation("collective-order", files[r].path.name, None, message)
