"""What the functions of `lumos` do with arguments of wrong types: they say which, as the command line does."""

from pathlib import Path

import numpy as np
import pytest

import lumos
from lumos.errors import UsageError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "gpt-2rank-cpu"
H100 = lumos.load_cluster("h100").accelerator
SIZES = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 8, "seq": 2048}


@pytest.fixture(scope="module")
def job():
    return lumos.read(EXAMPLE)


@pytest.mark.parametrize("wrong", [None, 5, {1: 2}, [None]])
def test_a_job_is_named_by_paths(wrong):
    for function in (lumos.inspect, lumos.diagnose, lumos.whatif, lumos.calibrate):
        with pytest.raises(UsageError, match="is no job"):
            function(wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"scale": 5}, "scale = 5 is no mapping"),
        ({"scale": {"*": "fast"}}, "scale\\['\\*'\\] = 'fast' is not a number"),
        ({"rank_slowdown": {0: None}}, "rank_slowdown\\[0\\] = None is not a number"),
        ({"rank_slowdown": {"²": 2}}, "write RANK=FACTOR"),
        ({"network": {"bandwidth": []}}, "network\\['bandwidth'\\] = \\[\\] is not a number"),
        ({"drop": 5}, "drop = 5 is neither a pattern nor"),
        ({"fuse": [None]}, "fuse = \\[None\\] is neither a pattern nor"),
        ({"grid": ["dp"]}, "grid = \\['dp'\\] is no mapping"),
        ({"grid": {"dp": 4}}, "grid\\['dp'\\] = 4 is no sequence"),
        ({"dp": 10**40}, "at most 18 digits"),
        ({"dp": 2**26 + 1}, "must be at most 67,108,864"),
        ({"layers": "١"}, "not a whole number"),
    ],
)
def test_a_what_if_names_the_wrong_word(job, words, said):
    with pytest.raises(UsageError, match=said):
        lumos.whatif(job, **words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpus": -1}, "gpus = -1 must be a whole number from 1"),
        ({"gpus": "8"}, "gpus = '8' must be a whole number"),
        ({"global_batch": 2.5}, "global_batch = 2.5 must be a whole number"),
        ({"seq": 999_999_999}, "seq_len = 999999999 must be a whole number from 1 to 134,217,728"),
        ({"refine": 0}, "refine = 0 must be a whole number from 1"),
        ({"reserve_gb": "much"}, "reserve_gb = 'much' is not a number"),
        ({"tokens": float("inf")}, "tokens = inf is not a finite number"),
        ({"switches": 5}, "switches = 5 is no mapping"),
        ({"switches": {"host_us": 1e300}}, "host_us = 1e.300 must be a finite number from 0 to 1e.06"),
        ({"switches": {"gradient_bytes": 10**30}}, "gradient_bytes = 1000"),
    ],
)
def test_a_search_names_the_wrong_word(words, said):
    with pytest.raises(UsageError, match=said):
        lumos.search(**{**SIZES, "tp": 2, **words})


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda job: lumos.simulate(graph=None), "graph = None is no Graph"),
        (lambda job: lumos.breakdown(lumos.simulate(lumos.build(job)), job), "owners = <Job> is no Members"),
        (lambda job: lumos.load_cluster(8), r"lumos\.load_cluster: name = 8 is no path"),
        (lambda job: lumos.load_model(None), "name = None is no path"),
        (lambda job: lumos.validate(["a.csv"]), r"tables = \['a.csv'\] is no path; give each as an argument of its own"),
        (lambda job: lumos.predict(5), "file = 5 is no path"),
        (lambda job: lumos.explain(5, {"tp": 8}), "a plan of explain = 5 is no mapping"),
        (lambda job: lumos.export(5), "result = 5 is no Answer or Prediction or Found or Timeline"),
        (lambda job: lumos.export(job, chakra="set"), "a run of a recorded job is written with perfetto=FILE"),
        (lambda job: lumos.replay(job, ignore=["gravity"]), "'gravity' is not a kind of dependency"),
        (lambda job: lumos.breakdown(job, step="99"), "'99' is not a step"),
        (lambda job: lumos.report(job, 5), "output = 5 is no path"),
        (lambda job: lumos.emulate(5, "out", "h100"), "command = 5 is no sequence"),
        (lambda job: lumos.critical_path(lumos.simulate(lumos.build(job)), step=11), "step = 11 is no text"),
        (lambda job: lumos.chakra.check(5), r"lumos\.chakra\.check: folder = 5 is no path"),
        (lambda job: lumos.cost.collective("all_reduce", 8, 2**20, 100), "cluster = 100 is no Cluster; lumos.load_cluster gives one"),
        (lambda job: lumos.cost.gemm(8, 8, 8, H100, taps="1"), "taps = '1' is no whole number"),
        (lambda job: lumos.proxy.run("x", max_memory="much"), "max_memory = 'much' is no number"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(job, ask, said):
    with pytest.raises(UsageError, match=said):
        ask(job)


def test_what_is_accepted_is_as_wide_as_its_type():
    assert lumos.cost.gemm(8, 8, 8, H100, taps=np.int64(1), clock=np.float32(1), out_bytes=None).time > 0
    with pytest.raises(lumos.LumosError, match="cannot be read"):
        lumos.load_cluster(Path("absent.toml"))
    with pytest.raises(lumos.LumosError, match="cannot be read"):
        lumos.load_model(Path("absent.json"))
