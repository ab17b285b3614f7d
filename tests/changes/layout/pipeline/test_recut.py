"""A recorded pipeline cut anew: the steps of the changed pipelines follow by hand.

Layers take 10 ms forward and 20 ms backward, messages 50 us, everything else next to nothing. With m microbatches on p stages a step takes
(m + p − 1) · (F + B) of a stage, and with v chunks each (m + (p − 1) / v) · (F + B).
"""

from dataclasses import replace
from itertools import groupby

import pytest
from validation.machine import run
from validation.machine_trace import write_trace
from validation.program import Give, Kernel, Message, Operator, Program, Rank, Synchronise, Take, Wait

from lumos.changes.changes import Changes
from lumos.changes.layout.pipeline.recorded import Pipeline
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.plan.schedules import Pass
from lumos.trace import read
from lumos.vocabulary import Grade, Schedule

#: The passes of each of two stages with four microbatches, as a forward (F) and a backward one (B).
ONE_F_ONE_B = ("FFBFBFBB", "FBFBFBFB")
GPIPE = ("FFFFBBBB",) * 2
#: Two chunks each, by number: two microbatches of the first, two of the second, and so on.
INTERLEAVED = ("F0 F0 F1 F1 F0 B1 F0 B1 F1 B0 F1 B0 B1 B1 B0 B0", "F0 F0 F1 B1 F1 B1 F0 B0 F0 B0 F1 B1 F1 B1 B0 B0")


def kernel(name, us):
    return Operator(name, 4, Kernel(f"{name} kernel", us), 4)


#: What makes a layer long enough to tell forward from recomputed work by names alone.
SMALL = tuple(kernel(f"aten::{word}", 1) for word in ("view", "add", "mul", "gelu"))
SMALL_BACKWARD = tuple(kernel(f"{word}_backward", 1) for word in ("gelu", "mul", "add", "view"))


def message(sends, peer, backward):
    """A message on the stream of its direction and side, which first waits for what has been computed."""
    stream = 20 + 4 * backward + 8 * sends
    name = "c10d::send" if sends else "c10d::recv_"
    sent = Operator(name, 4, Kernel("ncclDevKernel_SendRecv", 50, stream, (Message(sends, peer),)), 4)
    return (Wait(stream, 7), sent) if sends else (Wait(stream, 7), sent, Wait(7, stream))


def stage(number, stages, passes, layers, optimizer=10, adds=0):
    """What one stage does. passes: each a letter, and the number of its chunk where there are several. adds: us that a layer takes to add
    its gradients to those of the microbatches before."""
    actions, chunks, ran = [], 1 + max(int(each[1:] or 0) for each in passes), set()
    for each in passes:
        backward, chunk = each[0] == "B", int(each[1:] or 0)
        place, places = chunk * stages + number, chunks * stages
        first, last = (place == places - 1, place == 0) if backward else (place == 0, place == places - 1)
        ahead = -1 if backward else 1
        if not first:
            actions += message(False, (number - ahead) % stages, backward)
        ends = {(False, True): "aten::embedding", (False, False): "aten::nll_loss"}
        if backward:
            actions += [kernel("nll_loss_backward", 5)] if first else []
            added = adds if each in ran else 0
            ran.add(each)
            actions += [kernel("linear_backward", 19990 + added), *SMALL_BACKWARD, kernel("layer_norm_backward", 6)] * layers
            actions += [kernel("embedding_backward", 5)] if last else []
        else:
            actions += [kernel(ends[False, True], 5)] if first else []
            actions += [kernel("aten::layer_norm", 6), *SMALL, kernel("aten::linear", 9990)] * layers
            actions += [kernel(ends[False, False], 5)] if last else []
        if not last:
            actions += message(True, (number + ahead) % stages, backward)
    return Rank(((*actions, kernel("sgd_update", optimizer), Synchronise()),))


def pipeline(tmp_path, orders, layers=(2, 2, 2, 2), ranks=None, adds=0):
    """The recording of a pipeline, and its graph. layers: of every stage."""
    found = [order.split() if " " in order else list(order) for order in orders]
    program = Program(tuple(stage(i, len(orders), passes, layers[i], adds=adds) for i, passes in enumerate(found)))
    paths = write_trace(run(program, 6), tmp_path, 3)
    job = read(*paths[:ranks])
    return job, build(job)


def step(found, *words, force=False):
    return answer_changes(*found, Changes(parse_settings(words)), force=force)


def step_ms(found, *words):
    return 1e3 * step(found, *words).outcome.step_time_s


@pytest.mark.parametrize("orders", [ONE_F_ONE_B, GPIPE])
@pytest.mark.parametrize(
    ("words", "ms"),
    [
        (["microbatches=8"], 9 * 60),
        (["microbatches=2"], 3 * 60),
        (["schedule=gpipe"], 5 * 60),
        (["schedule=1f1b"], 5 * 60),
        (["pp=4"], 7 * 30),
        (["pp=4", "microbatches=8"], 11 * 30),
        (["vpp=2"], 4.5 * 60),
        (["layers=8"], 5 * 120),
        (["layers=2"], 5 * 30),  # as many as a stage has now
        (["layers=8", "pp=4"], 7 * 60),
    ],
)
def test_the_step_is_that_of_the_new_pipeline(tmp_path, orders, words, ms):
    found = pipeline(tmp_path, orders)
    assert step(found, "pp=2").base.step_time_s == pytest.approx(0.3, rel=0.01)
    assert step_ms(found, *words) == pytest.approx(ms, rel=0.01)


def test_only_the_first_microbatch_to_run_adds_no_gradients(tmp_path):
    """A stage of two layers and one of four, whose layers take 20 ms to add gradients. The second computes forward from 20 to 180 ms, and
    backward 80 ms, then three times 160; the first then runs its last backward pass, of 80 ms, whichever microbatch that is."""
    found = pipeline(tmp_path, ONE_F_ONE_B, layers=(2, 4), adds=20_000)
    assert step_ms(found, "schedule=gpipe") == pytest.approx(20 + 160 + 80 + 3 * 160 + 80, rel=0.01)


def test_chunks_become_one(tmp_path):
    """Chunks of two layers: a pass over a stage takes 40 ms forward and 80 ms backward, in whatever chunks."""
    found = pipeline(tmp_path, INTERLEAVED)
    assert 1e3 * step(found, "pp=2").base.step_time_s == pytest.approx(4.5 * 120, rel=0.01)
    assert step_ms(found, "vpp=1") == pytest.approx(5 * 120, rel=0.01)
    assert step_ms(found, "vpp=1", "pp=4") == pytest.approx(7 * 60, rel=0.01)


def test_every_chunk_has_its_part_of_other_layers(tmp_path):
    """Eight layers in chunks of two; sixteen are chunks of four, which take twice as long."""
    assert step_ms(pipeline(tmp_path, INTERLEAVED), "layers=16") == pytest.approx(2 * 4.5 * 120, rel=0.01)


def test_stages_of_one_layer_each_are_joined_and_ordered_whole(tmp_path):
    """No pass shows layers that repeat."""
    found = pipeline(tmp_path, ["FFFFBBBB"] * 4, layers=(1, 1, 1, 1))
    assert step_ms(found, "schedule=1f1b", "microbatches=8") == pytest.approx(11 * 30, rel=0.01)
    assert step_ms(found, "pp=2") == pytest.approx(5 * 60, rel=0.01)
    with pytest.raises(UsageError, match="4 stages, whose passes show no layers that repeat, cannot be spread over 3 chunks"):
        step(found, "pp=3")


def test_half_of_what_an_order_of_passes_gains_is_sure(tmp_path):
    """Real pipelines gain less by more chunks than the order of their passes says."""
    answered = step(pipeline(tmp_path, ONE_F_ONE_B), "pp=4")
    gained = answered.base.step_time_s - answered.outcome.step_time_s
    assert answered.base.step_time_s - answered.outcome.step_time_high_s == pytest.approx(gained / 2, rel=0.02)


def test_what_is_asked_as_it_was_recorded_changes_nothing(tmp_path):
    answer = step(pipeline(tmp_path, ONE_F_ONE_B), "pp=2", "schedule=1f1b", "microbatches=4")
    assert answer.changes == ("pp = 2 (as measured)",)
    assert answer.outcome.step_time_s == pytest.approx(answer.base.step_time_s, rel=0.002)
    assert answer.trust.grade == "sound"


def test_new_stages_are_assumed(tmp_path):
    answer = step(pipeline(tmp_path, ONE_F_ONE_B), "pp=4")
    said = next(d.message for d in answer.diagnostics if d.code == "stages-assumed")
    assert "2 chunks on 2 stages; assumed are 1, 1, 1, 1 layers in 4 chunks" in said
    assert "messages of 50.0 µs, as recorded" in said
    assert answer.trust.grade == "sound"  # messages of twice the time would move a step of 300 ms by less than a hundredth


def test_other_microbatches_need_no_assumption(tmp_path):
    answer = step(pipeline(tmp_path, ONE_F_ONE_B), "microbatches=8")
    assert answer.changes == ("microbatches = 8 (measured: 4)",)
    assert answer.trust.grade == "sound"


@pytest.mark.parametrize(
    ("words", "error", "reason"),
    [
        (["pp=1", "vpp=2"], UsageError, "one stage has no order of passes, no chunks and no ends"),
        (["pp=1", "schedule=gpipe"], UsageError, "one stage has no order of passes, no chunks and no ends"),
        (["pp=8"], UsageError, "4 layers cannot be spread over 8 chunks"),
        (["vpp=2", "microbatches=3"], UsageError, "an interleaved pipeline of 2 stages needs a multiple of them"),
        (["schedule=1f1b", "vpp=2"], UsageError, "several chunks need the interleaved one"),
    ],
)
def test_what_no_recorded_stage_can_become_is_refused(tmp_path, words, error, reason):
    with pytest.raises(error, match=reason):
        step(pipeline(tmp_path, ONE_F_ONE_B), *words)


def test_an_order_that_no_schedule_has_is_refused(tmp_path):
    """Two backward passes, and then two forward passes, where 1F1B would take turns."""
    with pytest.raises(LumosError, match="the order of its passes is that of no schedule that Lumos knows"):
        step(pipeline(tmp_path, ["FFFBBFBB", "FFBBFBFB"]), "microbatches=8")


def test_a_pipeline_without_all_its_stages_is_refused(tmp_path):
    with pytest.raises(LumosError, match="give at least one rank of every pipeline stage"):
        step(pipeline(tmp_path, ONE_F_ONE_B, ranks=1), "microbatches=8", force=True)


def test_the_work_of_every_new_stage_is_that_of_the_trace_it_copies(tmp_path):
    """Stages 0 and 1 are made of the first recorded rank, 2 and 3 of the second."""
    found = pipeline(tmp_path, ONE_F_ONE_B)
    recorded = step(found, "pp=4").recorded
    first, second = found[0].traces
    assert [trace is first for trace in recorded.traces] == [True, True, False, False]
    assert [trace is second for trace in recorded.traces] == [False, False, True, True]


def test_an_interleaved_pipeline_runs_ahead_as_far_with_as_many_microbatches_as_stages():
    """Two stages of two chunks: the first runs (2 − 1) · 2 + 2 · 1 = 4 passes ahead, which are all, the second 2."""
    pipeline = Pipeline(2, 2, Schedule.INTERLEAVED)
    first, second = ("".join("F" if a.step is Pass.FORWARD else "B" for a in pipeline.actions(stage, 2)) for stage in (0, 1))
    assert (first, second) == ("FFFFBBBB", "FFFBFBBB")
    older = replace(pipeline, forward_first=True).actions(1, 2)
    assert [a.step is Pass.FORWARD for a in older] == [True] * 4 + [False] * 4
    assert set(older) == set(pipeline.actions(1, 2))


def calling(number, passes, divides):
    """A stage whose backward passes run on a second thread. The first one calls them and divides the gradients of a chunk, in that many us,
    when all of these have come and the message after them has been issued."""
    (actions,) = stage(number, 2, passes, 2).threads
    backward = [i for i, each in enumerate(passes) if each[0] == "B"]
    ends = {i for i in backward if passes[i] not in passes[i + 1 :]}
    main, autograd, calls = [], [], iter(backward)
    divided = False
    for on_second, group in groupby(actions, key=lambda a: getattr(a, "name", "").endswith("_backward")):
        own = list(group)
        if not on_second:
            sent = 2 if getattr(own[1], "name", "") == "c10d::send" else 0
            main += [*own[:sent], *([kernel("aten::div_", divides)] if divided else []), *own[sent:]]
            continue
        call = next(calls)
        divided = call in ends
        main += [Give(f"pass {call}"), Take(f"gradients {call}")]
        autograd += [Take(f"pass {call}"), *own, Give(f"gradients {call}")]
    return Rank((tuple(main), tuple(autograd)))


def test_what_the_calling_thread_does_between_passes_holds_up_the_next_pass_and_no_message(tmp_path):
    """Passes of 20 and 40 ms. With two microbatches the second stage runs its passes over the second chunk until 180 ms, and sends the last
    gradients; it divides those of the chunk until 190 ms, and runs the first backward pass over the first chunk until 230 ms. The first
    stage has its last gradients over the second chunk at 220 ms, divides until 230 ms, runs the next pass until 270 ms, gets the last
    message then, and ends at 310 ms, but for the division."""
    program = Program(tuple(calling(i, each.split(), 10_000) for i, each in enumerate(INTERLEAVED)))
    job = read(*write_trace(run(program, 6), tmp_path, 3))
    found = step((job, build(job)), "microbatches=2")
    assert 1e3 * found.outcome.step_time_s == pytest.approx(310 + 10, rel=0.01)
    assert found.trust.grade is Grade.SOUND


def test_a_message_waits_for_the_passes_own_stream(tmp_path):
    """Every layer also launches a copy on a stream of its own, which ends long before the layer."""
    beside = Operator("aten::copy_", 4, Kernel("copy beside", 1, 60), 4)
    ranks = []
    for number, passes in enumerate(ONE_F_ONE_B):
        (actions,) = stage(number, 2, passes, 2).threads
        ranks.append(Rank((tuple(each for a in actions for each in ((beside, a) if getattr(a, "name", "") == "aten::linear" else (a,))),)))
    job = read(*write_trace(run(Program(tuple(ranks)), 6), tmp_path, 3))
    assert step_ms((job, build(job)), "microbatches=8") == pytest.approx(9 * 60, rel=0.01)
