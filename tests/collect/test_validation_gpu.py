"""The table of GPU recordings: what it says of a recording, of a trace that does not replay, and of no recording at all."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = {"basis": "period", "counts": True, "kernel_start_error": {"median": 0.0, "p95": 0.002}, "kept_wait": 0.001, "unexplained_idle": 0.0}
PAGE = "# Recordings\n\n<!-- gpu -->\nold\n<!-- /gpu -->\n\nafter\n"


@pytest.fixture
def run(tmp_path: Path) -> Callable[[], str]:
    """A stand-in for the command: it fails on a trace named broken, and answers two scored steps and one unscored, and two that do not
    count: the first, and one in which something happens once."""
    steps = [{**STEP, "error": e, "scored": s} for e, s in ((0.01, True), (-0.03, True), (0.9, False))]
    others = [
        {**STEP, **other, "counts": False, "error": 0.9, "scored": False, "unexplained_idle": 0.5} for other in ({"basis": "latency"}, {})
    ]
    answer = {"basis": "period", "steps": [*others, *steps]}
    lumos = tmp_path / "lumos"
    refuse = "if 'broken' in sys.argv[-1]: sys.exit('broken: no such trace')"
    lumos.write_text(f"#!{sys.executable}\nimport sys\n{refuse}\nprint({json.dumps(json.dumps(answer))})\n")
    lumos.chmod(0o755)
    (tmp_path / "gpu.md").write_text(PAGE)

    def validate() -> str:
        command = [sys.executable, "-m", "validation.gpu", "--examples", str(tmp_path / "examples"), "--lumos", str(lumos)]
        subprocess.run([*command, "--result", str(tmp_path / "gpu.md")], check=True, capture_output=True, cwd=ROOT)
        return (tmp_path / "gpu.md").read_text()

    return validate


def recording(folder: Path, *rows: str) -> None:
    folder.mkdir(parents=True)
    (folder / "recording.json").write_text(
        json.dumps({"device": "GPU X", "driver": "1.2", "torch": "2.9", "cuda": "13", "command": "python r.py"})
    )
    head = "setting,untraced_median_ns,untraced_spread,traced_median_ns,trace"
    (folder / "steps.csv").write_text("\n".join([head, *rows]) + "\n")


def test_no_recording_is_said_so(run: Callable[[], str], tmp_path: Path) -> None:
    page = run()
    assert "No GPU recording yet" in page
    assert "old" not in page and page.startswith("# Recordings") and page.endswith("after\n")


def test_errors_are_over_scored_steps_and_stretch_is_traced_over_untraced(run: Callable[[], str], tmp_path: Path) -> None:
    recording(tmp_path / "examples" / "gpu-x", "base,10000000,0.01,10500000,base/rank0.json.gz")
    page = run()
    assert "## GPU X (`gpu-x`)" in page and "driver 1.2, torch 2.9, cuda 13" in page
    assert "Mean absolute replay error 2.00% over 2 scored of 3 steps,\nworst 3.00%" in page
    assert "| base | 10.00 ms | 1.00% | 10.50 ms | 5.00% | 2.00% | 3.00% | 0.20% | 0.10% | 0.00% | 2 of 3 |" in page


def test_a_trace_that_does_not_replay_stays_in_the_table(run: Callable[[], str], tmp_path: Path) -> None:
    recording(tmp_path / "examples" / "gpu-x", "moe,10000000,0.01,10500000,broken/rank0.json.gz")
    page = run()
    assert "not replayed: broken: no such trace" in page and run() == page
