"""The shipped coefficients against the published measurements that they were fitted to."""

import os
from pathlib import Path

import numpy as np
import pytest

from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import shipped_coefficients
from lumos.cost.collective_model import collective
from lumos.cost.fitting.tables import measured_rows, read_table
from lumos.cost.gemm_model import gemm

MEASURED = os.environ.get("LUMOS_MEASURED")


def test_held_out_errors_of_the_large_sets_meet_their_figures() -> None:
    for name, variants in shipped_coefficients()["gemm"].items():
        for variant, c in variants.items():
            if name != "generic" and c.held_out_rows:
                assert c.held_out_rows >= 1000
                assert (c.median_error or 1) <= 0.05, (name, variant)
                assert (c.p90_error or 1) <= 0.15, (name, variant)
    assert all((c.median_error or 1) <= 0.12 for c in shipped_coefficients()["gemm"]["generic"].values())
    assert all((c["trtllm"].median_error or 1) <= 0.08 for c in shipped_coefficients()["attention"].values() if "trtllm" in c)


@pytest.mark.skipif(not MEASURED, reason="LUMOS_MEASURED is not set")
def test_the_public_functions_reproduce_the_tables() -> None:
    folder = Path(MEASURED or "")
    for rows in measured_rows(read_table(folder / "gemm.csv")):
        if len(rows.seconds) >= 1000:
            e = gemm(*(rows.sizes[key] for key in "mnk"), load_cluster(rows.cluster).accelerator, rows.variant)
            measured = rows.seconds * 1e9
            assert np.median(np.abs(e.time / measured - 1)) <= 0.05
            assert 0.7 <= np.mean((e.low <= measured) & (measured <= e.high)) <= 0.9
    attention = measured_rows(read_table(folder / "attention.csv"))
    assert len({(rows.cluster, rows.variant) for rows in attention}) >= 8
    collectives = measured_rows(read_table(folder / "collectives.csv"))
    for rows in [r for r in collectives if np.all(r.sizes["nodes"] == 1) and r.cluster == "gb200"]:
        e = collective(rows.variant, rows.sizes["ranks"], rows.sizes["size_bytes"], load_cluster(rows.cluster))
        assert np.median(np.abs(e.time / (rows.seconds * 1e9) - 1)) <= 0.1
