"""Every schedule runs every pass once, in an order that the dependencies between stages allow."""

import pytest

from lumos.plan.schedules import Action, Pass, last_gradients, schedule

CASES = [
    (name, stages, microbatches, chunks)
    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1), ("dualpipe", 1))
    for stages in (2, 4)
    for microbatches in (stages, 2 * stages, 6 * stages)
    if name != "dualpipe" or microbatches >= 2 * stages
]


def place(name: str, stage: int, stages: int, chunk: int) -> int:
    """Place of a chunk among all chunks of the model."""
    return stages - 1 - stage if name == "dualpipe" and chunk else (stage if name == "dualpipe" else chunk * stages + stage)


@pytest.mark.parametrize(("name", "stages", "microbatches", "chunks"), CASES)
def test_schedules_are_complete_and_feasible(name, stages, microbatches, chunks):
    orders = [list(schedule(name, s, stages, microbatches, chunks)) for s in range(stages)]
    parts = stages * chunks
    done: set[tuple[Pass, int, int]] = set()
    progress = True
    while progress:
        progress = False
        for s, order in enumerate(orders):
            while order:
                action = order[0]
                at, m = place(name, s, stages, action.chunk), action.microbatch
                whole = action.step is Pass.BACKWARD
                step = Pass.BACKWARD if action.step is Pass.INPUT else action.step
                if step is Pass.FORWARD:
                    needs = [(Pass.FORWARD, at - 1, m)] if at else []
                elif step is Pass.WEIGHT:
                    needs = [(Pass.BACKWARD, at, m)]
                else:
                    needs = [(Pass.FORWARD, at, m)] + ([(Pass.BACKWARD, at + 1, m)] if at < parts - 1 else [])
                if not done.issuperset(needs):
                    break
                assert (step, at, m) not in done
                done |= {(step, at, m), (Pass.WEIGHT, at, m)} if whole else {(step, at, m)}
                order.pop(0)
                progress = True
    assert not any(orders), "the stages wait for each other"
    steps = (Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHT)
    assert done == {(step, at, m) for step in steps for at in range(parts) for m in range(microbatches)}


def in_flight(actions: list[Action]) -> int:
    live = most = 0
    for action in actions:
        live += {Pass.FORWARD: 1, Pass.BACKWARD: -1, Pass.INPUT: 0, Pass.WEIGHT: -1}[action.step]
        most = max(most, live)
    return most


def test_1f1b_holds_as_many_microbatches_as_stages_behind_it():
    assert [in_flight(schedule("1f1b", s, 4, 16)) for s in range(4)] == [4, 3, 2, 1]


def test_zero_bubble_puts_weights_off_within_the_memory_of_1f1b():
    assert [in_flight(schedule("zero-bubble", s, 4, 16)) for s in range(4)] == [4] * 4
    last = schedule("zero-bubble", 3, 4, 8)
    assert [a.step for a in last[-4:]] == [Pass.WEIGHT] * 4


def test_dualpipe_holds_one_microbatch_more_than_stages():
    assert [in_flight(schedule("dualpipe", s, 4, 16)) for s in range(4)] == [5] * 4


def test_gradients_are_complete_after_the_last_pass_that_makes_some():
    assert last_gradients(schedule("zero-bubble", 3, 4, 8)) == {0: 23}
    assert last_gradients(schedule("1f1b", 0, 4, 8)) == {0: 15}
    down_and_up = schedule("dualpipe", 1, 4, 8)
    assert [down_and_up[i][:2] for _, i in sorted(last_gradients(down_and_up).items())] == [(Pass.WEIGHT, 3), (Pass.WEIGHT, 7)]
