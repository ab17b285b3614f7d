"""The notebooks run from their folder, end with the answers that their text promises, and are stored without outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

#: What must be true of the names that a notebook leaves behind.
PROMISED = {
    "analyse": [
        "lumos.replay(graph, timeline).mean_abs_error < 0.01",
        "str(found[0].code) == 'extra-work' and found[0].where.ranks == (1,)",
        "[c for c in changed.operators if c.name == 'aten::bmm' and c.status == 'appeared']",
        "all(sum(step.breakdown) == step.duration_ns for step in steps)",
        "busy._repr_html_().startswith('<svg') and [b.name for b in busy] == [s.name for s in steps]",
    ],
    "whatif": [
        "faster_gpu.outcome.step_time_s < base.step_time_s and faster_cpu.outcome.step_time_s < base.step_time_s",
        "len(grid) == 6",
        "busy['changed'].mean_busy < busy['recorded'].mean_busy",
        "faster_gpu.outcome.step_time_s < bound.outcome.step_time_s < base.step_time_s",
        "one_slow.outcome.step_time_s > 1.2 * one_slow.base.step_time_s",
    ],
    "paper": [
        "len(steps_ms) == 9 and all(300 < step < 2000 for step in steps_ms.values())",
        "[row[2] for row in rows if row[1].startswith('here')] == list(steps_ms.values()) and 'here' in Bars()._repr_html_()",
        "not published or (0.3 < mean['here'] < 0.4 and mean['the paper'] < 0.05)",
    ],
    "plan": [
        "prediction.time.low_s < prediction.time.time_s < prediction.time.high_s",
        "found.best[0].time.time_s <= prediction.time.time_s",
        "max(why.parts.difference, key=why.parts.difference.get) == 'tensor-parallel communication'",
        "len(curve) == 3",
        "busy._repr_html_().startswith('<svg') and all(0 < b.mean_busy <= 1 for b in busy)",
    ],
}


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_each_notebook_promises_something():
    assert {path.stem for path in NOTEBOOKS} == set(PROMISED)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_keeps_its_promises(path, monkeypatch):
    monkeypatch.chdir(FOLDER)
    names: dict[str, object] = {}
    for cell in cells(path):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(path), "exec"), names)
    for promise in PROMISED[path.stem]:
        assert eval(promise, names), promise


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_a_notebook_runs_in_a_kernel_and_shows_small_tables(path):
    for module in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (pip install -e '.[docs]')")
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert all(len(json.dumps(output)) < 100_000 for output in shown)
