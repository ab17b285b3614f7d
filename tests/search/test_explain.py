"""The parts add up to the step, and their difference shows in what the plans differ."""

from __future__ import annotations

import pytest

from lumos.blocks.price import Pricer
from lumos.plan.configuration import job_from
from lumos.predict.predict import predict_job
from lumos.search.explain import FILL, RECOMPUTED, explain_predictions
from lumos.search.settings import settings_of

COMMON = "model=llama3-8b,cluster=h100,gpus=16,global_batch=32,seq=4096"


def explained(a, b):
    jobs = [job_from(settings_of(f"{COMMON},{text}")) for text in (a, b)]
    pricer = Pricer(jobs[0].cluster)
    first, second = (predict_job(job, pricer, coarse=True) for job in jobs)
    return first, second, explain_predictions(first, second, pricer)


def test_parts_add_up_to_the_steps():
    first, second, found = explained("tp=2,pp=2", "tp=8,zero=0")
    assert sum(found.first.values()) == pytest.approx(first.time.time_s, rel=1e-6)
    assert sum(found.second.values()) == pytest.approx(second.time.time_s, rel=1e-6)
    assert sum(found.difference.values()) == pytest.approx(second.time.time_s - first.time.time_s, rel=1e-6)


def test_recomputation_is_named():
    first, second, found = explained("tp=2,pp=2", "tp=2,pp=2,recompute=full")
    assert max(found.difference, key=lambda part: found.difference[part]) == RECOMPUTED
    repeated = found.difference[RECOMPUTED] + found.difference["tensor-parallel communication"]  # the forward pass's, done twice
    assert repeated == pytest.approx(second.time.time_s - first.time.time_s, rel=0.15)


def test_a_deeper_pipeline_fills_longer():
    _, _, found = explained("tp=2,pp=2", "tp=2,pp=8")
    assert found.difference[FILL] > 0


def test_more_tensor_parallel_communicates_more():
    _, _, found = explained("tp=2", "tp=8")
    assert found.difference["tensor-parallel communication"] > 0
