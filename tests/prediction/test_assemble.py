"""Assembled graphs: bubbles, overlap and exposed communication come out of the simulation."""

import random
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from lumos.blocks.price import Pricer
from lumos.cost.cluster import load_cluster
from lumos.graph.table import Kind
from lumos.model import load_model
from lumos.plan.plan import Plan, PlanError, check_plan
from lumos.plan.profiles import framework_profile, profiles
from lumos.prediction.arrange import arrange
from lumos.prediction.assemble import assemble
from lumos.simulation import freeze, simulate, sweep

GPT = replace(load_model("gpt3-126m"), layers=8)
#: No host time, no transfers to wait for.
QUIET = replace(
    framework_profile("megatron-core"), host_us=0.0, layer_us=0.0, checkpoint_us=0.0, step_us=0.0, transfer_us=0.0, zero=0, dropout=False
)


def step(plan, framework=QUIET, pricer=None, coarse=True, model=GPT):
    layout = arrange(model, plan, framework, 8)
    return simulate(assemble(layout, pricer, coarse).graph).end.max()


def passes(timeline, stage):
    """Sum of the durations on a stage's compute stream."""
    graph = timeline.graph
    mine = np.array([p.rank == stage and p.is_stream and p.stream == 1 for p in graph.processors])[graph.processor]
    return (timeline.end - timeline.start)[mine].sum()


def test_bubble_of_1f1b_is_that_of_the_textbook(flat):
    """Equal stages: (microbatches + stages − 1) passes of the longest stage."""
    pricer = flat(1_000_000)
    few = step(Plan(512, 8, pp=4), pricer=pricer)
    many = step(Plan(512, 16, pp=4), pricer=pricer)
    each = (many - few) / 8  # one more microbatch on the slowest stage
    assert many / each == pytest.approx(16 + 3, rel=0.1)


def test_gradient_exchange_hides_behind_the_backward_pass(flat):
    plan = Plan(512, 8, dp=8)
    alone = step(plan, pricer=flat(1_000_000, 0))
    hidden = step(plan, replace(QUIET, dp_overlap=True, bucket_bytes=1.0), flat(1_000_000, 2_000_000))
    shown = step(plan, replace(QUIET, dp_overlap=False), flat(1_000_000, 2_000_000))
    assert hidden - alone < 3 * 2_000_000 + 1e6  # the last bucket, the norm, the head
    assert shown - alone >= 2 * 2_000_000
    slow = step(plan, replace(QUIET, dp_overlap=True, bucket_bytes=1.0), flat(1_000_000, 200_000_000))
    assert slow - alone > 6 * 200_000_000


def host_work(layout) -> int:
    """The longest time that the host of a stage takes to launch its step, ns."""
    of_block = [block.before + sum(op.host for op in block.ops) for block in layout.blocks]
    return max(sum(of_block[item.block] * item.repeat for item in stage) for stage in layout.stages)


@pytest.mark.parametrize("coarse", [True, False])
@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("gpipe", 1), ("zero-bubble", 1), ("dualpipe", 1)])
def test_a_launch_bound_pipeline_takes_at_least_its_hosts_time(flat, schedule, vpp, coarse):
    """Kernels of 1 us on four stages: a host that does not wait launches all of its passes, one after the other, whatever the order."""
    plan = Plan(512, 16, pp=4, vpp=vpp, schedule=schedule)
    layout = arrange(GPT, plan, replace(QUIET, host_us=50.0, layer_us=400.0, transfer_us=100.0, transfer_blocks=False), 8)
    taken = simulate(assemble(layout, flat(1000), coarse).graph).end.max()
    assert host_work(layout) <= taken < 1.25 * host_work(layout)


def test_the_first_kernel_starts_a_launch_latency_after_its_launch(flat):
    pricer = flat(1000)
    accelerator = structs.replace(pricer.cluster.accelerator, launch_latency_s=3e-6)
    pricer.cluster = structs.replace(pricer.cluster, accelerator=accelerator)
    timeline = simulate(assemble(arrange(GPT, Plan(512, 4), QUIET, 8), pricer, False).graph)
    kernel = int(np.flatnonzero(timeline.graph.kind == Kind.KERNEL)[0])
    launch = int(timeline.graph.pred[timeline.graph.pred_offset[kernel]])
    assert timeline.start[kernel] - timeline.end[launch] == 3000


def test_the_host_launches_the_optimizer_when_the_gradients_are_there(flat):
    """A host that takes no time launches everything before it at once."""
    timeline = simulate(assemble(arrange(GPT, Plan(512, 4), QUIET, 8), flat(1000), False).graph)
    launched = timeline.start[timeline.graph.kind == Kind.LAUNCH]
    kernels = np.flatnonzero(timeline.graph.kind == Kind.KERNEL)
    at_once = int((launched == 0).sum())
    assert 0 < at_once < len(kernels)
    assert launched[at_once:].min() == timeline.end[kernels[at_once - 1]]


PLANS = [
    ("gpt3-126m", Plan(512, 32, pp=2, dp=2, zero=1), "megatron-core", "h100"),
    ("llama3-8b", Plan(4096, 32, tp=2, pp=2, dp=2, zero=1, sequence_parallel=True), "megatron-core", "h100"),
    ("llama3-8b", Plan(4096, 32, tp=2, pp=4, vpp=2, schedule="interleaved", zero=1, sequence_parallel=True), "nemo", "h100"),
    ("llama3-8b", Plan(4096, 32, 2, dp=8, zero=3), "fsdp2", "h100"),
    ("llama3-8b", Plan(8192, 8, cp=2, dp=4, zero=1), "megatron-core", "h100"),
    ("mixtral-8x7b", Plan(4096, 16, ep=4, dp=8, zero=1), "megatron-core", "h100"),
    ("deepseek-v2", Plan(4096, 64, pp=4, ep=4, dp=8, zero=1), "megatron-core", "b200"),
    ("gpt3-1.3b", Plan(1024, 16, tp=4, dp=2, recompute="full", precision="fp16"), "megatron-deepspeed", "a100-80gb"),
    ("llama3-8b", Plan(4096, 32, pp=4, dp=2, zero=1, schedule="zero-bubble"), "megatron-core", "h100"),
    ("llama3-8b", Plan(4096, 32, pp=4, dp=2, zero=1, schedule="dualpipe"), "megatron-core", "h100"),
    ("llama2-70b", Plan(4096, 16, tp=2, pp=4, precision="fp8", lora_rank=16, zero=1), "nemo", "h100"),
]


@pytest.mark.parametrize(("model", "plan", "framework", "cluster"), PLANS)
def test_orders_are_fixed(model, plan, framework, cluster):
    """The event loop and the sweep of the frozen graph agree, so changes of durations alone can be swept."""
    graph = assemble(arrange(load_model(model), plan, framework_profile(framework), 8), Pricer(load_cluster(cluster)), True).graph
    assert np.array_equal(simulate(graph).end, sweep(freeze(graph)).end)


def random_plans(count: int) -> list[tuple[str, Plan, str]]:
    """Feasible plans over all dimensions and profiles; the same ones in every run."""
    draw = random.Random(7)
    found: list[tuple[str, Plan, str]] = []
    while len(found) < count:
        name = draw.choice(("llama3-8b", "gpt3-1.3b", "mixtral-8x7b"))
        tp, pp, cp, vpp, dp = (2 ** draw.randint(0, 3) for _ in range(5))
        plan = Plan(
            draw.choice((1024, 4096)), dp * draw.choice((1, 2)) * pp * 2, draw.choice((1, 2)), tp=tp, pp=pp, cp=cp, dp=dp,
            vpp=vpp if draw.random() < 0.3 else 1, ep=draw.choice((1, 4)) if name.startswith("mixtral") else 1, zero=draw.randint(0, 3),
            sequence_parallel=tp > 1 and draw.random() < 0.5, schedule=draw.choice(("1f1b", "gpipe", "zero-bubble", "dualpipe")),
            recompute=draw.choice(("none", "selective", "full")),
        )  # fmt: skip
        try:
            check_plan(plan, load_model(name))
        except PlanError:
            continue
        found.append((name, plan, draw.choice(list(profiles()))))
    return found


def test_random_plans_have_schedules_and_agree_in_both_forms():
    pricer = Pricer(load_cluster("h100"))
    for name, plan, framework in random_plans(40):
        layout = arrange(load_model(name), plan, framework_profile(framework), 8)
        coarse, fine = (simulate(assemble(layout, pricer, c).graph).end.max() for c in (True, False))
        assert coarse == pytest.approx(fine, rel=0.01), (name, plan, framework)
