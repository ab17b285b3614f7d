"""Structural changes of the recorded GPT (two CPU processes, four layers), and their properties."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lumos.analyze.loop.steps import step_times
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.layout.accumulate import accumulation
from lumos.changes.layout.change import copied, layers, microbatches
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces, before_the_step
from lumos.changes.layout.recomputed import recompute
from lumos.changes.layout.reprice import reprice
from lumos.changes.layout.rescale import Devices
from lumos.changes.layout.resize import resize
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.segment.rank import recordings_of
from lumos.segment.segment import segment
from lumos.simulation import simulate
from lumos.trace import read
from lumos.vocabulary import Phase

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt-2rank-cpu"


@cache
def base():
    job = read(str(EXAMPLE))
    graph = build(job)
    return job, graph, measured_layout(segment(graph, job))


def step(layout):
    """Mean latency of both ranks' steps, ns."""
    placed = assemble_pieces(layout)
    times = step_times(simulate(placed.graph), placed.owners).ranks
    return sum(time.latency_ns for time in times) / len(times)


def passes(layout, rank=0, number=1):
    """(phase, layer) of the layers that one step of a rank runs, in order."""
    pieces = [layout.pieces[i.piece] for i in layout.ranks[rank]]
    return [(p.label.phase, p.label.layer) for p in pieces if p.step == number and p.label.layer >= 0]


@pytest.mark.parametrize(
    ("measured", "count", "copies"),
    [(4, 8, [0, 1, 1, 1, 2, 2, 2, 3]), (4, 2, [0, 3]), (4, 1, [3]), (4, 4, [0, 1, 2, 3]), (2, 5, [0, 0, 0, 0, 1]), (1, 2, [0, 0])],
)
def test_the_first_and_the_last_layer_stay_where_they_are(measured, count, copies):
    assert copied(measured, count) == copies


def test_twice_the_layers_run_those_between_first_and_last_more_often():
    job, _, layout = base()
    deeper = layers(layout, job, 8)
    forward = [layer for phase, layer in passes(deeper) if phase == Phase.FORWARD]
    backward = [layer for phase, layer in passes(deeper) if phase == Phase.BACKWARD]
    assert forward == [0, 1, 1, 1, 2, 2, 2, 3]
    assert backward == forward[::-1]
    inner = step(deeper) - step(layout)
    assert step(layers(layout, job, 12)) == pytest.approx(step(layout) + 2 * inner, rel=0.02)


def test_an_encoder_and_a_decoder_keep_their_proportion():
    """The four layers taken as a stack of three and a stack of one."""
    job, _, layout = base()
    two = replace(layout, segmentation=replace(layout.segmentation, stacks=(3, 1)))
    forward = [layer for phase, layer in passes(layers(two, job, 8)) if phase == Phase.FORWARD]
    assert forward == [0, 1, 1, 1, 1, 2, 3, 3]
    with pytest.raises(LumosError, match=r"stacks of 3 \+ 1 = 4 layers"):
        layers(two, job, 6)


def test_of_two_equal_stacks_each_has_the_layers_asked_for():
    """The four layers taken as an encoder of two and a decoder of two."""
    job, _, layout = base()
    two = replace(layout, segmentation=replace(layout.segmentation, stacks=(2, 2)))
    deeper = layers(two, job, 3)
    assert [layer for phase, layer in passes(deeper) if phase == Phase.FORWARD] == [0, 0, 1, 2, 2, 3]
    assert deeper.changes == ("layers = 3 (measured: 2) in each of 2 stacks",)
    assert step(layers(two, job, 2)) == step(layout)


def test_only_the_last_microbatch_exchanges_gradients():
    job, graph, layout = base()
    more = assemble_pieces(microbatches(layout, job, None, 3))
    assert len(more.graph.collectives.task) == len(graph.collectives.task)
    assert 2.5 < step(microbatches(layout, job, None, 3)) / step(layout) < 3.0


def test_each_layer_adds_its_gradients_once_however_many_pieces_its_backward_pass_has():
    """Outside the layers the backward pass has two, of the head and of the embedding."""
    job, _, layout = base()
    twice = microbatches(layout, job, None, 2)
    added = accumulation(recordings_of(layout.segmentation, job)[0], None)
    extra = [(layout.pieces[i.piece].label.layer, i.extra) for i in twice.ranks[0] if layout.pieces[i.piece].step == 1]
    assert sorted((layer, more) for layer, more in extra if more.cpu) == sorted(added.items())


def two_microbatches():
    """Two recorded steps, without their updates, as two microbatches of one."""
    _, _, layout = base()
    pieces = [replace(p, step=p.step // 2, label=p.label._replace(microbatch=p.step % 2)) if p.step >= 0 else p for p in layout.pieces]
    ranks = [
        tuple(i for i in items if pieces[i.piece].label.phase <= Phase.BACKWARD and pieces[i.piece].step == 0) for items in layout.ranks
    ]
    kept = {i.piece for items in ranks for i in items}
    pieces = [p if i in kept else replace(p, label=p.label._replace(phase=Phase.OTHER)) for i, p in enumerate(pieces)]
    return replace(layout, ranks=tuple(ranks), segmentation=replace(layout.segmentation, pieces=tuple(pieces)))


def test_of_repeated_microbatches_all_but_the_first_add_their_gradients():
    """The second exchanges gradients, so the first is repeated, and adds its gradients then."""
    job, _, layout = base()
    two = two_microbatches()
    added = sum(extra.cpu for extra in accumulation(recordings_of(layout.segmentation, job)[0], None).values())
    more = [sum(i.extra.cpu for i in microbatches(two, job, None, count).ranks[0]) for count in (2, 3, 4)]
    assert added > 0
    assert more == [0, added, 2 * added]


def test_the_pause_before_a_step_is_not_repeated_with_its_first_microbatch():
    """Every forward pass of an embedding once more, as that of a later microbatch."""
    _, _, layout = base()
    embeds = [p.label.phase == Phase.FORWARD and p.label.part == "embedding" for p in layout.pieces]
    ranks = tuple(tuple(j for i in items for j in ((i, replace(i, later=True)) if embeds[i.piece] else (i,))) for items in layout.ranks)
    times = np.bincount(assemble_pieces(replace(layout, ranks=ranks)).source)
    pauses = before_the_step(layout)
    others = np.array(embeds)[layout.segmentation.piece] & ~pauses
    assert pauses.any()
    assert set(times[pauses].tolist()) == {1}
    assert set(times[others].tolist()) == {2}


def test_where_nothing_is_exchanged_the_microbatch_that_added_its_gradients_is_repeated(tmp_path):
    """Of two microbatches the second takes 30 us more in its backward pass, so each further one takes 230 us."""
    node = "autograd::engine::evaluate_function: LinearBackward0"
    rows = [("aten::linear", 1, 0, 100, 7), (node, 2, 100, 100, 7), ("aten::linear", 1, 200, 100, 8), (node, 2, 300, 130, 8)]
    layout, job = recorded(tmp_path, [*rows, ("aten::add_", 1, 430, 50, -1)], 430)
    assert step(microbatches(layout, job, None, 4)) - step(layout) == pytest.approx(460_000, abs=3_000)


def test_unequal_forward_and_backward_passes_are_refused():
    job, _, layout = base()
    found = layout.segmentation
    ahead = [replace(p, label=p.label._replace(microbatch=1)) if p.label.part == "head" and p.label.phase == Phase.FORWARD else p
             for p in found.pieces]  # fmt: skip
    with pytest.raises(LumosError, match="2 forward and 1 backward passes"):
        microbatches(replace(layout, segmentation=replace(found, pieces=tuple(ahead))), job, None, 3)


def test_the_python_of_an_update_follows_the_number_of_weights():
    """With twice the layers, those of the layers are twice as many: 4 layers of 12 each and 5 outside, 53, become 101. What of it does not
    depend on them is not known."""
    job, graph, layout = base()
    found = replace(layout.segmentation, evidence={"forward": "repetition"})  # as if its update were not told apart by layers
    per_layer = Counter(gradient.layer for gradient in recordings_of(found, job)[0].gradients)
    assert per_layer == {-1: 5, 0: 12, 1: 12, 2: 12, 3: 12}
    more = layers(replace(layout, segmentation=found), job, 8)
    update = np.array([p.rank == 0 and p.label.phase == Phase.OPTIMIZER for p in found.pieces])[found.piece]
    between = update & (graph.kind == Kind.HOST) & np.isin(found.piece, found.piece[update & (graph.kind == Kind.OPERATOR)])
    assert between.any() and more.prices.best[between] == pytest.approx(101 / 53)
    assert [more.prices.low[between], more.prices.high[between]] == [pytest.approx(1.0), pytest.approx(101 / 53)]


def sized(layout, job, **wanted):
    """The layout with other sizes, on the same CPU, priced."""
    return reprice(resize(layout, job, **wanted), job, Devices(None, None))


def test_changes_of_different_things_commute():
    job, _, layout = base()
    one = layers(recompute(sized(layout, job, seq=256), job, "full"), job, 6)
    other = sized(recompute(layers(layout, job, 6), job, "full"), job, seq=256)
    assert step(one) == pytest.approx(step(other), rel=1e-9)


def test_a_change_and_its_inverse_give_the_base_back():
    job, _, layout = base()
    there = sized(layout, job, micro_batch=8)
    assert step(there) > 1.5 * step(layout)
    inverse = sized(layout, job, micro_batch=4)
    assert step(inverse) == step(layout)


def test_larger_sizes_are_never_faster():
    job, _, layout = base()
    for size, value in (("seq", 256), ("micro_batch", 8), ("hidden", 512), ("ffn", 2048), ("vocab", 4096)):
        assert step(sized(layout, job, **{size: value})) > step(layout)


def test_the_answer_counts_tokens_and_has_the_shares_of_measured_time():
    job, graph, _ = base()
    found = answer_changes(job, graph, Changes(parse_settings(["micro_batch=8"])))
    assert found.outcome.tokens_per_s_per_gpu == pytest.approx(8 * 128 / found.outcome.step_time_s)
    assert found.base.tokens_per_s_per_gpu == pytest.approx(4 * 128 / found.base.step_time_s)
    assert found.share.scaled > 0.5
    assert found.outcome.step_time_low_s < found.outcome.step_time_s < found.outcome.step_time_high_s


def test_structural_changes_and_changes_of_durations_combine():
    job, graph, _ = base()
    settings = parse_settings(["layers=8"])
    both = answer_changes(job, graph, Changes(settings, Durations.parse(["*=0.5"], (), (), ())))
    alone = answer_changes(job, graph, Changes(settings))
    assert both.outcome.step_time_s == pytest.approx(alone.outcome.step_time_s / 2, rel=1e-3)
    assert len(both.changes) == 2


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["layer=8"], UsageError, "did you mean 'layers'"),
        (["layers"], UsageError, "KEY=VALUE"),
        (["layers=x"], UsageError, "not a whole number"),
        (["layers=0"], UsageError, "at least 1"),
        (["hidden=250"], UsageError, "multiple of heads"),
        (["recompute=some"], UsageError, "valid are full, none, selective"),
        (["dp=64"], LumosError, "64"),
    ],
)
def test_a_change_that_the_trace_does_not_support_is_refused(words, error, text):
    job, graph, _ = base()
    with pytest.raises(error, match=text):
        answer_changes(job, graph, Changes(parse_settings(words)))


def test_a_job_of_cpus_does_not_move_to_accelerators():
    job, graph, _ = base()
    with pytest.raises(LumosError, match="ran on CPUs"):
        answer_changes(job, graph, Changes(cluster="h100"))


def training_step(tmp_path, pause, *more):
    """The layout of a step: forward 100 us on thread 1, backward 100 us on thread 2, optimizer 50 us on thread 1, each `pause` us after the
    one before. more: further rows, as category, name, thread, start and duration in us."""
    node = "autograd::engine::evaluate_function: LinearBackward0"
    rows = [("aten::linear", 1, 0, 100, 7), (node, 2, 100 + pause, 100, 7), ("aten::add_", 1, 200 + 2 * pause, 50, -1)]
    return recorded(tmp_path, rows, 200 + 2 * pause, *more)


def recorded(tmp_path, rows, update, *more):
    """A step of operators (name, thread, start, duration, autograd's number), us, which are updating weights from `update`."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": 1000 + ts, "dur": dur,
         "args": {"Sequence number": number} if number >= 0 else {}}
        for name, tid, ts, dur, number in rows
    ]  # fmt: skip
    events += [{"ph": "X", "cat": c, "name": n, "pid": 1, "tid": t, "ts": 1000 + at, "dur": us, "args": {}} for c, n, t, at, us in more]
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    events += [
        {**mark, "name": "Optimizer.step#SGD.step", "ts": 999.5 + update, "dur": 51},
        {**mark, "name": "ProfilerStep#1", "ts": 1000, "dur": 51 + update},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    job = read(str(path))
    return measured_layout(segment(build(job), job)), job


def test_a_repeated_forward_pass_waits_for_the_backward_pass_before_it(tmp_path):
    layout, job = training_step(tmp_path, 1)
    assert step(microbatches(layout, job, None, 2)) - step(layout) == pytest.approx(200_000, abs=3_000)


def test_steps_without_marks_are_no_microbatches(tmp_path):
    """The same step twice, without the mark: an update lies between the two forward passes, which another number would not change."""
    training_step(tmp_path, 1)
    path = tmp_path / "rank0.json"
    once = [e for e in json.loads(path.read_text())["traceEvents"] if "ProfilerStep" not in e["name"]]
    again = [{**e, "ts": e["ts"] + 300, "args": {k: v + 1 for k, v in e.get("args", {}).items()}} for e in once]
    path.write_text(json.dumps({"traceEvents": once + again}))
    job = read(str(path))
    with pytest.raises(LumosError, match=r"--set microbatches=4: .* 2 microbatches, but not one after the other: updates of the weights"):
        microbatches(measured_layout(segment(build(job), job)), job, None, 4)


def test_what_a_thread_does_before_it_hands_over_is_repeated_with_the_pass(tmp_path):
    """30 us of calls follow the forward pass, and 30 us the backward pass, as those of a library that gathers weights beforehand."""
    calls = [("cuda_runtime", "cudaStreamWaitEvent", thread, at, 28) for thread, at in ((1, 101), (2, 232))]
    layout, job = training_step(tmp_path, 31, *calls)
    names = layout.segmentation.graph.names
    waits = [t for t, n in enumerate(layout.segmentation.graph.name) if names[n] == "cudaStreamWaitEvent"]
    phases = [layout.pieces[layout.segmentation.piece[t]].label.phase for t in waits]
    assert phases == [Phase.FORWARD, Phase.BACKWARD]
    assert step(microbatches(layout, job, None, 2)) - step(layout) == pytest.approx(260_000, abs=3_000)
