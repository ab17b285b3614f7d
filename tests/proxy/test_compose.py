"""Several steps as one program."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.proxy.conftest import Write, annotation, mm, operator

from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.proxy.compose import composed
from lumos.proxy.facade import generate
from lumos.proxy.generation import from_job, representative_steps
from lumos.proxy.program import Program
from lumos.trace import read


def steps(kineto: Write, *lengths: int, name: str = "rank0.json") -> Path:
    """Steps 100 us apart, whose only operators take these times."""
    rows = [row for n, length in enumerate(lengths, 1) for row in (annotation(f"ProfilerStep#{n}", 100 * n, 90), mm(100 * n + 10, length))]
    return kineto(*rows, name=name)


def part(path: Path, step: str) -> Program:
    return from_job(read(path), step)[0]


def test_steps_that_stand_for_equal_parts_of_all_are_taken(kineto: Write) -> None:
    """By their times, from one completion to the next, the steps are 1 (its own time), 3, 2 and 4: the middle ones of two halves."""
    graph = build(read(steps(kineto, 20, 30, 10, 40, 35, 15)))
    assert len(representative_steps(graph, 2)) == 2
    assert representative_steps(graph, 5) == [f"ProfilerStep#{n}" for n in (2, 3, 4, 5, 6)]
    with pytest.raises(UsageError, match="--steps 9: the recording has 5 steps that count"):
        representative_steps(graph, 9)


def test_parts_run_one_after_the_other(kineto: Write) -> None:
    """Step 2 is complete 110 us after step 1, of which its operator takes 30; step 3 takes 80 after that."""
    path = steps(kineto, 20, 30, 10)
    parts = [part(path, "2"), part(path, "3")]
    whole = composed(parts)
    [rank] = whole.ranks
    assert rank.step == "ProfilerStep#2 + ProfilerStep#3"
    assert rank.recorded_ns == sum(p.ranks[0].recorded_ns for p in parts) == 190_000
    first, second = rank.operators
    assert (first.start_ns, second.start_ns) == (10_000, 10_000 + 30_000 + parts[1].ranks[0].before_ns)
    tensors = [{argument["tensor"] for argument in o.inputs or ()} for o in (first, second)]
    assert not tensors[0] & tensors[1] and max(tensors[1]) < len(rank.tensors)
    assert {rank.tensors[i].storage for i in tensors[0]}.isdisjoint({rank.tensors[i].storage for i in tensors[1]})


def test_operators_groups_and_transfers_keep_their_meaning(kineto: Write) -> None:
    header = {"backend": "gloo", "rank": 0, "world_size": 1, "pg_config": [{"pg_name": "7", "ranks": [0]}]}
    facts = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Process Group Name": "7"}
    path = kineto(mm(0, 10), operator("record_param_comms", 20, 5, **facts), name="rank0.json", distributedInfo=header)
    one = from_job(read(path))[0]
    one.ranks[0].operators[1].after.append(0)
    one.ranks[0].operators[0].backward = 1
    whole = composed([one, one])
    mm_, transfer = whole.ranks[0].operators[2:]
    assert (mm_.backward, transfer.after) == (3, [2])
    assert transfer.collective is not None and whole.groups[transfer.collective.group] == (0,)


def test_parts_of_jobs_of_other_sizes_are_refused(kineto: Write) -> None:
    one = from_job(read(kineto(mm(0, 10))))[0]
    other = from_job(read(kineto(mm(0, 10), name="rank1.json", distributedInfo={"rank": 1, "world_size": 2})))[0]
    with pytest.raises(UsageError, match="the same ranks of jobs of the same size"):
        composed([one, other])


def test_the_verb_takes_steps_and_other_recordings(kineto: Write, tmp_path: Path) -> None:
    path = steps(kineto, 20, 30, 10, 40)
    other = steps(kineto, 50, 60, name="other-rank0.json")
    found = generate(path, tmp_path / "proxy", then=[other])
    assert found.operators == 2
    assert generate(path, tmp_path / "more", steps=2).operators == 2
    with pytest.raises(UsageError, match="not with --step"):
        generate(path, tmp_path / "no", steps=2, step="2")
