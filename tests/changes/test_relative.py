"""Settings that say how many times what was recorded."""

from functools import partial

import pytest
from tests.changes.layout.test_replicated import job_of

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.predicted import setting_of
from lumos.changes.settings import parse_settings
from lumos.changes.stated import absolute, of_blocks
from lumos.errors import LumosError, UsageError
from lumos.plan.configuration import Settings
from lumos.plan.configuration import job_from as planned
from lumos.segment.segment import segment


def resolved(folder, *words):
    """Of a process alone, with one pass over two layers from 512 to 512 and 16 sequences."""
    job, graph = job_of(folder, (512, 512), (512, 512))
    return absolute(Changes(parse_settings(words)), of_blocks(measured_layout(segment(graph, job)), job)).settings


def test_a_factor_is_of_what_was_recorded(tmp_path):
    words = "hidden=x2", "micro_batch=x0.5", "microbatches=x4", "dp=x3", "tp=x2", "layers=7"
    assert resolved(tmp_path, *words) == {"hidden": "1024", "micro_batch": "8", "microbatches": "4", "dp": "3", "tp": "2", "layers": "7"}


def test_of_a_prediction_the_factor_is_of_what_was_predicted():
    job = planned(Settings(model="gpt3-6.7b", cluster="h100", global_batch=8, seq=2048, gpus=4, tp=2))
    wanted = Changes(parse_settings(["tp=x2", "seq=x1.5", "hidden=x2", "precision=fp8"]))
    assert absolute(wanted, partial(setting_of, job)).settings == {"tp": "4", "seq": "3072", "hidden": "8192", "precision": "fp8"}


def test_a_factor_of_nothing_and_one_that_divides_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"1\.3 times the recorded 16 is no whole number"):
        resolved(tmp_path, "micro_batch=x1.3")
    with pytest.raises(LumosError, match="does not show ep, so x2 of it is unknown; give the number"):
        resolved(tmp_path, "ep=x2")
    for word in ("x0", "x", "x-1", "x1e3"):
        with pytest.raises(UsageError, match="not a whole number"):
            parse_settings([f"layers={word}"])
