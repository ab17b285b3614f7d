"""Check whether the ranks of a set wait for one another for ever, by simulating the set (`play`).

The order in which a simulator issues nodes depends on their times. So the answer holds, as in the simulator, for the
durations that the set gives, or that follow from its network, system and memory files.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.checking.nodes import Violation
from lumos.chakra.gather import gather
from lumos.chakra.play import Played, play
from lumos.chakra.simulated import as_run
from lumos.trace.chakra.et import trace_of
from lumos.trace.chakra.schema import CollectiveType, Metadata
from lumos.trace.table import ABSENT, Job, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.checking.nodes import RankFile
    from lumos.chakra.network import Network
    from lumos.chakra.workload import Workload

#: At most this many nodes are listed where ranks hang.
_NAMED = 20


def check_order(files: Sequence[RankFile], groups: Mapping[str, tuple[int, ...]], network: Network | None) -> list[Violation]:
    """The nodes at which ranks hang, if any. The files must satisfy all other rules. network: None where the set has no network file."""
    traces = tuple(trace_of(f.path, Metadata(), f.nodes) for f in files)
    workload = gather(Job(traces, tuple(ProcessGroup(key, ranks) for key, ranks in groups.items())))
    played = play(workload if network is None else as_run(workload, network), network)
    rank = workload.rank_of()
    assert workload.id is not None

    def at(node: int, rule: str, message: str) -> Violation:
        assert workload.id is not None
        return Violation(rule, files[rank[node]].path.name, int(workload.id[node]), message)

    violations = _counts(workload, files)
    for first, other in played.mismatched[:_NAMED]:
        where = f"node {int(workload.id[first])} of {files[rank[first]].path.name}"
        violations.append(at(other, "collective-order", f"meets {where}, which differs in kind or size"))
    if not violations:
        violations = [at(node, "deadlock", message) for node, message in _hung(played, workload)]
    return violations


def _counts(workload: Workload, files: Sequence[RankFile]) -> list[Violation]:
    """Violations by groups whose members issue different numbers of collectives."""
    facts = workload.communication
    rank = workload.rank_of()[facts.node]
    meets = facts.type != CollectiveType.BROADCAST
    counts = Counter(zip(facts.group[meets].tolist(), rank[meets].tolist(), strict=True))
    violations = []
    for group, members in enumerate(workload.groups):
        issued = [counts[group, r] for r in members]
        for r, count in zip(members, issued, strict=True):
            if count < max(issued):
                message = f"issues {count} collectives in the group of ranks {list(members)}, another member {max(issued)}"
                violations.append(Violation("collective-order", files[r].path.name, None, message))
    return violations


def _hung(played: Played, workload: Workload) -> list[tuple[int, str]]:
    hung = [n for n in played.hung if workload.type[n]]
    if hung:
        return [(n, "is issued and never ends: its peers wait for something else") for n in hung[:_NAMED]]
    return [(int(n), "never runs") for n in np.flatnonzero(played.end == ABSENT)[:_NAMED]]
