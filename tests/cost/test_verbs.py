"""`lumos cost`, `clusters` and `calibrate` as commands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lumos.cli import cost
from lumos.errors import UsageError

app = typer.Typer()
app.add_typer(cost.cost, name="cost")
app.command("clusters")(cost.clusters)
app.command("calibrate")(cost.calibrate)


def run(*words: str) -> str:
    """Standard output; the error itself where the verb raises one."""
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def answer(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json"))
    return found


GEMM = ("cost", "gemm", "--on", "h100", "--m", "4096", "--n", "4096", "--k", "4096")
ALL_REDUCE = ("cost", "collective", "all_reduce", "--cluster", "h100", "--ranks", "8", "--bytes", "1000000")


ATTENTION = ("cost", "attention", "--on", "a100", "--seq", "2048", "--heads", "16")


@pytest.mark.parametrize("words", [GEMM, ATTENTION, ALL_REDUCE])
def test_cost_answers_with_the_contracted_keys(words: tuple[str, ...]) -> None:
    e = answer(*words)
    assert {"time_s", "low_s", "high_s", "bound_by", "fraction_of_peak"} <= set(e)
    assert 0 < e["low_s"] <= e["time_s"] <= e["high_s"]
    assert 0 < e["fraction_of_peak"] <= 1
    assert f"bound by {e['bound_by']}" in run(*words)


@pytest.mark.parametrize(
    "words",
    [
        (*GEMM[:4], "--m", "99999999999999999999", *GEMM[6:]),
        (*GEMM[:4], "--m", "0", *GEMM[6:]),
        (*ATTENTION[:-1], "7", "--kv-heads", "3"),
        (*ATTENTION[:-1], "0"),
        (*ALL_REDUCE[:-1], "1.5"),
        (*ALL_REDUCE[:-1], "-1"),
        (*ALL_REDUCE[:-1], "many"),
    ],
)
def test_sizes_that_nothing_has_are_wrong_usage(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2 or isinstance(result.exception, UsageError)


def test_clusters_are_listed_and_one_is_shown_with_its_sources() -> None:
    names = [c["name"] for c in answer("clusters")["clusters"]]
    assert {"h100", "mtia-v1", "host"} <= set(names) and names == sorted(names)
    assert "GB200" in run("clusters")
    shown = run("clusters", "h100")
    assert re.search(r"memory_bytes_per_s +3.35 TB/s", shown) and "NVIDIA H100" in shown


def test_calibrate_fits_a_table_and_cost_uses_it(tmp_path: Path) -> None:
    shapes = [(m, n) for m in (512, 1024, 2048, 4096, 8192) for n in (1024, 2048, 4096, 8192, 16384)]
    rows = [f"H100,bf16,{m},{n},4096,{2 * m * n * 4096 / 2e14 * 1e6 + 5:.3f}" for m, n in shapes]
    lines = ["gpu,dtype,m,n,k,time_us", *rows]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    fitted = answer("calibrate", str(tmp_path / "mine.csv"), "-o", str(tmp_path / "mine.toml"))
    (entry,) = fitted["coefficients"]
    assert (entry["model"], entry["accelerator"], entry["variant"], entry["rows"]) == ("gemm", "h100", "bf16", 25)
    own = answer(*GEMM, "--coefficients", str(tmp_path / "mine.toml"))
    assert own["time_s"] == pytest.approx(2 * 4096**3 / 2e14, rel=0.15)
    assert "median error" in run("calibrate", str(tmp_path / "mine.csv"))


def test_calibrate_refuses_a_mixture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CSV tables or traces"):
        run("calibrate", "a.csv", "b.json")
