"""Sets of one family: jobs of one program on other plans, with other layers and widths, whose times follow by hand."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.chakra.synthesis.test_synthesize import step
from tests.drawn_graph import drawn_collectives, drawn_graph
from validation.chakra_distances import distances

import lumos
from lumos.chakra.checks import check
from lumos.chakra.exporting import export_graph
from lumos.chakra.lower import lower
from lumos.chakra.synthesis.facade import disclosure, facts_of_sets
from lumos.chakra.synthesis.family import sample_family
from lumos.chakra.synthesis.grid import Grid, grid_of, with_axes
from lumos.chakra.synthesis.layers import LAYER_NODES, RepeatedRegion, layer_regions
from lumos.chakra.synthesis.model import SetModel, learn
from lumos.chakra.synthesis.trends import fitted, transfer_times
from lumos.chakra.workload import Workload
from lumos.errors import UsageError
from lumos.graph.table import Graph, Kind, Processor

US = 1000


def plan(tp: int, dp: int, layers: int, width: int, exchanged: Mapping[int, int] | None = None, at_end: int | None = None) -> Graph:
    """Every rank runs LAYER_NODES kernels a layer, each 1 us for each unit of width and shared by the tensor-parallel ranks, then an
    all-reduce over these of 4 bytes for each; at the end all replicas reduce as many bytes as there are layers.

    exchanged: the bytes that all replicas reduce after some of the layers, at 1 ns each; at_end: those at the end."""
    world, rows, meetings, size = tp * dp, [], {}, {}
    for rank in range(world):
        for layer in range(layers):
            rows += [(k, Kind.KERNEL, rank, width * US * (10 if k else 20) // tp) for k in range(LAYER_NODES)]
            if tp > 1:
                meetings.setdefault((layer, rank // tp), []).append(len(rows))
                size[len(rows)] = 4_000 * width
                rows.append((LAYER_NODES, Kind.COLLECTIVE, rank, width * US))
            if layer in (exchanged or {}):
                meetings.setdefault(("bucket", layer), []).append(len(rows))
                size[len(rows)] = exchanged[layer]
                rows.append((LAYER_NODES + 1, Kind.COLLECTIVE, rank, exchanged[layer]))
        if dp > 1:
            meetings.setdefault(("all", rank % tp), []).append(len(rows))
            size[len(rows)] = at_end or 4_000 * layers
            rows.append((LAYER_NODES + 1, Kind.COLLECTIVE, rank, at_end or 10 * layers * US))
    calls = [(t, "all-reduce", size[t], int(rows[t][0] != LAYER_NODES), -1, -1) for t in sorted(size)]
    return drawn_graph(
        [Processor(r, True, "stream 7", 0, 7) for r in range(world)],
        [(rank, kind, f"secret_{label}", ns) for label, kind, rank, ns in rows],
        sets=list(meetings.values()),
        collectives=drawn_collectives(calls, ["inner", "outer"]),
    )


FACTS = [
    (1, 2, 4, 10),
    (2, 1, 4, 10),
    (2, 2, 6, 20),
    (4, 2, 4, 40),
    (2, 4, 8, 20),
    (4, 4, 6, 10),
    (2, 2, 8, 40),
    (4, 2, 8, 20),
    (2, 8, 4, 10),
]
KEYS = ("tp", "dp", "layers", "width")


@pytest.fixture(scope="module")
def sources() -> list[Workload]:
    return [lower(plan(*facts)) for facts in FACTS]


@pytest.fixture(scope="module")
def family(sources: list[Workload]) -> SetModel:
    return learn(sources, [dict(zip(KEYS, facts, strict=True)) for facts in FACTS])


@pytest.mark.parametrize("facts", [(2, 2, 4, 40), (4, 4, 10, 20), (2, 8, 5, 15)])
def test_a_sample_is_as_the_set_would_be(family: SetModel, tmp_path: Path, facts: tuple[int, ...]) -> None:
    """No set of these facts was learned from; with them every duration and size of the family is a product of powers."""
    found = sample_family(family, 1, dict(zip(KEYS, facts, strict=True)))
    truth, drawn = plan(*facts), lower(found.graph)
    assert len(drawn) == len(truth)
    assert step(found.graph) == pytest.approx(step(truth), rel=0.05)
    expected = lower(truth)
    assert sorted(expected.groups) == sorted(drawn.groups)
    assert drawn.communication.size.sum() == pytest.approx(expected.communication.size.sum(), rel=0.05)
    assert not any("secret" in name for name in drawn.names)
    export_graph(found.graph, tmp_path, exact_ns=True, astra_sim=True)
    assert check(tmp_path).violations == ()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"heads": 4}, "known are tp, dp, layers, width"),
        ({"width": 0}, "must be from 1"),
        ({"tp": 1, "dp": 1}, "no set of that kind was learned from"),
    ],
)
def test_what_no_set_shows_is_refused(family: SetModel, facts: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sample_family(family, 0, facts)


def test_a_fact_that_never_varied_is_refused_but_for_layers(sources: list[Workload]) -> None:
    model = learn([sources[2]], [dict(zip(KEYS, FACTS[2], strict=True))])
    assert len(sample_family(model, 0, {"layers": 3}).graph) == 4 * (3 * (LAYER_NODES + 1) + 1)
    with pytest.raises(UsageError, match="has width 20"):
        sample_family(model, 0, {"width": 40})
    with pytest.raises(UsageError, match="of no family"):
        sample_family(learn([sources[2]]), 0, {"width": 40})


def test_the_grid_is_read_from_communicators(sources: list[Workload]) -> None:
    structure = learn([sources[3]]).structures[0]
    grid = grid_of(structure, {"tp": 4, "dp": 2})
    assert grid == Grid(("tp", "dp", "pp"), (4, 2, 1))
    assert [grid.rank(grid.place(rank)) for rank in range(8)] == list(range(8))
    assert sorted(with_axes(structure, grid, {"tp": 2, "dp": 3}).groups) == [(0, 1), (0, 2, 4), (1, 3, 5), (2, 3), (4, 5)]
    with pytest.raises(UsageError, match="do not run along such axes"):
        grid_of(structure, {"tp": 8})
    with pytest.raises(UsageError, match="set of 8 ranks"):
        grid_of(structure, {"tp": 4})


def test_the_passes_over_the_layers_are_told_from_what_repeats_around_and_within_them() -> None:
    forward, backward = list(range(1, 10)), list(range(10, 22))
    microbatch = [99, 98, 98, 98, *4 * forward, 97, *4 * backward]
    found = layer_regions(np.array(4 * microbatch), 4)
    assert [(r.period, r.times) for r in found] == 4 * [(9, 4), (12, 4)]
    assert found[0] == RepeatedRegion(4, 9, 4)


def test_a_source_is_told_where_its_structure_is_its_own(family: SetModel, sources: list[Workload]) -> None:
    told = disclosure(sources, sources[1], 1, family.facts)
    assert (told.told, told.chance, told.structure, told.by_facts) == (1.0, pytest.approx(1 / 9), 1.0, 1.0)
    twins = disclosure([sources[1], sources[1]], sources[1], 1, [family.facts[1]] * 2)
    assert (twins.told, twins.by_facts) == (0.5, 0.5)  # a guess
    assert disclosure(sources, sources[0], 1, family.facts).told == 0.0


def test_a_transfer_of_a_size_and_ranks_that_no_set_has_takes_its_parts(sources: list[Workload]) -> None:
    """Learned from groups of 2, 4 and 8 ranks: 5 µs, 2 µs for each other rank, and 0.5 ns a byte that passes a link of a ring."""
    timed = []
    for workload in sources:
        others, duration, facts = workload.members() - 1, workload.duration.copy(), workload.communication
        duration[facts.node] = np.rint(5000 + 2000 * others + 0.5 * facts.size * others / (others + 1)).astype(np.int64)
        timed.append(replace(workload, duration=duration))
    for weights in fitted(timed).values():
        [time] = transfer_times(weights, np.array([1e6]), np.array([4.0]))
        assert time == pytest.approx(5000 + 2000 * 3 + 0.5 * 1e6 * 3 / 4, rel=0.03)
        assert min(weights) >= 0


def test_more_facts_that_vary_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="the sets differ in a, b, c, d, e, f, g; give 6 facts at most that vary"):
        facts_of_sets(2, dict.fromkeys("abcdefg", (1, 2)) | {"h": (3, 3)})


def test_the_verb_samples_a_set_that_is_like_one_it_has_not_seen(tmp_path: Path) -> None:
    for i, facts in enumerate(FACTS):
        export_graph(plan(*facts), tmp_path / str(i), exact_ns=True)
    listed = {key: [facts[i] for facts in FACTS] for i, key in enumerate(KEYS)}
    names = [tmp_path / str(i) for i in range(len(FACTS))]
    asked = {"tp": 2, "dp": 2, "layers": 4, "width": 20}
    found = lumos.chakra.synthesize(names, output=tmp_path / "out", facts=listed, at=asked).to_dict()
    assert found["facts"] == asked
    drawn, truth = lumos.build(lumos.read(tmp_path / "out")), plan(2, 2, 4, 20)
    assert lumos.simulate(drawn).end.max() == pytest.approx(lumos.simulate(truth).end.max(), rel=0.05)
    assert max(distances(lower(truth), lower(drawn), 0.05).values()) <= 0.1
    assert found["disclosure"]["chance"] == pytest.approx(1 / 9)
    with pytest.raises(UsageError, match="give --set instead of --ranks"):
        lumos.chakra.synthesize(names, output=tmp_path / "no", facts=listed, ranks=8)
    with pytest.raises(UsageError, match="2 values for 5 sets"):
        facts_of_sets(5, {"tp": [1, 2]})
