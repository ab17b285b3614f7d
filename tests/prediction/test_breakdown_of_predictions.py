"""The four parts of a prediction, and the rates of its kernels."""

import lumos

GPT = {"model": "gpt3-175b", "cluster": "h100", "gpus": 512, "seq": 2048, "micro_batch": 1, "tp": 8, "pp": 8}


def test_the_pipeline_bubble_is_idle_not_communication() -> None:
    # 8 microbatches through 8 stages: a stage idles 7 of 15 parts of the pipeline's time
    found = lumos.predict(**GPT, global_batch=64)
    assert found.breakdown["other_s"] > 0.3 * found.time.time_s
    assert abs(sum(found.breakdown.values()) - found.time.time_s) < 1e-6
    longer = lumos.predict(**GPT, global_batch=1536)  # 192 microbatches: hardly any bubble
    assert longer.breakdown["other_s"] < 0.1 * longer.time.time_s


def test_attention_runs_at_the_rate_of_the_precision_asked_for() -> None:
    # a V100 has no bf16 rate at all
    job = {"model": "llama3-8b", "cluster": "v100", "gpus": 64, "global_batch": 128, "seq": 2048, "tp": 8}
    assert lumos.predict(**job, precision="fp16").time.time_s > 0


def test_a_schedule_that_was_never_measured_says_so() -> None:
    assert "schedule-unproved" in {d.code for d in lumos.predict(**GPT, global_batch=64, schedule="zero-bubble").diagnostics}
    assert "schedule-unproved" not in {d.code for d in lumos.predict(**GPT, global_batch=64).diagnostics}
