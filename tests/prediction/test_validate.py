"""Scores: figures of the errors, rank correlation within groups, skipped rows."""

import csv
import os
from pathlib import Path

import pytest
from tests.prediction.test_rows_of_runs import row

from lumos.prediction.step_time import PredictedStep
from lumos.prediction.validate import Scored, read_tables, rows_of, score, summary


def write(path: Path, rows: list[dict[str, str]]) -> str:
    keys = list(dict.fromkeys(k for r in rows for k in r))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, keys, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_rows_are_scored_or_skipped_with_a_reason(tmp_path):
    table = write(tmp_path / "runs.csv", [row(), row(id="a-2", gpu="TPUv4"), row(id="a-3", step_time_s="")])
    scored = score(read_tables([table]))
    result, rows = summary(scored), rows_of(scored)
    assert (result["scored"], result["skipped_count"]) == (1, 2)
    assert "TPUv4" in rows[1]["skipped"]
    assert rows[0]["error"] == pytest.approx(rows[0]["predicted_s"] / 0.5 - 1)
    assert result["by_source"]["somewhere"]["scored"] == 1


def scored(measured: float, predicted: float, **changes: str) -> Scored:
    from lumos.prediction.validate import job_of

    r = row(**changes)
    return Scored(r["id"], r["source"], r, measured, PredictedStep(predicted, 0.8 * predicted, 1.2 * predicted), job_of(r))


def test_figures_of_known_errors():
    found = summary([scored(1.0, 1.1), scored(1.0, 0.7), scored(2.0, 2.0)])
    assert found["mean_abs_error"] == pytest.approx(0.4 / 3)
    assert found["median_abs_error"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(-0.2 / 3)
    assert found["interval_coverage"] == pytest.approx(2 / 3)
    assert found["spearman_within"] is None


def test_rank_correlation_within_groups_of_five():
    order = [scored(float(i), float(p)) for i, p in zip(range(1, 6), (1, 2, 3, 5, 4), strict=True)]
    assert summary(order)["spearman_within"] == pytest.approx(0.9)


MEASURED = os.environ.get("LUMOS_MEASURED")
TABLES = ("vtrain", "llm_foundry", "internevo", "simumax_b200", "nemo_legacy", "torchtitan")


@pytest.mark.skipif(MEASURED is None, reason="LUMOS_MEASURED names no folder of published tables")
@pytest.mark.parametrize("name", TABLES)
def test_every_published_row_is_scored_within_reason(name):
    rows = list(read_tables([f"{MEASURED}/{name}.csv"]))
    result = summary(score(rows[:: max(1, len(rows) // 20)]))
    assert result["skipped_count"] == 0
    assert result["median_abs_error"] < 0.12
