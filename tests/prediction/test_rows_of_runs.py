"""Rows of published tables: spellings, blanks, and rows that cannot be read."""

import pytest

from lumos.errors import LumosError
from lumos.prediction.validate import job_of, published_step

ROW = {
    "id": "a-1", "source": "somewhere", "model": "GPT L24 h1024", "layers": "24", "hidden": "1024", "heads": "16", "seq_len": "1024",
    "gpu": "A100", "n_gpus": "8", "gpus_per_node": "8", "tp": "2", "pp": "2", "micro_batch": "4", "global_batch": "32",
    "framework": "Megatron-DeepSpeed", "year": "2023", "step_time_s": "0.5",
}  # fmt: skip


def row(**changes: str) -> dict[str, str]:
    return {**ROW, **changes}


def codes(job):
    return {d.code for d in job.assumed}


def test_blanks_are_filled_and_said():
    job = job_of(row())
    assert (job.model.ffn, job.model.vocab, job.model.kv_heads, job.plan.dp, job.plan.precision) == (4096, 51200, 16, 2, "fp16")
    assert {"assumed-ffn", "assumed-vocab", "assumed-precision", "framework-profile"} <= codes(job)


@pytest.mark.parametrize(
    ("spelling", "zero", "shard"),
    [
        ("zero1 group=8", 1, 0), ("zero1 group=4", 1, 4), ("zero1 group=all dp", 1, 0), ("FULL_SHARD", 3, 0), ("HYBRID_SHARD", 3, 0),
        ("fsdp2_group=4", 3, 4), ("HSDP group=4", 3, 4), ("distributed optimizer", 1, 0), ("ZeRO Stage-2", 2, 0), ("none", 0, 0),
        ("DDP", 0, 0), ("", 0, 0),
    ],
)  # fmt: skip
def test_sharding(spelling, zero, shard):
    job = job_of(row(zero_or_fsdp=spelling, tp="1", pp="1"))
    assert (job.plan.zero, job.plan.shard) == (zero, shard)


@pytest.mark.parametrize(
    ("spelling", "family"),
    [("amp_bf16", "bf16"), ("FP8 tensorwise", "fp8"), ("BF16", "bf16"), ("float32", "fp32"), ("NVFP4", "fp4")],
)
def test_precision_families(spelling, family):
    assert job_of(row(precision=spelling, gpu="B200")).plan.precision == family


@pytest.mark.parametrize(
    ("text", "recompute", "layers"),
    [("full", "full", -1), ("block, 4 layers", "full", 4), ("0 layers", "none", -1), ("selective (default)", "selective", -1)],
)
def test_recomputation(text, recompute, layers):
    plan = job_of(row(recompute=text)).plan
    assert (plan.recompute, plan.recompute_layers) == (recompute, layers)


LLAMA_STYLE = {"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32", "ffn": "14336", "vocab": "131072", "year": "2025"}


@pytest.mark.parametrize(
    ("name", "gated", "tied"),
    [
        ("anything 8.86B", True, False),  # three matrices of the width, and a head of its own
        ("gpt-like 8.32B", True, True),  # whatever the name begins with
        ("llama-like 6.98B", False, False),
        ("falcon-like 6.44B", False, True),
    ],
)
def test_the_number_of_parameters_decides_the_style_of_a_model(name, gated, tied):
    job = job_of(row(model=name, **LLAMA_STYLE))
    assert (job.model.gated, job.model.tied) == (gated, tied)
    assert job.model.parameters == pytest.approx(1e9 * float(name.split()[1][:-1]), rel=0.01)
    assert "unknown-model" not in {u.code for u in job.unknowns}
    assert "parameters in the name" in next(d.message for d in job.assumed if d.code == "assumed-style")


@pytest.mark.parametrize(("text", "watts", "asked"), [("8 x H100, 500 W each", 500, False), ("power-limited", 490, True), ("", 700, False)])
def test_a_power_limit_in_words_is_read_or_asked_for(text, watts, asked):
    job = job_of(row(gpu="H100", notes=text))
    assert (job.cluster.accelerator.power_w, "unknown-power" in {u.code for u in job.unknowns}) == (watts, asked)
    assert ("row-power" in codes(job)) is (watts < 700)


def test_a_network_between_nodes_may_reach_less_than_its_links():
    def answers(nodes):
        job = job_of(row(n_gpus=str(8 * nodes), global_batch=str(32 * nodes), dp="", gpu="H100"))
        return [tuple(u.answers) for u in job.unknowns if u.code == "unknown-network"]

    assert answers(1) == [] and answers(2) == [("89% of the rate",)]
    assert answers(64) == [("50% of the rate", "a quarter of the rate")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_gpus": ""}, "n_gpus is blank"),
        ({"gpu": "TPUv4"}, "TPUv4"),
        ({"hidden": "many"}, "hidden = 'many' is not a number"),
        ({"global_batch": "31"}, "global_batch"),
        ({"dp": "3"}, "the 8 gpus"),
        ({"precision": "posit8"}, "precision"),
        ({"zero_or_fsdp": "sharded somehow"}, "zero_or_fsdp"),
        ({"recompute": "perhaps"}, "recompute"),
        ({"sequence_parallel": "sometimes"}, "sequence_parallel 'sometimes'"),
        ({"schedule": "some other"}, "schedule"),
        ({"layers": "", "model": "unknown"}, "no layers"),
    ],
)
def test_rows_that_cannot_be_read_say_why(change, reason):
    with pytest.raises(LumosError, match=reason):
        job_of(row(**change))


def test_measured_step_from_seconds_or_tokens():
    assert published_step(row()) == 0.5
    assert published_step(row(step_time_s="", tokens_per_s_per_gpu="4096")) == pytest.approx(1.0)
    for bad in ({"step_time_s": "", "tokens_per_s_per_gpu": ""}, {"step_time_s": "-1"}, {"step_time_s": "fast"}):
        with pytest.raises(LumosError):
            published_step(row(**bad))


def test_fine_tuning_runs_of_nemo_may_be_packed():
    tuned = job_of(row(framework="NeMo (Megatron Core)", notes="NeMo 24.07 container; Finetuning LoRA"))
    (unknown,) = [u for u in tuned.unknowns if u.code == "unknown-packing"]
    assert (tuned.plan.document, [job.plan.document for job in unknown.answers.values()]) == (0, [64])
    other = job_of(row(framework="NeMo (Megatron Core)", notes="NeMo 24.07 container; Pretraining"))
    assert "unknown-packing" not in {u.code for u in other.unknowns}


def test_scales_by_row_gather_in_16_bit():
    rows = job_of(row(framework="torchtitan FSDP2", precision="FP8 rowwise", notes="torch.compile", pp="1")).framework
    tensors = job_of(row(framework="torchtitan FSDP2", precision="FP8 tensorwise", notes="torch.compile", pp="1")).framework
    assert (rows.fp8_gather, rows.fp8_rows) == (False, True)
    assert (tensors.fp8_gather, tensors.fp8_rows) == (True, False)


def test_remarks_that_set_switches_are_said():
    job = job_of(row(framework="torchtitan FSDP2", notes="async TP", pp="1", year="2024"))
    assert job.framework.tp_overlap and "noted-switches" in codes(job)


def test_a_precision_that_is_not_stated_is_as_the_framework_has_it_and_open():
    job = job_of(row(gpu="H100", notes="MLPerf Training v4.0"))
    assert job.plan.precision == "fp8"
    assert {name: other.plan.precision for u in job.unknowns if u.code == "unknown-precision" for name, other in u.answers.items()} == {
        "bf16": "bf16"
    }
    without = job_of(row(gpu="A100", notes="MLPerf Training v4.0"))
    assert without.plan.precision == "bf16"  # the device has no fp8


def test_more_devices_than_sequences_share_them_where_no_plan_is_stated():
    job = job_of(row(tp="", pp="", n_gpus="16", global_batch="8", micro_batch="1"))
    assert (job.plan.dp, job.plan.cp) == (8, 2)
    assert "assumed-cp" in codes(job)
    assert job_of(row(tp="", pp="", micro_batch="1")).plan.cp == 1
