"""Build a Graph from a Chakra set: every node becomes a task, its dependencies data edges, its communication rendezvous.

Where the set says when its nodes started, every stream and thread keeps that order. Otherwise the set is first simulated
as ASTRA-sim would (`play`), and that order is kept; the times of that simulation then take the place of measured ones,
and a diagnostic says so. A measured send and its receive transfer together. Where their time comes from the cost model
they are eager, as in ASTRA-sim: the data arrives, and the receive ends, when the send ends.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.collectives import EAGER, input_bytes, kind_of_label
from lumos.chakra.gather import folder_of, gather
from lumos.chakra.network import Network, assumed_network
from lumos.chakra.play import as_run, of_roofline, play
from lumos.chakra.system_files import network_of, read_network
from lumos.chakra.workload import MEMORY, Workload
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError, UsageError
from lumos.graph.evidence import NEVER_MEASURED
from lumos.graph.lists import distinct, end_to_end, list_of, offsets
from lumos.graph.table import Collectives, Dependency, Evidence, Graph, Kind, Processor
from lumos.trace.chakra.companions import companions
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.schema import CollectiveType, NodeType
from lumos.trace.source import Source, as_job
from lumos.trace.table import ABSENT, Int8, Int32, Int64, Job
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

#: Findings about a set after which its times or dependencies may be others than those of the job that it describes.
DOUBTFUL = (NEVER_MEASURED, "control-dependencies-lost", "control-dependencies-ignored", "group-assumed")


def build(job: Job) -> Graph:
    """The graph of a job of Chakra files. TraceError where the set is broken, GraphError where its ranks hang."""
    workload, network = gather(job), network_of(folder_of(job))
    both = 0 if network is None or not network.roofline else int((workload.duration[of_roofline(workload)] > 0).sum())
    if both:
        text = f"{both} compute nodes have a recorded time and a roofline's: the recorded one stands; `replay --network` takes the other"
        workload = replace(workload, diagnostics=(*workload.diagnostics, Diagnostic("roofline-not-taken", text)))
    return graph_of(workload, network)


def priced(source: Source, network: str | os.PathLike[str]) -> Graph:
    """The graph of a set whose communication costs what a network file says, with the system file beside that; its measured times are the
    recorded ones.

    The set is played: compute takes what was recorded, or in roofline mode what its operations and bytes cost. Raises UsageError where
    the job is no Chakra set, LumosError where the file cannot be understood, GraphError as `build`.
    """
    job, network = as_job(source), Path(network)
    if job.traces[0].metadata.get("format") != FORMAT:
        raise UsageError(f"{network}: only a Chakra set is priced on a network file; `lumos chakra export` makes one of a job first")
    if not network.is_file():
        raise UsageError(f"{network}: no such file; name a network file (topology, npus_count, bandwidth, latency)")
    net = read_network(network, companions(network.parent))
    recorded = gather(job)
    unpriced = as_run(recorded, net)
    unknown = np.full(len(recorded), ABSENT)
    ordered = timed(replace(unpriced, start=unknown, event=np.arange(len(recorded), dtype=np.int32)), net)
    measured = ordered
    if (recorded.start != ABSENT).all() and ordered.event is not None:
        measured = replace(ordered, start=recorded.start[ordered.event], duration=recorded.duration[ordered.event])
    graph = assembled(ordered, measured)
    nodes = f"{len(recorded.communication)} communication nodes"
    findings = [Diagnostic("priced", f"{nodes} take what they cost on the network of {network}, not what was recorded")]
    compute = int(((recorded.type == NodeType.COMP) & (unpriced.duration == ABSENT)).sum())
    if compute:
        text = f"{compute} compute nodes take what the system file allows for their operations and bytes"
        findings.append(Diagnostic("priced-by-roofline", text))
    kept = (d for d in graph.diagnostics if d.code not in ("costed", NEVER_MEASURED))
    return replace(graph, diagnostics=(*kept, *findings))


def graph_of(workload: Workload, network: Network | None = None) -> Graph:
    """The graph of a workload; nodes without a duration get the time they cost on `network`. GraphError where its ranks hang."""
    timed_ = timed(workload, network)
    return assembled(timed_, timed_)


def assembled(workload: Workload, measured: Workload) -> Graph:
    """The graph of a workload that has a time for every node. measured: the same nodes with the times that were measured.

    GraphError where its ranks do not match.
    """
    processor, processors = _processors(workload)
    pairs, rendezvous = _rendezvous(workload)
    facts = workload.communication
    eager_sends = facts.node[[workload.played or facts.kinds[kind] == EAGER[0] for kind in facts.kind]]
    eager = np.isin(pairs[:, 0], eager_sends)
    rendezvous += pairs[~eager].tolist()
    pred = np.concatenate((workload.dep, pairs[eager, 0]))
    succ = np.concatenate((list_of(workload.dep_offset), pairs[eager, 1]))
    offset, pred = distinct(pred, succ, len(workload))
    succ = list_of(offset)
    kind = _dependency_kinds(workload, pred, succ, processor)
    keep = ~_implied(processor, pred, succ)
    members = end_to_end(rendezvous)
    released = np.flatnonzero(workload.release != ABSENT)
    return Graph(
        ranks=workload.ranks,
        processors=processors,
        names=tuple(workload.names),
        duration=workload.duration,
        processor=processor,
        kind=workload.kind,
        name=workload.name,
        event=np.full(len(workload), ABSENT, np.int32),
        pred_offset=offsets(keep)[offset],
        pred=pred[keep].astype(np.int32),
        pred_kind=kind[keep],
        lag=np.zeros((len(workload.ranks), len(Dependency)), np.int64),
        release_task=released.astype(np.int32),
        release_time=workload.release[released],
        rendezvous_offset=members.offset,
        rendezvous_task=members.flat.astype(np.int32),
        collectives=_collectives(workload),
        measured_start=_arrivals(measured, pred, succ),
        measured_end=measured.start + measured.duration,
        steps=workload.steps,
        steps_alone=workload.steps_alone,
        diagnostics=workload.diagnostics,
        evidence=tuple(Evidence(d.code, d.message, Grade.LIMITED) for d in workload.diagnostics if d.code in DOUBTFUL),
    )


def timed(workload: Workload, network: Network | None = None) -> Workload:
    """The workload with a time for every node, in the order of `graph_of`'s tasks. GraphError where its ranks hang."""
    if (workload.start != ABSENT).all() and (workload.duration != ABSENT).all():
        return workload
    played = play(workload, network)
    if (played.end == ABSENT).any():
        node = (played.hung or tuple(np.flatnonzero(played.end == ABSENT).tolist()))[0]
        rank = int(workload.rank_of()[node])
        raise GraphError(
            f"the set has no schedule: rank {workload.ranks[rank]} waits for ever in {workload.names[workload.name[node]]!r};"
            " `lumos chakra check` says which rules it breaks"
        )
    costed = int((workload.duration == ABSENT).sum())
    first = assumed_network(2).dimensions[0]
    assumed = f"on an assumed network ({first.bandwidth:g} GiB/s, {first.latency:g} ns a hop)"
    how = assumed if network is None else "from the set's network file"
    findings = [Diagnostic("costed", f"{costed} nodes have no duration and were costed {how}")] if costed else []
    text = (
        "the set does not say when its nodes ran: what stands as measured is how an analytical simulator plays it, one compute and one"
        " communication a rank at a time"
    )
    diagnostics = (*workload.diagnostics, *findings, Diagnostic(NEVER_MEASURED, text))
    start = played.end - played.duration  # a communication starts once all of its ranks have arrived
    order = np.lexsort((played.turn, workload.rank_of()))
    return permuted(replace(workload, start=start, duration=played.duration, played=True, diagnostics=diagnostics), order)


def permuted(workload: Workload, order: Int64) -> Workload:
    """The workload with its nodes renumbered: node order[i] moves to position i. `order` keeps nodes within their rank."""
    new_place = np.argsort(order)
    facts = workload.communication
    rows = np.argsort(new_place[facts.node], kind="stable")
    dependent = list_of(workload.dep_offset)
    offset, dep = distinct(new_place[workload.dep], new_place[dependent], len(order))
    of_communication = {name: getattr(facts, name)[rows] for name in ("type", "size", "group", "peer", "tag", "kind")}
    communication = replace(facts, node=new_place[facts.node][rows], **of_communication)
    return replace(workload, **workload.rows(order), dep_offset=offset, dep=dep, communication=communication)


def in_program_order(workload: Workload) -> Workload:
    """The workload with the nodes of every rank in program order: CPU work as it stands, other nodes behind the last that they wait for.

    By start, a kernel may stand hundreds of nodes behind its launch, because the CPU runs ahead. In program order a layer is one stretch of
    nodes, alike in all layers, so that it can be repeated. Dependencies and the order on every stream and thread are kept.
    """
    behind: list[int] = []
    bounds, deps = workload.dep_offset.tolist(), workload.dep.tolist()
    for node, on_cpu in enumerate(workload.on_cpu.tolist()):
        before = max((behind[d] for d in deps[bounds[node] : bounds[node + 1]]), default=ABSENT)
        behind.append(node if on_cpu else before)
    order = np.lexsort((np.arange(len(behind)), np.array(behind, np.int64), workload.rank_of()))
    return permuted(workload, order)


def _processors(workload: Workload) -> tuple[Int32, tuple[Processor, ...]]:
    """The processor of every node, and the processors: a thread or stream for each rank and queue.

    Where the set was played, a rank has one of each sort, as in simulators. Communication without a stream shares one link of its rank.
    Receives do not occupy the link, and have no order but that of the file. Where they take no time, they only say that the peer has
    come so far, and belong to no step.
    """
    rank, facts = workload.rank_of().astype(np.int64), workload.communication
    queue = np.full(len(workload), ABSENT, np.int64) if workload.played else workload.queue.copy()
    links = np.isin(workload.type, MEMORY) & ~workload.on_cpu
    links[facts.node] = True
    receives = facts.node[(workload.type[facts.node] == NodeType.RECV) & (queue[facts.node] == ABSENT)]
    lane = np.where(workload.on_cpu, 0, np.where(links & (queue == ABSENT), 2, 1))
    lane[receives] = 3
    queue[lane == 2] = 0
    queue[receives] = _chains(workload, receives)
    keys, processor = np.unique(np.stack([rank, lane, queue]), axis=1, return_inverse=True)
    processor = processor.reshape(-1)
    takes_time = np.zeros(keys.shape[1], bool)
    takes_time[processor[workload.duration > 0]] = True
    processors = []
    for (r, at, q), lasts in zip(keys.T.tolist(), takes_time.tolist(), strict=True):
        name = (f"thread {q}" if q >= 0 else "thread", f"stream {max(q, 0)}", "communication", f"receives {q + 1}")[at]
        stream = max(q, 0) if at == 1 else 1_000_000 + (q + 1 if at == 3 else 0)
        timer = (r, q) in workload.timers if at == 0 else at == 3 and not lasts
        processors.append(Processor(workload.ranks[r], at > 0, name, 0 if at else ABSENT, stream if at else ABSENT, timer=timer))
    return processor.astype(np.int32), tuple(processors)


def _chains(workload: Workload, receives: Int64) -> Int64:
    """The number of a chain for each receive, counted from 0 on every rank: in a chain each one depends on the last by the file itself."""
    chain = dict.fromkeys(receives.tolist(), 0)
    count = [0] * len(workload.ranks)
    rank, offset, dep = workload.rank_of().tolist(), workload.dep_offset.tolist(), workload.dep.tolist()
    last = [ABSENT] * len(workload)  # of each node the latest receive that it depends on
    followed = {ABSENT}
    for node in range(len(workload)):
        before = last[node] = max((last[d] for d in dep[offset[node] : offset[node + 1]]), default=ABSENT)
        if node in chain:
            last[node] = node
            chain[node] = count[rank[node]] if before in followed else chain[before]
            count[rank[node]] += before in followed
            followed.add(before)
    return np.array(list(chain.values()), np.int64)


def _rendezvous(workload: Workload) -> tuple[Int64, list[list[int]]]:
    """(send, receive) pairs, int64[p, 2]; and the nodes of each collective: the i-th of a group on every member.

    GraphError where a send lacks its receive, or members of a group issue different numbers of collectives.
    """
    facts = workload.communication
    rank = workload.rank_of()[facts.node]
    messages: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}  # sends and receives, by both ranks, tag and size
    collectives: dict[int, dict[int, list[int]]] = {}  # by group, then by rank
    columns = (facts.node, workload.type[facts.node], facts.type, rank, facts.group, facts.peer, facts.tag, facts.size)
    for node, kind, what, own, group, peer, tag, size in zip(*(c.tolist() for c in columns), strict=True):
        if kind == NodeType.COLL and not (workload.played and what == CollectiveType.BROADCAST):  # which is work of its own rank
            collectives.setdefault(group, {}).setdefault(own, []).append(node)
        elif kind != NodeType.COLL:
            pair = (own, peer) if kind == NodeType.SEND else (peer, own)
            messages.setdefault((*pair, tag, size), ([], []))[kind != NodeType.SEND].append(node)
    for (source, target, tag, size), (sent, received) in messages.items():
        if len(sent) != len(received):
            raise GraphError(
                f"rank {workload.ranks[source]} sends {len(sent)} messages with tag {tag} and {size} bytes to rank"
                f" {workload.ranks[target]}, which receives {len(received)}; `lumos chakra check` names the nodes"
            )
    meetings = []
    for group, members in collectives.items():
        counts = {len(members.get(r, ())) for r in workload.groups[group]}
        if len(counts) > 1:
            raise GraphError(
                f"the ranks of group {workload.groups[group]} have {min(counts)} to {max(counts)} collectives of it; every member needs all"
            )
        meetings += [list(nodes) for nodes in zip(*members.values(), strict=True)]
    pairs = [pair for both in messages.values() for pair in zip(*both, strict=True)]
    return np.array(pairs, np.int64).reshape(-1, 2), meetings


def _dependency_kinds(workload: Workload, pred: Int64, succ: Int64, processor: Int32) -> Int8:
    """The kind of each dependency as far as its two tasks reveal it, else data."""
    out = np.full(len(pred), Dependency.DATA, np.uint8)
    kind, cpu = workload.kind, workload.on_cpu
    out[~cpu[pred] & ~cpu[succ] & (processor[pred] != processor[succ])] = Dependency.STREAM_WAIT
    out[~cpu[pred] & (kind[succ] == Kind.RETURN)] = Dependency.SYNC
    launch = np.flatnonzero((kind[pred] == Kind.LAUNCH) & ~cpu[succ])
    last = np.append(succ[launch][1:] != succ[launch][:-1], True) if len(launch) else np.empty(0, bool)
    out[launch[last]] = Dependency.LAUNCH  # of several launches before a device task the latest is its own
    rank = workload.rank_of()
    out[rank[pred] != rank[succ]] = Dependency.DATA
    return out


def _implied(processor: Int32, pred: Int64, succ: Int64) -> NDArray[np.bool_]:
    """Which dependencies are on the previous task of the same processor: the processor's order implies them already."""
    place = np.argsort(np.argsort(processor, kind="stable"))
    return np.asarray((processor[pred] == processor[succ]) & (place[pred] + 1 == place[succ]))


def _arrivals(workload: Workload, pred: Int64, succ: Int64) -> Int64:
    """When every node started; a communication starts when its rank arrives: when the last node that it waits for ends."""
    out = workload.start.copy()
    node = workload.communication.node
    arrival = np.full(len(out), np.iinfo(np.int64).min)
    np.maximum.at(arrival, succ, workload.start[pred] + workload.duration[pred])
    known = arrival[node] >= 0
    out[node[known]] = np.minimum(out[node[known]], arrival[node[known]])
    return out


def _collectives(workload: Workload) -> Collectives | None:
    facts = workload.communication
    if not len(facts):
        return None
    kinds = [kind_of_label(label) for label in facts.kinds]
    size = workload.members().astype(np.int32)
    columns = zip(*(c.tolist() for c in (facts.kind, facts.type, facts.size, size)), strict=True)
    nbytes = [input_bytes(kinds[kind], written, n, ranks) for kind, written, n, ranks in columns]
    return Collectives(
        task=facts.node.astype(np.int32),
        kind=facts.kind,
        nbytes=np.array(nbytes, np.int64),
        group=facts.group,
        sequence=facts.tag.astype(np.int64),
        peer=np.where(facts.peer >= 0, np.array(workload.ranks, np.int32)[facts.peer], ABSENT).astype(np.int32),
        kinds=tuple(kinds),
        groups=tuple(f"[{', '.join(str(workload.ranks[r]) for r in g)}]" for g in workload.groups),
        size=size,
    )
