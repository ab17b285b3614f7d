"""Fitting: coefficients are found again from times computed with them, groups stay together, files can be read back."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import Coefficients, overlay, read_coefficients, shipped_coefficients, write_coefficients
from lumos.cost.collective_model import LINK_PRIOR, link_seconds, span_group
from lumos.cost.fitting.fit import MeasuredRows, held_out
from lumos.cost.fitting.models import fit_tables
from lumos.cost.fitting.tables import read_table
from lumos.cost.gemm_model import GEMM_PRIOR, gemm, gemm_seconds, work_of
from lumos.errors import LumosError
from lumos.vocabulary import CollectiveKind

HEADER = "gpu,dtype,m,n,k,time_us\n"
ATTENTION_HEADER = "gpu,dtype,direction,causal,batch,seq_len,heads,kv_heads,head_dim,time_us\n"


def gemm_csv(path: Path, slower: float = 1.0, rows: int = 120) -> Path:
    """Times that the formula gives for a device that is `slower` times as slow as with textbook coefficients."""
    h100 = load_cluster("h100").accelerator
    rng = np.random.default_rng(1)
    m, n, k = (np.exp2(rng.uniform(7, 13, rows)).astype(int).astype(float) for _ in range(3))
    seconds = gemm_seconds(m, n, k, work_of(h100, "bf16"), GEMM_PRIOR) * slower
    lines = [f"H100-SXM,bfloat16,{a:.0f},{b:.0f},{c:.0f},{t * 1e6:.6f}" for a, b, c, t in zip(m, n, k, seconds, strict=True)]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


def rows_of(x: np.ndarray, seconds: np.ndarray) -> MeasuredRows:
    """Rows whose time is in proportion to one size."""
    return MeasuredRows("h100", "any", {"x": x}, seconds, lambda sizes, c: c.rate * sizes["x"])


class Rate(NamedTuple):
    rate: float


def test_held_out_rows_never_train_their_own_model() -> None:
    x, groups = np.arange(1.0, 61.0), ["a"] * 20 + ["b"] * 20 + ["c"] * 20
    seconds = x * np.repeat([1.0, 1.0, 5.0], 20)
    parts = [rows_of(x[:30], seconds[:30]), rows_of(x[30:], seconds[30:])]
    modelled = held_out(parts, Rate(1.0), groups)
    assert modelled[40:] / x[40:] == pytest.approx(1.0, rel=0.02)
    assert np.isnan(held_out(parts, Rate(1.0), ["a"] * 60)).all()


def test_calibration_on_a_table_learns_the_device(tmp_path: Path) -> None:
    book = fit_tables([read_table(gemm_csv(tmp_path / "gemm.csv", slower=1.5))])
    a = load_cluster("h100").accelerator
    mine = book["gemm"]["h100"]["bf16"]
    assert mine.median_error is not None and mine.median_error < 0.03
    measured = gemm_seconds(np.array([3000.0]), np.array([5000.0]), np.array([2000.0]), work_of(a, "bf16"), GEMM_PRIOR)[0] * 1.5
    own = gemm(3000, 5000, 2000, a, book=overlay(shipped_coefficients(), book))
    assert own.time / 1e9 == pytest.approx(measured, rel=0.1)
    assert gemm(3000, 5000, 2000, a).time < own.time


def test_collective_tables_are_fitted_by_kind(tmp_path: Path) -> None:
    cluster = load_cluster("h100")
    sizes = np.tile(2.0 ** np.arange(10, 30), 2)
    ranks = np.repeat([2.0, 8.0], 20)
    seconds, _, _ = link_seconds(CollectiveKind.ALL_REDUCE, sizes, span_group(cluster, ranks, ranks, np.ones(40), ranks), LINK_PRIOR)
    lines = [f"H100,{n:.0f},1,all_reduce,{s:.0f},{t * 2e6:.4f}" for n, s, t in zip(ranks, sizes, seconds, strict=True)]
    path = tmp_path / "nccl.csv"
    path.write_text("gpu,n_gpus,n_nodes,collective,size_bytes,time_us\n" + "\n".join(lines))
    found = fit_tables([read_table(path)])["collective"]["h100"]
    assert list(found) == ["all_reduce"]
    assert (found["all_reduce"].median_error or 0) < 0.05


def test_coefficients_round_trip_through_their_file(tmp_path: Path) -> None:
    numbers = ("base_us", "growth", "hop_us", "small_group_overhead", "switch_overhead", "switch_us")
    entry = Coefficients(
        {**dict.fromkeys(numbers, 1.5), "latency_factor": [1.0, 2e-7, 3.0], "overhead": [1.0, 2e-7, 3.0]},
        (0.9, 1.1),
        {"m": (1.0, 8.0)},
        ratio=1.25,
        rows=7,
        held_out_rows=7,
        median_error=0.03,
    )
    book = {"collective": {"h100": {"all_gather": entry}}}
    write_coefficients(book, tmp_path / "c.toml", "mine")
    assert read_coefficients(tmp_path / "c.toml") == book


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpu,dtype,m,n,time_us\n", "columns k are missing for a gemm table; tables have: gemm: gpu, dtype"),
        (HEADER + "H100,bf16,1,2,three,4\n", "line 2: k = 'three' is not a number"),
        (HEADER + "H100,bf16,1,2,-3,4\n", "line 2: k = '-3' must be positive"),
        (HEADER + 'H100,bf16,1,2,"1,2",4\n', "line 2: k = '1,2' is not a number"),
        (HEADER + "H100,bf16,1,2\n", "line 2 has fewer fields"),
        (ATTENTION_HEADER + "H100,bf16,back,yes,1,128,8,8,64,4\n", "line 2: direction = 'back' is not known; valid: fwd, bwd"),
        (HEADER + "H100,bf16,1,2,3,4\n", "no set of 20 rows of one accelerator"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(LumosError, match=complaint):
        fit_tables([read_table(path)])


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "H100,bf16,1,2,3,\nTPUv9,bf16,1,2,3,4\nH100,fp9,1,2,3,4\nH100,bf16,1,2,3,4\n")
    table = read_table(path)
    assert len(table.rows) == 1
    assert [d.message.split(": ", 1)[1] for d in table.diagnostics] == [
        "1 rows left out: a number is blank",
        "1 rows left out: TPUv9 bf16: accelerator, dtype or collective not known",
        "1 rows left out: H100 fp9: accelerator, dtype or collective not known",
    ]


NETWORK = "exchange_overhead = 1.3, growth = 0.4, hop_factor = 1.1, overhead = 1.2"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("values = { growth = 0.4 }\ninterval = [0.9, 1.1]", r"network\.generic\.network. values must be exchange_overhead, growth"),
        ("values = { " + NETWORK.replace("0.4", "[0.4]") + " }\ninterval = [0.9, 1.1]", "values must be"),
        ("values = { " + NETWORK.replace("0.4", "nan") + " }\ninterval = [0.9, 1.1]", "must be finite"),
        ("values = { " + NETWORK + " }\ninterval = [1.1, 0.9]", "interval and ratio positive"),
        ("values = { " + NETWORK + " }\ninterval = [0.9, 1.1]\nratio = 0.0", "interval and ratio positive"),
    ],
)
def test_coefficients_of_another_form_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[network.generic.network]\nvalues = {{ {NETWORK} }}\ninterval = [0.9, 1.1]\n")
    assert read_coefficients(path)["network"]["generic"]["network"].values["growth"] == 0.4
    path.write_text(f"[network.generic.network]\n{text}\n")
    with pytest.raises(LumosError, match=complaint):
        read_coefficients(path)


def test_a_cost_model_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[gem.h100.bf16]\nvalues = {}\ninterval = [0.9, 1.1]\n")
    with pytest.raises(LumosError, match=r"\[gem\] is no cost model; valid: attention, collective, gemm"):
        read_coefficients(path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[gemm]\nh100 = 3\n")
    with pytest.raises(LumosError, match=r"c\.toml: not a file of coefficients.*lumos calibrate"):
        read_coefficients(path)
    with pytest.raises(LumosError, match="cannot be read"):
        read_coefficients(tmp_path / "none.toml")
    with pytest.raises(LumosError, match="cannot be read"):
        read_table(tmp_path / "none.csv")
