"""Measured steps of one's own calibrate the level and the interval of a prediction."""

import numpy as np
import pytest
from tests.prediction.test_rows_of_runs import row
from tests.prediction.test_validate import write

import lumos
from lumos.errors import LumosError
from lumos.prediction.own_steps import RESIDUAL, level_of
from lumos.prediction.step_time import PredictedStep
from lumos.prediction.validate import Scored

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 32, "seq": 4096, "tp": 2, "framework": "generic"}
OWN = {
    "model": "llama3-8b", "layers": "", "hidden": "", "heads": "", "gpu": "H100", "n_gpus": "16", "global_batch": "32", "seq_len": "4096",
    "pp": "1", "micro_batch": "1", "framework": "HomeGrown", "year": "2025", "precision": "bf16", "sequence_parallel": "yes",
    "recompute": "none",
}  # fmt: skip


def test_one_measured_step_mends_the_level_and_narrows_the_interval(tmp_path):
    plain = lumos.predict(**JOB)
    table = write(tmp_path / "own.csv", [row(**OWN, tp="2", step_time_s=str(1.7 * plain.time.time_s))])
    found = lumos.predict(**JOB, measured=table)
    assert found.time.time_s == pytest.approx(1.7 * plain.time.time_s, rel=0.02)
    assert found.tokens_per_s_per_gpu == pytest.approx(plain.tokens_per_s_per_gpu / 1.7, rel=0.02)
    assert sum(found.breakdown.values()) == pytest.approx(found.time.time_s, rel=1e-6)
    assert found.time.high_s / found.time.low_s < 0.85 * plain.time.high_s / plain.time.low_s
    assert "calibrated-by-measured" in {d.code for d in found.diagnostics}
    assert found.unknowns == ()  # what the framework does is in the measured step


def test_what_the_measured_steps_do_not_show_stays_open(tmp_path):
    """They ran on one node, so they say nothing of the network between two."""
    one_node = row(**{**OWN, "n_gpus": "8", "global_batch": "16"}, tp="2", step_time_s="1")
    found = lumos.predict(**JOB, measured=write(tmp_path / "own.csv", [one_node]))
    assert {u.code for u in found.unknowns} == {"unknown-network"}


def test_rows_say_what_differs_from_the_question_and_nothing_else(tmp_path):
    """A framework that is not named is that of the question, with its switches; id and source may be left out."""
    asked = {**JOB, "switches": {"attention": "unfused"}}
    plain = lumos.predict(**asked)
    mine = {key: value for key, value in OWN.items() if key != "framework"} | {"tp": "2", "step_time_s": str(plain.time.time_s)}
    table = tmp_path / "own.csv"
    table.write_text("\n".join(",".join(part) for part in (mine, mine.values())))
    found = lumos.predict(**asked, measured=table)
    assert found.time.time_s == pytest.approx(plain.time.time_s, rel=0.02)
    table.write_text(table.read_text().replace("tp,", "tps,"))
    with pytest.raises(LumosError, match=r"own\.csv: line 1: column 'tps' is not read; is tp meant\?"):
        lumos.predict(**asked, measured=table)
    with pytest.raises(LumosError, match=r"its devices reach [\d,]+% of their peak"):
        lumos.predict(**JOB, measured=write(tmp_path / "own.csv", [row(**OWN, tp="2", step_time_s="0.001")]))


def scored(ratios) -> list[Scored]:
    return [Scored(str(i), "own", {}, ratio, PredictedStep(1.0, 0.9, 1.1)) for i, ratio in enumerate(ratios)]


def test_the_interval_holds_four_of_five_further_steps():
    """Rows whose logarithms differ as those of a published source do."""
    draw, held, trials = np.random.default_rng(7), 0, 400
    for _ in range(trials):
        *own, new = np.exp(0.3 + RESIDUAL * draw.standard_normal(4)).tolist()
        time = level_of(scored(own), "own").applied(PredictedStep(1.0, 0.9, 1.1), ())
        held += time.low_s <= new <= time.high_s
    assert 0.72 < held / trials < 0.88


def test_rows_of_another_device_or_framework_are_left_out_by_name(tmp_path):
    time = lumos.predict(**JOB).time.time_s
    rows = [row(**{**OWN, "gpu": gpu}, id=name, tp="2", step_time_s=str(2 * time)) for name, gpu in (("own", "H100"), ("a", "A100"))]
    found = lumos.predict(**JOB, measured=write(tmp_path / "own.csv", rows))
    assert found.time.time_s == pytest.approx(2 * time, rel=0.02)
    assert any("left out: a: it ran on a100-80gb, and the prediction is for h100" in d.message for d in found.diagnostics)
    for other, reason in (({**OWN, "framework": "NeMo"}, "it ran on the profile nemo"), ({"gpu": "TPUv4"}, ".*TPUv4")):
        with pytest.raises(LumosError, match=rf"own\.csv: no row can be compared with a prediction: {reason}"):
            lumos.predict(**JOB, measured=write(tmp_path / "own.csv", [row(**other)]))
