"""The parts of all-to-alls of unequal size: as recorded, or filled in so that they fit on all ranks."""

import os
from pathlib import Path

import pytest

from lumos.proxy.executed import executed_rank
from lumos.proxy.program import Program, RankProgram, RecordedCollective, RecordedOperator
from lumos.proxy.splits import fill_splits
from lumos.trace.execution_trace import read
from lumos.vocabulary import CollectiveKind


def program(*calls: RecordedCollective | None) -> Program:
    """One all-to-all on each of the ranks, None where a rank issues none."""
    ranks = []
    for rank, call in enumerate(calls):
        operators = [RecordedOperator("c10d::alltoall_base_", collective=call)] if call is not None else []
        ranks.append(RankProgram(rank, "step", -1, False, 1, operators, [], []))
    return Program(ranks, [tuple(range(len(calls)))], len(calls), "profiler")


def call(sent: int, received: int, ins: tuple[int, ...] = (), outs: tuple[int, ...] = ()) -> RecordedCollective:
    return RecordedCollective(CollectiveKind.ALL_TO_ALL, "float32", sent, received, 0, splits_in=ins, splits_out=outs)


def parts(made: Program) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    found = [operator.collective for rank in made.ranks for operator in rank.walk()]
    return [(one.splits_in, one.splits_out) for one in found if one is not None]


def test_equal_parts_stay_equal() -> None:
    made = program(call(8, 8), call(8, 8))
    assert fill_splits(made) == []
    assert parts(made) == [((), ()), ((), ())]


def test_parts_that_fit_are_kept() -> None:
    """Rank 0 keeps 1 and sends 3, rank 1 sends 2 and keeps 4."""
    wanted = [((1, 3), (1, 2)), ((2, 4), (3, 4))]
    made = program(call(4, 3, *wanted[0]), call(6, 7, *wanted[1]))
    assert fill_splits(made) == []
    assert parts(made) == wanted


def test_parts_that_were_not_recorded_are_filled_in() -> None:
    """Ranks send 10 and 5, and receive 6 and 9: in proportion 4 and 6, 2 and 3."""
    made = program(call(10, 6), call(5, 9))
    assert [note.code for note in fill_splits(made)] == ["splits-filled"]
    assert parts(made) == [((4, 6), (4, 2)), ((2, 3), (6, 3))]


def test_parts_of_different_steps_are_made_to_fit() -> None:
    """Rank 1 expects 5 elements of rank 0, which sends 3: what is sent decides, in equal parts."""
    made = program(call(4, 3, (1, 3), (1, 2)), call(6, 9, (2, 4), (5, 4)))
    assert [note.code for note in fill_splits(made)] == ["splits-filled"]
    assert parts(made) == [((2, 2), (2, 3)), ((3, 3), (2, 3))]


def test_ranks_that_issue_different_numbers_are_told() -> None:
    assert [note.code for note in fill_splits(program(call(4, 4), None))] == ["transfers-unpaired"]


@pytest.mark.skipif(not os.environ.get("LUMOS_TRACES"), reason="LUMOS_TRACES is not set: the public traces are not here")
def test_the_parts_of_a_recommendation_model() -> None:
    """Its fourth all-to-all sends indices to the ranks that hold the tables, of 96 to 1,664 elements."""
    trace = read(Path(os.environ["LUMOS_TRACES"]) / "dlrm-8xv100" / "et-rank0.json.gz")
    calls = [o.collective for o in executed_rank(trace, 0, {"": 0}, None).walk() if o.collective is not None]
    uneven = [one for one in calls if one.elements_in != one.elements_out]
    assert [(one.elements_in, one.elements_out) for one in uneven] == [(3392, 768)]
    assert uneven[0].splits_in == (96, 224, 288, 1664, 592, 96, 192, 240)
    assert uneven[0].splits_out == (96,) * 8
