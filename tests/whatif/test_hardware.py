"""Recorded transfers on other hardware: the cost model is asked for the bytes that cross the links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lumos.cost.cluster import load_cluster
from lumos.cost.collective import collective
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind
from lumos.whatif.hardware import network, on_cluster
from lumos.whatif.measured_layout import measured_layout

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
