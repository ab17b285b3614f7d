"""The rules by which ASTRA-sim accepts a set of `.et` files.

Every rule was tried on the simulator with a file made by hand. The table says what the simulator does where a rule is
broken, because in some of the worst cases it reports "finished" although work is left undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the simulator does where a rule is broken, by rule.
RULES: Mapping[str, str] = {
    # the file
    "packed": "gzip is read as garbage and aborts",
    "metadata": "without the first (metadata) message the first node is swallowed; an empty one ends Chakra's Python reader",
    "frame": "a truncated or damaged message aborts",
    "rank-files": "every rank 0..N-1 needs a file, or the run exits with 'does not exist'",
    "no-nodes": "a file without nodes aborts with 'No dependancy free nodes found'",
    # nodes and dependencies
    "duplicate-id": "the last node of an id silently wins",
    "absent-dependency": "a dependency on an absent node aborts",
    "cycle": "nodes on a cycle silently never run, or the run aborts where nothing else is ready",
    "node-type": "METADATA aborts, INVALID stalls what waits for it, memory nodes need a memory expansion and tensor_size",
    "attribute-type": "an attribute of another type aborts with std::bad_cast",
    "roofline": "in roofline mode compute aborts without num_ops and tensor_size, and never ends where one of them is 0",
    # communication
    "communication-attribute": "a missing attribute of a communication node aborts",
    "communication-on-cpu": "a communication node marked is_cpu_op aborts",
    "collective-type": "other types than all-reduce, all-gather, all-to-all, reduce-scatter and broadcast abort",
    "group-name": "pg_name must be a decimal integer as text; other text aborts",
    "group-unknown": "a group that the file of groups lacks ends the run",
    "group-member": "a rank that uses a group it is not in aborts",
    "group-size": "a collective in a group of one rank never finishes",
    "groups-file": "keys of the file of groups are decimal and at least 1, ranks exist; else it aborts",
    "peer": "a send from, or a receive at, another rank than its own aborts; a peer without a file never answers",
    "unpaired": "a send and a receive that differ in tag or size, or lack a partner, leave the receiver unfinished",
    "collective-order": "members that issue kinds or sizes in different orders hang silently",
    "deadlock": "ranks that wait for one another in a ring hang silently; the exit status is 0",
    # the system
    "network": "fewer than 2 NPUs a dimension, lists of different lengths, or another NPU count than files end the run",
    "system": "an unknown algorithm, or more than dimensions, ends it; a collective without one never finishes; no delay at all asserts",
}


class Violation(NamedTuple):
    """A rule that a file breaks. node: the id of the node, None where the file or the set as a whole breaks the rule."""

    rule: str
    file: str
    node: int | None
    message: str
