"""Commands with placeholders, and the table of their values."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lumos.changes.answer import PeakMemory
from lumos.errors import LumosError
from lumos.scripted.answer import Base
from lumos.scripted.templates import evaluate_scripts, filled, parse_values


def test_placeholders_are_filled_and_other_braces_stay():
    assert filled("train.py --mbs {mbs} --json '{\"a\": 1}' {other}", {"mbs": "8"}) == "train.py --mbs 8 --json '{\"a\": 1}' {other}"
    assert filled(["train.py", "--mbs={mbs}"], {"mbs": "8"}) == ["train.py", "--mbs=8"]


@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_answer_in_the_same_folder(monkeypatch, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed (extra `distributed`)")
    monkeypatch.chdir(tmp_path)
    base = Base.__new__(Base)

    def refusing(command):
        raise LumosError(f"{command.words[-1]}: in {Path.cwd()}")

    base.run = refusing
    cells = evaluate_scripts(lambda: base, f"{sys.executable} {{mbs}}", parse_values(["mbs=8,16"]), on_ray=True)
    assert [cell.refused for cell in cells] == [f"8: in {tmp_path}", f"16: in {tmp_path}"]


def test_every_combination_is_a_row_also_one_that_is_refused():
    base = Base.__new__(Base)

    def emulated(command):
        if command.words[-1] == "16":
            raise LumosError("rank 0: train.py:3: torch.OutOfMemoryError: CUDA out of memory")
        return command

    def answer(begun):
        memory = PeakMemory(peak_bytes=int(begun.taken().words[-1]), fits=True)
        return SimpleNamespace(outcome=SimpleNamespace(step_time_s=1.0, step_time_low_s=0.9, step_time_high_s=1.1, memory=memory))

    base.run, base.answer = emulated, answer
    cells = evaluate_scripts(lambda: base, f"{sys.executable} train.py {{how}} {{mbs}}", parse_values(["how=a,b", "mbs=8,16"]))
    assert [cell.values for cell in cells] == [{"how": how, "mbs": mbs} for how in "ab" for mbs in ("8", "16")]
    assert [(cell.step_time_s, cell.peak_bytes, cell.fits) for cell in cells] == 2 * [(1.0, 8, True), (None, None, False)]
    assert "OutOfMemoryError" in cells[1].refused
