"""Recorded transfers on other hardware: the cost model is asked for the bytes that cross the links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lumos.cost.cluster import load_cluster
from lumos.cost.collective import collective
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind
from lumos.whatif.hardware import network, on_cluster, on_host
from lumos.whatif.layout.measured_layout import measured_layout

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu"


@pytest.mark.parametrize(("kind", "parts"), [(CollectiveKind.ALL_REDUCE, 1), (CollectiveKind.ALL_GATHER, 4)])
def test_a_gather_is_costed_by_the_whole_buffer_not_one_ranks_part(kind, parts):
    job = read(str(EXAMPLE))
    graph = build(job)
    facts = replace(
        graph.collectives, kinds=(kind,), nbytes=np.full_like(graph.collectives.nbytes, 2**20), size=np.full_like(graph.collectives.size, 4)
    )
    graph = replace(graph, collectives=facts)
    old, new = load_cluster("h100"), network(load_cluster("h100"), ["bandwidth=x0.5"])
    found = on_cluster(measured_layout(segment(graph, job)), job, old, new, "slower links")
    before, after = (int(collective(kind, 4, parts * 2**20, cluster).time) for cluster in (old, new))
    assert set(found.factor[facts.task].tolist()) == {after / before}


def test_the_cpu_of_another_host_takes_longer_or_is_unknown():
    job = read(str(EXAMPLE))
    graph = build(job)
    layout = measured_layout(segment(graph, job))
    works = graph.kind != Kind.COLLECTIVE  # a job on CPUs: all but its transfers
    known, unknown = on_host(layout, 1.5), on_host(layout, None)
    for column in (known.factor, known.low, known.high):
        assert np.array_equal(column, np.where(works, 1.5, 1.0))
    assert (known.changes, known.diagnostics) == (("host factor = 1.5",), ())
    assert np.array_equal(unknown.factor, np.ones(len(graph)))
    assert np.array_equal(unknown.low, np.where(works, 0.85, 1.0)) and np.array_equal(unknown.high, np.where(works, 1.15, 1.0))
    assert [d.code for d in unknown.diagnostics] == ["host-unknown"]
