"""Commands with placeholders, and the table of their values."""

import os
import signal
import sys
from types import SimpleNamespace

from lumos.changes.answer import PeakMemory
from lumos.errors import LumosError
from lumos.scripted.templates import evaluate_scripts, filled, parse_values


def test_placeholders_are_filled_and_other_braces_stay():
    assert filled("train.py --mbs {mbs} --json '{\"a\": 1}' {other}", {"mbs": "8"}) == "train.py --mbs 8 --json '{\"a\": 1}' {other}"
    assert filled(["train.py", "--mbs={mbs}"], {"mbs": "8"}) == ["train.py", "--mbs=8"]


def test_every_combination_is_a_row_also_one_that_is_refused():
    class Asked:
        def answer(self, command):
            if command.words[-2:] == ("b", "8"):
                os.kill(os.getpid(), signal.SIGKILL)
            if command.words[-1] == "16":
                raise LumosError("rank 0: train.py:3: torch.OutOfMemoryError: CUDA out of memory")
            memory = PeakMemory(peak_bytes=int(command.words[-1]), fits=True)
            return SimpleNamespace(outcome=SimpleNamespace(step_time_s=1.0, step_time_low_s=0.9, step_time_high_s=1.1, memory=memory))

    cells = evaluate_scripts(Asked, f"{sys.executable} train.py {{how}} {{mbs}}", parse_values(["how=a,b", "mbs=8,16"]))
    assert [cell.values for cell in cells] == [{"how": how, "mbs": mbs} for how in "ab" for mbs in ("8", "16")]
    assert [(cell.step_time_s, cell.peak_bytes, cell.fits) for cell in cells[:2]] == [(1.0, 8, True), (None, None, False)]
    assert "OutOfMemoryError" in cells[1].refused and "ended before it had answered" in cells[2].refused
