"""Whether the ranks of a set wait for one another for ever: the rules about order, by playing the set.

The order in which a simulator issues nodes depends on their times, so this holds for the durations that the set gives
(or that its network file implies), as it does for the simulator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from lumos.chakra.check.nodes import RankFile
from lumos.chakra.check.rules import Violation
from lumos.chakra.gather import gather
from lumos.chakra.network import durations, read_network
from lumos.chakra.play import Played, play
from lumos.chakra.workload import Workload
from lumos.trace.chakra_et import trace_of
from lumos.trace.chakra_wire import Metadata
from lumos.trace.table import ABSENT, Job, ProcessGroup

#: Nodes named where ranks hang.
NAMED = 20


def check_order(files: Sequence[RankFile], groups: Mapping[str, tuple[int, ...]]) -> list[Violation]:
    """The nodes at which ranks hang, if any, of files that keep all other rules."""
    traces = tuple(trace_of(f.path, Metadata(), f.nodes) for f in files)
    workload = gather(Job(traces, tuple(ProcessGroup(key, ranks) for key, ranks in groups.items())))
    duration, _ = durations(workload, read_network(files[0].path.parent))
    assert workload.id is not None
    played = play(workload, duration, workload.id)
    rank = workload.rank_of()

    def at(node: int, rule: str, message: str) -> Violation:
        assert workload.id is not None
        return Violation(rule, files[rank[node]].path.name, int(workload.id[node]), message)

    found = _counts(workload, files)
    for first, other in played.mismatched[:NAMED]:
        where = f"node {int(workload.id[first])} of {files[rank[first]].path.name}"
        found.append(at(other, "collective-order", f"meets {where}, which differs in kind or size"))
    if not found:
        found = [at(node, "deadlock", message) for node, message in _hung(played, workload)]
    return found


def _counts(workload: Workload, files: Sequence[RankFile]) -> list[Violation]:
    """Groups whose members have different numbers of collectives."""
    facts = workload.communication
    rank = workload.rank_of()[facts.node]
    counts = Counter(zip(facts.group.tolist(), rank.tolist(), strict=True))
    found = []
    for group, members in enumerate(workload.groups):
        have = [counts[group, r] for r in members]
        for r, count in zip(members, have, strict=True):
            if count < max(have):
                message = f"issues {count} collectives in the group of ranks {list(members)}, another member {max(have)}"
                found.append(Violation("collective-order", files[r].path.name, None, message))
    return found


def _hung(played: Played, workload: Workload) -> list[tuple[int, str]]:
    hung = [n for n in played.hung if workload.type[n]]
    if hung:
        return [(n, "is issued and never ends: its peers wait for something else") for n in hung[:NAMED]]
    return [(int(n), "never runs") for n in np.flatnonzero(played.end == ABSENT)[:NAMED]]
