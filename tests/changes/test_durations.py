"""Changes of durations on a job drawn by hand, and their properties."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analyze.conftest import draw
from tests.drawn_graph import drawn_graph

from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.changes.answer import answer, unchanged_tasks
from lumos.changes.certainty.possible import SIDE_LEFT_OUT, sides_left_out
from lumos.changes.durations import Durations, check_altered, drop, fuse, matching, meant_operators, scale, slow_rank
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Dependency, Kind, Processor
from lumos.simulation import simulate
from lumos.trace.table import ABSENT, Category, Job, Lane, Trace

US = 1000


def gpu_job(ranks=(0,)):
    """On each rank one thread launches k1, k2 (10 µs apart), each 30 µs on one stream, and then an all-reduce of 40 µs of all ranks."""
    processors, tasks, edges, members = [], [], [], []
    for rank in ranks:
        thread = len(processors)
        processors += [Processor(rank, False, "thread 1"), Processor(rank, True, "stream 7", 0, 7)]
        base = len(tasks)
        tasks += [(thread, Kind.LAUNCH, "cudaLaunchKernel", 10 * US)] * 3
        kernels = (Kind.KERNEL, "relu", 30 * US), (Kind.KERNEL, "gelu", 30 * US), (Kind.COLLECTIVE, "nccl", 40 * US)
        tasks += [(thread + 1, *kernel) for kernel in kernels]
        edges += [(base + i, base + 3 + i, Dependency.LAUNCH) for i in range(3)]
        members.append(base + 5)
    sets = [members] if len(ranks) > 1 else []
    return drawn_graph(processors, tasks, edges, sets, names=["cudaLaunchKernel", "relu", "gelu", "nccl"])


def length(graph):
    return int(simulate(graph).end.max()) // US


def apply(graph, **words):
    lists = {"scales": (), "drops": (), "fused": (), "slow": (), **words}
    return Durations.parse(**lists).apply(graph, Job(()))


def test_a_scaled_collective_shortens_the_step_by_what_it_saves():
    graph = gpu_job()
    assert length(graph) == 10 + 30 + 30 + 40
    assert length(apply(graph, scales=["nccl=0.5"])) == 10 + 30 + 30 + 20


def test_dropping_a_kernel_drops_its_launch():
    graph = apply(gpu_job(), drops=["gelu"])
    assert graph.duration.tolist() == [10000, 0, 10000, 30000, 0, 40000]
    assert length(graph) == 10 + 30 + 40


def test_a_dropped_call_whose_work_stays_keeps_its_place():
    """It takes no time any more, but its kernel still follows what the call waited for."""
    threads = [Processor(0, False, "thread 1"), Processor(0, False, "thread 2"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [(0, Kind.OPERATOR, "work", 0, 50), (1, Kind.LAUNCH, "cudaLaunchKernel", 50, 60), (2, Kind.KERNEL, "relu", 60, 90)]
    graph = draw(threads, tasks, [(0, 1, Dependency.HAND_OFF), (1, 2, Dependency.LAUNCH)])
    assert length(apply(graph, drops=["cudaLaunchKernel"])) == 50 + 30


def test_dropped_collectives_take_the_meeting_of_their_ranks_with_them():
    graph = gpu_job((0, 1))
    late = replace(graph, duration=np.where(np.arange(len(graph)) == 3, 90, 30) * US)  # the first kernel of rank 0
    gone = steady(members(dropped(late, "nccl")))
    ends = [int(gone.timeline.end[gone.loop.owners.of_rank(rank)].max()) // US for rank in (0, 1)]
    assert ends == [30 + 90 + 30, 30 + 30 + 30]


def test_fusing_keeps_the_longest_of_a_run_and_one_launch():
    graph = gpu_job()
    fused = apply(graph, fused=["*elu"])
    assert fused.duration.tolist() == [10000, 0, 10000, 30000, 0, 40000]
    with pytest.raises(LumosError, match="no two neighbouring"):
        apply(graph, fused=["relu"])


def test_kernels_of_two_steps_and_copies_between_kernels_are_not_fused():
    graph, kernels = gpu_job(), np.array([False, False, False, True, True, False])
    assert fuse(graph, kernels, np.zeros(6, np.int64)).duration.tolist()[3:5] == [30_000, 0]
    with pytest.raises(LumosError, match="no two neighbouring kernels"):
        fuse(graph, kernels, np.array([0, 0, 1, 0, 1, 1]))
    copied = replace(graph, kind=np.where(np.arange(6) == 4, Kind.MEMCPY, graph.kind).astype(np.uint8))
    with pytest.raises(LumosError, match="no two neighbouring kernels"):
        fuse(copied, kernels, np.zeros(6, np.int64))


def test_work_in_less_time_still_takes_some_and_only_a_factor_of_0_leaves_it_out():
    graph = gpu_job()
    every = np.ones(len(graph), bool)
    assert scale(graph, every, 1e-9).duration.tolist() == [1] * 6
    assert scale(graph, every, 0).duration.tolist() == [0] * 6


@pytest.mark.parametrize(
    "words",
    [
        {"drops": ["*"]},
        {"scales": ["*=0"]},
        {"scales": ["*=1e-9"]},
        {"drops": ["cuda*"], "scales": ["device:*=0.005"]},
        {"slow": ["0=1e-6"]},
    ],
)
def test_changes_that_leave_no_job_are_no_what_if(words):
    """Of the 130 µs of a rank, or the 80 of one without its exchange, less than a fiftieth is left."""
    said = "130.0 µs" if "slow" not in words else "80.00 µs"
    graph = gpu_job() if "slow" not in words else dropped(gpu_job((0, 1)), "nccl")
    with pytest.raises(LumosError, match=f"of {said} of work on rank 0, .* would be left"):
        apply(graph, **words)


def dropped(graph, name):
    return drop(graph, np.array([graph.names[i] == name for i in graph.name]))


@pytest.mark.parametrize(("glob", "side"), [("device:*=0", "devices"), ("cpu:*=0.001", "threads")])
def test_a_step_without_work_on_one_side_is_called_a_bound(glob, side):
    """Also where that side had 99 % of the work."""
    graph = gpu_job((0, 1))
    if side == "threads":
        graph = replace(graph, duration=np.where(graph.on_device, graph.duration, 1000 * graph.duration))
    (finding,) = sides_left_out(graph, apply(graph, scales=[glob]))
    assert finding.code == SIDE_LEFT_OUT
    assert f"no work is left on the {side} of rank 0" in finding.message
    assert sides_left_out(graph, apply(graph, scales=["device:*=0.5", "cpu:*=0.5"])) == ()


def test_fused_multiplications_keep_their_arithmetic():
    graph = gpu_job()
    graph = replace(graph, names=tuple("sgemm_a" if n == "relu" else "sgemm_b" if n == "gelu" else n for n in graph.names))
    kernels = graph.duration[[3, 4]].sum()
    assert apply(graph, fused=["sgemm*"]).duration.tolist()[3:5] == [kernels, 0]


def test_a_slow_rank_makes_the_others_wait():
    graph = gpu_job((0, 1))
    slow = apply(graph, slow=["1=2"])
    timeline = simulate(slow)
    assert length(slow) == 20 + 60 + 60 + 40
    assert timeline.end[5] == timeline.end[11]  # rank 0 leaves its all-reduce with rank 1
    with pytest.raises(LumosError, match="no rank 7"):
        slow_rank(graph, 7, 2.0)


def test_patterns_mean_one_side_or_both():
    graph, job = gpu_job(), Job(())
    assert matching(graph, job, "*").sum() == 6
    assert matching(graph, job, "cpu:*").sum() == 3
    assert matching(graph, job, "device:*").sum() == 3
    with pytest.raises(LumosError, match="most time goes to 'nccl'"):
        matching(graph, job, "*gemm*")


def test_a_pattern_may_keep_to_one_rank():
    graph = gpu_job(ranks=(0, 1))
    assert (matching(graph, Job(()), "rank1:device:*") == (graph.on_device & (graph.rank_of_task == 1))).all()
    with pytest.raises(LumosError, match="no task of rank 7 matches 'rank7:relu'; the job has ranks 0, 1"):
        matching(graph, Job(()), "rank7:relu")


def test_equal_work_needs_measured_times_to_compare():
    assert Durations.parse(("rank1:*=peers",), (), (), ()).described() == ("rank1:* as long as equal work on other ranks",)
    with pytest.raises(LumosError, match="compares equal work: this needs the measured times of two ranks"):
        apply(gpu_job(ranks=(0, 1)), scales=("rank1:*=peers",))
    with pytest.raises(LumosError, match="compares equal work: this needs three measured steps"):
        apply(gpu_job(), scales=("*=steps",))


def test_a_pattern_without_a_match_names_what_is_like_it():
    for pattern, near in (("Rel", "'relu'"), ("*cudalaunch*", "'cudaLaunchKernel'"), ("*gelo*", "'gelu'")):
        with pytest.raises(LumosError, match=f"names like it: {near}"):
            matching(gpu_job(), Job(()), pattern)


def test_a_word_that_no_task_is_named_stands_for_the_names_that_contain_it():
    graph, job = gpu_job(), Job(())
    assert (matching(graph, job, "elu") == matching(graph, job, "*elu*")).all() and matching(graph, job, "relu").sum() == 1
    assert matching(graph, job, "cpu:Launch").sum() == 3
    said = [note.message for note in meant_operators(graph, job, Durations.parse(["elu=2", "relu=2", "rank0:cpu:Launch=2"], (), (), ()))]
    assert said == [f"no task is named {word!r}, so it stands for '*{word}*'" for word in ("elu", "Launch")]


def test_a_change_that_alters_no_task_is_an_error():
    graph, job = replace(gpu_job(), duration=np.array([10, 10, 10, 0, 30, 40], np.int64) * US), Job(())
    for word, altered in (("relu=2", False), ("gelu=2", True), ("relu=1", True)):  # relu takes no time; a factor of 1 is the identity
        changes = Durations.parse([word], (), (), ())
        if altered:
            check_altered(graph, changes.apply(graph, job), job, changes)
        else:
            with pytest.raises(LumosError, match="scale relu by 2: no task changed"):
                check_altered(graph, changes.apply(graph, job), job, changes)


def test_an_operator_pattern_means_all_that_happens_inside():
    """mm 0–100 µs holds a call that launches a kernel; what follows it does not belong to it."""
    rows = [
        (Category.OPERATOR, "aten::mm", 0, 100),
        (Category.RUNTIME, "cudaLaunchKernel", 20, 10),
        (Category.OPERATOR, "aten::add", 200, 100),
        (Category.RUNTIME, "cudaLaunchKernel", 220, 10),
    ]
    empty = np.full(len(rows), ABSENT, np.int64)
    strings = ["aten::mm", "cudaLaunchKernel", "aten::add"]
    start, duration = (np.array([r[i] for r in rows], np.int64) * US for i in (2, 3))
    name = np.array([strings.index(r[1]) for r in rows], np.int32)
    category = np.array([r[0] for r in rows], np.uint8)
    lane = np.zeros(len(rows), np.int32)
    trace = Trace("hand.json", 0, "assumed", None, strings, start, duration, name, category, lane, empty, empty, {}, [Lane("1", "1")])
    graph = replace(gpu_job(), event=np.array([1, 3, -1, -1, -1, -1], np.int32))
    assert matching(graph, Job((trace,)), "operator:aten::mm").tolist() == [True, False, False, True, False, False]


@pytest.mark.parametrize("words", [{"scales": ["nccl"]}, {"scales": ["nccl=fast"]}, {"scales": ["nccl=-1"]}, {"slow": ["x=1"]}])
def test_malformed_words_are_usage_errors(words):
    with pytest.raises(UsageError):
        apply(gpu_job(), **words)


def test_halving_everything_halves_the_step():
    graph = gpu_job((0, 1))
    assert length(scale(graph, np.ones(len(graph), bool), 0.5)) * 2 == length(graph)


def test_halving_everything_halves_how_late_ranks_start():
    graph = gpu_job((0, 1))
    late = replace(graph, release_task=np.array([6], np.int32), release_time=np.array([50 * US], np.int64))
    assert length(late) > length(graph)
    assert length(scale(late, np.ones(len(late), bool), 0.5)) * 2 == length(late)
    one = np.ones(len(late), bool)
    one[0] = False
    assert scale(late, one, 0.5).release_time.tolist() == [50 * US]


FACTORS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0])
MASKS = st.lists(st.booleans(), min_size=12, max_size=12).map(np.array)


@given(MASKS, MASKS, FACTORS, FACTORS)
def test_two_scalings_agree_in_either_order(one, other, factor, another):
    graph = gpu_job((0, 1))
    there = scale(scale(graph, one, factor), other, another)
    back = scale(scale(graph, other, another), one, factor)
    assert np.array_equal(there.duration, back.duration)


@given(MASKS, st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_faster_work_never_lengthens_the_step(tasks, factor):
    graph = gpu_job((0, 1))
    assert length(scale(graph, tasks, factor)) <= length(graph)


@given(MASKS, st.sampled_from([2.0, 4.0]))
def test_a_scaling_and_its_inverse_give_the_durations_back(tasks, factor):
    graph = gpu_job((0, 1))
    assert np.array_equal(scale(scale(graph, tasks, factor), tasks, 1 / factor).duration, graph.duration)


def test_nothing_dropped_ever_lengthens_the_step():
    graph = gpu_job((0, 1))
    for task in range(len(graph)):
        only = np.zeros(len(graph), bool)
        only[task] = True
        assert length(scale(graph, only, 0.0)) <= length(graph)


def test_the_answer_attributes_the_difference():
    graph = gpu_job()
    changed = scale(graph, matching(graph, Job(()), "nccl"), 0.5)
    found = answer(graph, unchanged_tasks(graph, changed, ("nccl halves",)))
    assert found.base.step_time_s == pytest.approx(110e-6)
    assert found.measured_step_s is None
    assert found.outcome.step_time_s == pytest.approx(90e-6)
    assert [(c.what, round(c.delta_s * 1e6)) for c in found.moved] == [("transfer", -20)]
    assert found.share.scaled == pytest.approx(20 / 90)
    assert sum(found.outcome.breakdown) == pytest.approx(90e-6)
