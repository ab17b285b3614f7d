"""The notebooks run from their folder, end with the answers that their text promises, and are stored with what they show."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

#: What must be true of the names that a notebook leaves behind.
PROMISED = {
    "eight_gpus": [
        "len(job.traces) == 8 and replay.mean_abs_error < 0.001 and 'measured' not in network._repr_html_()",
        "[str(finding.code) for finding in findings][:2] == ['launch-bound', 'exposed-communication']",
        "busy._repr_html_().startswith('<svg') and [b.duration_ns for b in busy] == [sum(s.breakdown) for s in steps]",
        "0.9 < network.outcome.step_time_s / network.base.step_time_s < 1 and changed.duration_ns < busy[0].duration_ns",
        "graphs.outcome.step_time_s < graphs.base.step_time_s < batch.outcome.step_time_s < slow.outcome.step_time_s",
        "abs(batch.outcome.step_time_s / 24.61e-3 - 1) < 0.02",  # what the script itself takes, emulated with that batch
    ],
    "no_gpu": [
        "emulated.ranks == len(job.traces) == len(steps) == 8 and held.peak_bytes < 80e9",
        "busy._repr_html_().startswith('<svg') and larger.outcome.step_time_s > 1.5 * larger.base.step_time_s",
        "[cell.step_time_s for cell in grid][0] == max(cell.step_time_s for cell in grid) > min(cell.step_time_s for cell in grid)",
    ],
    "paper": [
        "len(steps_ms) == 9 and all(300 < step < 2000 for step in steps_ms.values())",
        "all(abs(sum(parts_ms(predictions[each])) - steps_ms[each]) < 1 for each in LAYOUTS)",
        "not published or (mean['here, one step measured'] < 0.2 < mean['here'] < 0.4 and mean['the paper, from a trace of 2x2x4'] < 0.05)",
    ],
    "plan": [
        "prediction.time.low_s < prediction.time.time_s < prediction.time.high_s",
        "plans.best[0].time.time_s <= prediction.time.time_s",
        "max(why.parts.difference, key=why.parts.difference.get) == 'tensor-parallel communication'",
        "len(curve) == 3 and busy._repr_html_().startswith('<svg') and all(0 < b.mean_busy <= 1 for b in busy)",
    ],
}


def code(path: Path) -> list[dict[str, Any]]:
    """The cells of code of a notebook."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def needed(path: Path) -> None:
    """Skip where what the notebook says that it needs is not there."""
    if path.stem == "no_gpu":
        pytest.importorskip("torch", reason="torch is not installed (pip install -e '.[torch]')")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_small_with_what_it_shows_and_no_path_of_a_machine(path):
    assert code(path) and all(cell["execution_count"] for cell in code(path))
    html = ["".join(output.get("data", {}).get("text/html", "")) for cell in code(path) for output in cell["outputs"]]
    assert any("<svg" in shown or "<div" in shown for shown in html)
    text = path.read_text(encoding="utf-8")
    assert len(text) < 60_000 and str(FOLDER.parents[1]) not in text and "/tmp" not in text


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem == "no_gpu" else []) for p in NOTEBOOKS])
def test_the_code_of_a_notebook_keeps_its_promises_and_prints_what_is_stored(path, monkeypatch, capsys):
    needed(path)
    monkeypatch.chdir(FOLDER)
    names: dict[str, object] = {}
    for cell in code(path):
        exec(compile("".join(cell["source"]), str(path), "exec"), names)
    stored = ["".join(output["text"]) for cell in code(path) for output in cell["outputs"] if output["output_type"] == "stream"]
    if path.stem != "paper" or "LUMOS_MEASURED" in os.environ:
        assert capsys.readouterr().out == "".join(stored), "run python -m tools.notebooks"
    for promise in PROMISED[path.stem]:
        assert eval(promise, names), promise


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_a_notebook_runs_in_a_kernel(path):
    needed(path)
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module, reason=f"{module} is not installed (pip install -e '.[docs]')")
    from tools.notebooks import run

    assert any("text/html" in output.get("data", {}) for cell in run(path).cells for output in cell.get("outputs", ()))
