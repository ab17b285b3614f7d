"""The example that was run on ASTRA-sim: a graph exports to the same nodes, and replays to the simulator's times."""

from pathlib import Path

import pytest
from tests.chakra import two_stages

import lumos
from lumos.simulation import simulate

COMP, SEND, RECV, COLL = 4, 5, 6, 7


def test_our_replay_ends_where_the_simulator_did(stages: Path) -> None:
    example = two_stages
    job = lumos.build(lumos.read(stages))
    timeline = simulate(job)
    rank = [job.processors[p].rank for p in job.processor]
    finish = [int(timeline.end[[r == wanted for r in rank]].max()) for wanted in range(4)]
    assert finish == pytest.approx(example.FINISH, rel=1e-6)
    assert timeline.end[:6].tolist() == pytest.approx(example.RANK_0, rel=1e-5)
    assert [d.code for d in job.diagnostics] == ["costed", "never-measured"]
