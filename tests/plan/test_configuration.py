from __future__ import annotations

from lumos.plan.configuration import Settings, job_from


def notes(pp):
    job = job_from(Settings(model="llama3-8b", cluster="h100", gpus=pp, global_batch=pp, seq=2048, pp=pp))
    return {d.code: d.message for d in job.assumed}


def test_a_stage_without_layers_is_said_to_be_one():
    """Llama 3 8B has 32 layers: of 33 stages one has none, of 32 every one has its own."""
    assert notes(33)["stage-without-layers"].startswith("1 of 33 parts of the pipeline have none of the 32 layers")
    assert "stage-without-layers" not in notes(32)
