"""The interval of a step: of the device in part, of the host in full, and wider where nothing of the device was measured."""

from math import hypot

import pytest

import lumos
from lumos.blocks.price import shipped_step_coefficients
from lumos.plan.configuration import Settings, job_from
from lumos.plan.profiles import evidence
from lumos.prediction.step_time import half_width

TINY = {"model": "gpt3-126m", "gpus": 1, "global_batch": 1, "seq": 128}


def halves(**settings):
    """The two halves of the interval, as shares of the step."""
    time = lumos.predict(**settings).time
    return time.time_s / time.low_s - 1, time.high_s / time.time_s - 1


def test_a_slow_host_is_slow_at_every_launch():
    down, up = halves(**TINY, cluster="h100", framework="fsdp2")
    assert up > 0.5  # launches bound this step, and their time is known within a factor of 1.6
    assert down > 3 * shipped_step_coefficients().spread  # the spread alone would be all of a step that the device bounds


@pytest.mark.parametrize(("measured", "relative"), [("h200", "h20"), ("gb200", "gb300")])
def test_an_accelerator_without_tables_is_known_less_well(measured, relative):
    sizes = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq": 8192, "zero": 3, "framework": "generic"}
    c = shipped_step_coefficients()
    known, less = (half_width(0.1, job_from(Settings(**sizes, dp=8, cluster=name)), c) for name in (measured, relative))
    assert less == pytest.approx(hypot(known, c.unmeasured))
    assert min(halves(**sizes, dp=8, cluster=relative)) > min(halves(**sizes, dp=8, cluster=measured))


def test_a_mixture_of_experts_is_known_less_well():
    down, up = halves(model="mixtral-8x7b", cluster="h100", gpus=64, global_batch=256, seq=4096, ep=8, framework="megatron-core")
    assert min(down, up) >= shipped_step_coefficients().mixture


def test_a_profile_is_as_sure_as_published_runs_of_its_accelerator_say():
    """Those of fsdp2-compiled on H100 of 96 GB lie closer than those on MI300X, and none are known of InternEvo on H100."""
    c = shipped_step_coefficients()

    def spread(framework: str, cluster: str, priced: float = 0.0) -> float:
        job = job_from(Settings(model="llama3-8b", cluster=cluster, gpus=8, global_batch=8, seq=4096, framework=framework))
        return half_width(priced, job, c)

    seen = evidence()["fsdp2-compiled"]
    assert spread("fsdp2-compiled", "mi300x") == seen["mi300x"].within > spread("fsdp2-compiled", "h100-96gb") == seen["h100-96gb"].within
    assert spread("internevo", "h100") == c.untried > c.spread
    assert spread("nemo", "h100") == c.spread >= evidence()["nemo"]["h100"].within
    assert spread("nemo", "h100", priced=0.2) == 0.2  # errors of prices are part of those of steps
    assert spread("internevo", "h100", priced=0.2) == hypot(0.2, c.untried)
