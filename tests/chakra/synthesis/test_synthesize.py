"""Synthetic sets have the distributions and the step of their source, but none of its names."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.drawn_graph import drawn_collectives, drawn_graph
from validation.chakra_distances import distances

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.chakra.checks import check
from lumos.chakra.exporting import export_graph
from lumos.chakra.lower import lower
from lumos.chakra.statistics import stat_workload
from lumos.chakra.synthesis.every_rank import with_every_rank
from lumos.chakra.synthesis.model import learn
from lumos.chakra.synthesis.sample import sample
from lumos.errors import UsageError
from lumos.graph.table import Collectives, Graph, Kind, Processor
from lumos.simulation import simulate
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Job


def layered(layers: int = 6, ranks: int = 4, seed: int = 1) -> Graph:
    """A job whose layers run three kernels of about 100, 200 and 300 us, then a reduction over pairs of ranks. At the end comes
    a reduction over all ranks."""
    rng = np.random.default_rng(seed)
    rows, members = [], {}
    for rank in range(ranks):
        for layer in range(layers):
            rows += [(f"secret_{k}", Kind.KERNEL, 2 * rank, int(100_000 * (k + 1) * rng.uniform(0.8, 1.2))) for k in range(3)]
            members.setdefault((layer, rank // 2), []).append(len(rows))
            rows.append(("nccl", Kind.COLLECTIVE, 2 * rank, int(50_000 * rng.uniform(0.9, 1.1))))
        members.setdefault(("all",), []).append(len(rows))
        rows.append(("nccl_all", Kind.COLLECTIVE, 2 * rank, 400_000))
    wide = [(task, int(rows[task][0] == "nccl_all")) for task in sorted(t for s in members.values() for t in s)]
    calls = [(task, "all-reduce", 8_000_000 if all_ranks else 1_000_000, all_ranks, -1, -1) for task, all_ranks in wide]
    return drawn_graph(
        [Processor(r, True, f"stream {s}", 0, s) for r in range(ranks) for s in (7, 9)],
        [(processor, kind, name, ns) for name, kind, processor, ns in rows],
        sets=list(members.values()),
        collectives=drawn_collectives(calls, ["tp", "dp"]),
    )


def step(graph: Graph) -> int:
    return int(simulate(graph).end.max())


def test_a_sample_has_the_distributions_of_its_source_but_no_names() -> None:
    source = lower(layered(24))
    found = sample(learn([source]), seed=3).graph
    drawn = lower(found)
    assert not set(source.names) & set(drawn.names)
    assert max(distances(source, drawn).values()) <= 0.1
    assert step(found) == pytest.approx(step(layered(24)), rel=0.05)
    assert not set(source.communication.size.tolist()) & set(drawn.communication.size.tolist())


def test_a_sample_is_valid_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    model = learn([lower(layered())])
    one, other = sample(model, 5).graph, sample(model, 5).graph
    assert one.duration.tolist() == other.duration.tolist()
    assert one.duration.tolist() != sample(model, 6).graph.duration.tolist()
    export_graph(one, tmp_path, exact_ns=True, astra_sim=True)
    assert check(tmp_path).violations == ()


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"ranks": 6}, "multiple"),
        ({"ranks": 2}, "multiple"),
        ({"ranks": 4_000_000}, r"nodes, more than the 25,000,000 that are sampled; give fewer --ranks"),
        ({"seed": -1}, "--seed -1: give a number of 0 or more"),
    ],
)
def test_wishes_that_cannot_be_met(wish: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        sample(learn([lower(layered(6))]), **wish)


def test_stat_counts_what_is_there() -> None:
    found = stat_workload(lower(layered(3)))
    assert (found.ranks, found.total, found.nodes) == (4, 4 * 13, {"comp": 36, "coll": 16})
    assert found.symmetry == 1.0
    assert {c.kind: (c.nodes, c.ranks) for c in found.communication} == {"all-reduce": (16, 4)}


def test_the_steps_of_a_sample_follow_one_another_as_those_of_its_source(ahead: Graph, tmp_path: Path) -> None:
    found = sample(learn([lower(ahead)]), 3).graph
    export_graph(found, tmp_path, exact_ns=True)
    for job in (found, lumos.build(lumos.read(tmp_path))):
        times = step_times(simulate(job), members(job)).job
        assert [time.name for time in times] == [f"ProfilerStep#{number}" for number in range(3)]
        assert [time.basis for time in times] == ["latency", "period", "period"]
        assert [time.completion_ns for time in times] == pytest.approx([40_000, 70_000, 100_000], rel=0.3)


def one_of_four() -> tuple[Graph, Job]:
    """Rank 2 of four: kernels and a reduction with rank 3 in each layer, then one with rank 0 and one of all; first comes a message."""
    whole = layered(6, ranks=1)
    assert whole.collectives is not None
    tasks = whole.collectives.task
    kinds, groups = ("all-reduce", "send"), ("tp [2, 3]", "dp [0, 2]", "world")
    kind, group = np.zeros(len(tasks), np.int32), np.zeros(len(tasks), np.int32)
    group[-1], group[-2], kind[0] = ABSENT, 1, 1
    facts = Collectives(tasks, kind, np.full(len(tasks), 1 << 20), group, np.full(len(tasks), ABSENT), group * 0 + ABSENT, kinds, groups)
    graph = replace(
        whole,
        ranks=(2,),
        processors=tuple(replace(p, rank=2) for p in whole.processors),
        collectives=facts,
        rendezvous_offset=np.zeros(1, np.int64),
        rendezvous_task=np.empty(0, np.int32),
    )
    return graph, Job((SimpleNamespace(world_size=4),), ())  # type: ignore[arg-type]


def test_of_one_recorded_rank_all_ranks_are_made_whose_collectives_meet(tmp_path: Path) -> None:
    graph, job = one_of_four()
    every = with_every_rank(graph, job)
    assert (every.ranks, len(every), step(every)) == ((0, 1, 2, 3), 4 * len(graph), step(graph))
    workload = lower(every)
    assert sorted(workload.groups) == [(0, 1), (0, 1, 2, 3), (0, 2), (1, 3), (2, 3)]
    assert (workload.type == NodeType.COLL).sum() == 4 * (len(graph.collectives.task) - 1)  # type: ignore[union-attr]  # without the message
    wide = sample(learn([workload]), 1, ranks=8).graph
    assert sorted(map(len, lower(wide).groups)) == [2] * 4 + [4] * 2 + [8]
    export_graph(wide, tmp_path)
    assert check(tmp_path).violations == ()
    assert [d.code for d in every.diagnostics] == ["ranks-copied", "group-assumed"]


def test_ranks_that_were_recorded_are_not_made_anew() -> None:
    for graph in (layered(6), lumos.build(lumos.read("examples/foreign/LSTM__tf32"))):
        assert with_every_rank(graph, Job((), ())) is graph
