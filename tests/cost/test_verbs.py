"""`lumos cost`, `clusters` and `calibrate` as commands."""

import re
from pathlib import Path
from typing import Any

import pytest

GEMM = ("cost", "gemm", "--on", "h100", "--m", "4096", "--n", "4096", "--k", "4096")
ALL_REDUCE = ("cost", "collective", "all_reduce", "--cluster", "h100", "--ranks", "8", "--bytes", "1000000")


ATTENTION = ("cost", "attention", "--on", "a100", "--seq", "2048", "--heads", "16")


@pytest.mark.parametrize("words", [GEMM, ATTENTION, ALL_REDUCE])
def test_cost_answers_with_the_contracted_keys(words: tuple[str, ...], lumos: Any) -> None:
    e = lumos(*words, "--json").json
    assert {"time_s", "low_s", "high_s", "bound_by", "fraction_of_peak"} <= set(e)
    assert 0 < e["low_s"] <= e["time_s"] <= e["high_s"]
    assert 0 < e["fraction_of_peak"] <= 1
    assert f"bound by {e['bound_by']}" in lumos(*words).out


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
def test_sizes_that_nothing_has_are_wrong_usage(words: tuple[str, ...], lumos: Any) -> None:
    assert lumos(*words).status == 2


def test_clusters_are_listed_and_one_is_shown_with_its_sources(lumos: Any) -> None:
    names = [c["name"] for c in lumos("clusters", "--json").json["clusters"]]
    assert {"h100", "mtia-v1", "host"} <= set(names) and names == sorted(names)
    assert "GB200" in lumos("clusters").out
    shown = lumos("clusters", "h100").out
    assert re.search(r"memory_bytes_per_s +3.35 TB/s", shown) and "NVIDIA H100" in shown


def test_calibrate_fits_a_table_and_cost_uses_it(tmp_path: Path, lumos: Any) -> None:
    shapes = [(m, n) for m in (512, 1024, 2048, 4096, 8192) for n in (1024, 2048, 4096, 8192, 16384)]
    rows = [f"H100,bf16,{m},{n},4096,{2 * m * n * 4096 / 2e14 * 1e6 + 5:.3f}" for m, n in shapes]
    lines = ["gpu,dtype,m,n,k,time_us", *rows]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    fitted = lumos("calibrate", tmp_path / "mine.csv", "-o", tmp_path / "mine.toml", "--json").json
    (entry,) = fitted["coefficients"]
    assert (entry["model"], entry["accelerator"], entry["variant"], entry["rows"]) == ("gemm", "h100", "bf16", 25)
    own = lumos(*GEMM, "--coefficients", tmp_path / "mine.toml", "--json").json
    assert own["time_s"] == pytest.approx(2 * 4096**3 / 2e14, rel=0.15)
    assert "median error" in lumos("calibrate", tmp_path / "mine.csv").out


def test_calibrate_refuses_a_mixture(lumos: Any) -> None:
    done = lumos("calibrate", "a.csv", "b.json")
    assert done.status == 2 and "CSV tables or traces" in done.err
