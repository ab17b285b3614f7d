"""Plans that break a rule are refused with that rule; layers are spread over the stages as frameworks do."""

from dataclasses import replace

import pytest

from lumos.model import load_model
from lumos.plan.configuration import Settings, job_from
from lumos.plan.plan import Plan, PlanError, check_plan, layers_of_chunks

LLAMA = load_model("llama3-8b")
GOOD = Plan(seq_len=4096, global_batch=64, micro_batch=1, tp=2, pp=2, dp=4)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"global_batch": 63}, "global_batch"),
        ({"tp": 3}, "heads"),
        ({"cp": 3}, "2 · cp"),
        ({"pp": 64}, "pp · vpp"),
        ({"vpp": 2, "pp": 1}, "needs pp > 1"),
        ({"vpp": 2, "global_batch": 12}, "multiple of pp"),
        ({"ep": 2}, "needs a model with experts"),
        ({"shard": 3}, "shard"),
        ({"micro_batch": 0}, "micro_batch"),
        ({"dp": float("nan")}, "dp = nan must be a whole number"),
        ({"shard": -1}, "shard = -1"),
        ({"document": -512}, "document = -512"),
        ({"recompute_layers": -2}, "recompute_layers = -2"),
        ({"zero": 4}, "valid: 0, 1, 2, 3"),
        ({"schedule": "dualpipe", "pp": 3}, "even pp"),
        ({"document": 5000}, "at most seq_len"),
        ({"lora_rank": 4097}, "lora_rank .4097. must be at most"),
        ({"document": 512, "cp": 2}, "packed documents"),
        ({"global_batch": 1_000_000_000}, "passes of a step"),
        ({"seq_len": (1 << 27) + 2}, "must be at most 134,217,728 tokens"),
        ({"seq_len": 1 << 27, "micro_batch": 16}, "than kernels can index"),
    ],
)
def test_rules(change, rule):
    check_plan(GOOD, LLAMA)
    with pytest.raises(PlanError, match=rule):
        check_plan(replace(GOOD, **change), LLAMA)


def test_dualpipe_devices_hold_mirrored_parts():
    chunks = layers_of_chunks(Plan(4096, 8, pp=4, schedule="dualpipe"), LLAMA)
    assert chunks[0] == [range(8), range(24, 32)]
    assert chunks[3] == [range(24, 32), range(8)]


def test_the_first_and_the_last_stage_may_have_other_layers():
    plan = Plan(4096, 8, pp=4, first_layers=5, last_layers=7)
    assert [len(stage[0]) for stage in layers_of_chunks(plan, LLAMA)] == [5, (LLAMA.layers - 12) // 2, (LLAMA.layers - 12) // 2, 7]
    interleaved = replace(plan, vpp=2, first_layers=6, last_layers=6, schedule="interleaved")
    chunks = layers_of_chunks(interleaved, LLAMA)
    assert [[len(chunk) for chunk in stage] for stage in chunks] == [[3, 3], [5, 5], [5, 5], [3, 3]]
    assert [layer for v in (0, 1) for stage in chunks for layer in stage[v]] == list(range(LLAMA.layers))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pp": 1}, "need pp > 1"),
        ({"last_layers": 6}, "leave 21 of 32 layers, which the 2 other stages cannot share equally"),
        ({"vpp": 2, "schedule": "interleaved"}, "must be a multiple of vpp"),
        ({"schedule": "dualpipe"}, "dualpipe"),
    ],
)
def test_ends_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(PlanError, match=words):
        check_plan(replace(Plan(4096, 16, pp=4, first_layers=5, last_layers=7), **changes), LLAMA)


def notes(pp):
    job = job_from(Settings(model="llama3-8b", cluster="h100", gpus=pp, global_batch=pp, seq=2048, pp=pp))
    return {d.code: d.message for d in job.assumed}


def test_a_stage_without_layers_is_said_to_be_one():
    """Llama 3 8B has 32 layers: of 33 stages one has none, of 32 every one has its own."""
    assert notes(33)["stage-without-layers"].startswith("1 of 33 parts of the pipeline have none of the 32 layers")
    assert "stage-without-layers" not in notes(32)
