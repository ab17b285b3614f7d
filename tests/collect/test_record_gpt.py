"""The example script: two gloo processes on the CPU, started by itself, each writing its rank's file."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed, and the example trains with it")

SCRIPT = Path(__file__).parents[2] / "examples" / "record_gpt.py"
SMALL = ("--layers", "1", "--hidden", "16", "--heads", "2", "--seq", "8", "--vocab", "32", "--micro-batch", "1")
WINDOW = ("--steps", "2", "--wait", "0", "--warmup", "1")


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as file:
        whole: dict[str, Any] = json.load(file)
    return whole


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_records_two_ranks_that_enter_the_window_together(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--processes", "2", "--accumulation", "2", *SMALL, *WINDOW]
    hidden_gpus = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden_gpus, timeout=180)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["traced_s"]) == 2
    for rank in (0, 1):
        trace = read(tmp_path / f"rank{rank}.json.gz")
        assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (rank, 2)
        names = [e["name"] for e in trace["traceEvents"]]
        assert sum(n.startswith("ProfilerStep") for n in names) == 2
        assert names.count("gloo:all_reduce") == names.count("c10d::allreduce_") == 2  # once a step: accumulation does not reduce
