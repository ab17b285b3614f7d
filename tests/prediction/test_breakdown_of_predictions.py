"""The four parts of a prediction, and the rates of its kernels, asked for on the command line."""

import json
import subprocess
import sys

GPT = ["--model", "gpt3-175b", "--cluster", "h100", "--gpus", "512", "--seq", "2048", "--micro-batch", "1", "--tp", "8", "--pp", "8"]


def predict(*arguments: str) -> dict:
    command = [sys.executable, "-c", "from lumos.cli import main; main()", "predict", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_the_pipeline_bubble_is_idle_not_communication() -> None:
    # 8 microbatches through 8 stages: a stage idles 7 of 15 parts of the pipeline's time
    step = predict(*GPT, "--global-batch", "64")
    parts = step["breakdown"]
    assert parts["other_s"] > 0.3 * step["step_time_s"]
    assert abs(sum(parts.values()) - step["step_time_s"]) < 1e-6
    longer = predict(*GPT, "--global-batch", "1536")  # 192 microbatches: hardly any bubble
    assert longer["breakdown"]["other_s"] < 0.1 * longer["step_time_s"]


def test_attention_runs_at_the_rate_of_the_precision_asked_for() -> None:
    # a V100 has no bf16 rate at all
    arguments = ["--model", "llama3-8b", "--cluster", "v100", "--gpus", "64", "--global-batch", "128", "--seq", "2048", "--tp", "8"]
    assert predict(*arguments, "--precision", "fp16")["step_time_s"] > 0


def test_a_schedule_that_was_never_measured_says_so() -> None:
    found = predict(*GPT, "--global-batch", "64", "--schedule", "zero-bubble")["diagnostics"]
    assert any(d["code"] == "schedule-unproved" for d in found)
    assert not any(d["code"] == "schedule-unproved" for d in predict(*GPT, "--global-batch", "64")["diagnostics"])
