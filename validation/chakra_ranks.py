"""All ranks of a job made of one: jobs of which every rank is known, learned from one rank's file alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.chakra.lower import lower
from lumos.chakra.synthesis.every_rank import with_every_rank
from lumos.chakra.synthesis.model import learn
from lumos.chakra.synthesis.sample import sample
from lumos.graph.table import Graph
from lumos.simulation import simulate
from lumos.trace.chakra.schema import NodeType

#: A job whose ranks lie on three axes: tensor 2, pipeline 1, data 4.
PLAN = {"model": "gpt3-1.3b", "cluster": "h100", "gpus": 8, "tp": 2, "global_batch": 8, "seq": 1024, "micro_batch": 1, "blocks": False}


class OneRank(NamedTuple):
    """A job, and the sample of all its ranks that was learned from one. error: of the sample's step. collectives: of the sample and of the
    whole job, over all ranks."""

    job: str
    rank: int
    error: float
    collectives: tuple[int, int]


def rows(traces: Path) -> Iterator[OneRank]:
    """Every job from its first and its last rank."""
    yield from _of_job("dlrm-8xv100", sorted((traces / "dlrm-8xv100").glob("kineto-rank*")))
    yield from _of_job("gpt-2rank-cpu", sorted(Path("examples/gpt-2rank-cpu").glob("rank*")))
    with tempfile.TemporaryDirectory() as scratch:
        lumos.export(lumos.predict(**PLAN), kineto=scratch)  # type: ignore[arg-type]
        yield from _of_job("gpt3-1.3b, predicted, tp 2, dp 4", sorted(Path(scratch).glob("*.json*")))


def _of_job(name: str, files: list[Path]) -> Iterator[OneRank]:
    job = lumos.build(lumos.read(*files))
    step, known = _step(job), _collectives(job)
    for rank in (0, len(files) - 1):
        recorded = lumos.read(files[rank])
        drawn = sample(learn([lower(with_every_rank(lumos.build(recorded), recorded))])).graph
        yield OneRank(name, rank, _step(drawn) / step - 1, (_collectives(drawn), known))


def _step(graph: Graph) -> int:
    return step_times(simulate(graph), members(graph)).headline.step_time_ns


def _collectives(graph: Graph) -> int:
    return int((lower(graph).type == NodeType.COLL).sum())
