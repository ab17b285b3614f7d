"""Processes of an emulated job end with the command that started them, however that ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.run import Launched, records
from lumos.errors import LumosError

#: Each rank starts a process of its own, and none of them ever ends. That one writes for real, the numbers of both, into a file.
ENDLESS = """
import os, subprocess, sys
child = "import os, sys, time; file = sys.argv[1]; open(file, 'w').write(f'{os.getppid()} {os.getpid()}'); os.rename(file, file + '.pids')"
child += "\\nwhile True: time.sleep(0.05)"
subprocess.Popen([sys.executable, "-S", "-c", child, f"{sys.argv[1]}/{os.environ['RANK']}"])
while True:
    __import__("time").sleep(0.05)
"""

#: Programs that emulate a command of two ranks: of the words that they are given, the first is the folder of its traces.
COMMAND = "import sys, lumos.cli; sys.argv[1:2] = [*'collect --emulate h100 --ranks 2 -o'.split(), sys.argv[1], '--']; lumos.cli.main()"
FUNCTION = "import sys, lumos; lumos.emulate(sys.argv[2:], sys.argv[1], 'h100', ranks=2)"


def comes(what) -> bool:
    """Whether something comes to be so, in a minute."""
    return any(what() or time.sleep(0.1) for _ in range(600))


def begun(folder: Path, ranks: int) -> list[int]:
    """The numbers of all processes, once each rank has written its own."""
    assert comes(lambda: len(list(folder.glob("*.pids"))) == ranks), "the ranks did not start"
    return [int(each) for file in folder.glob("*.pids") for each in file.read_text().split()]


def is_running(number: int) -> bool:
    state = Path(f"/proc/{number}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="which processes run is read from /proc")
@pytest.mark.parametrize("told", (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL))
@pytest.mark.parametrize("program", (COMMAND, FUNCTION))
def test_a_signal_ends_all_processes_at_once_and_leaves_nothing(tmp_path, program, told):
    script, output = tmp_path / "train.py", tmp_path / "out"
    script.write_text(ENDLESS)
    command = subprocess.Popen([sys.executable, "-c", program, str(output), sys.executable, str(script), str(tmp_path)])
    numbers = begun(tmp_path, 2)
    assert len(numbers) == 4 and all(map(is_running, numbers))
    command.send_signal(told)
    assert command.wait(5.0) == (-told if program is FUNCTION or told is signal.SIGKILL else 128 + told)
    assert comes(lambda: not any(map(is_running, numbers))) and not output.exists()


def test_a_rank_that_fails_ends_the_one_beside_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, time\ntime.sleep(0 if os.environ['RANK'] == '0' else 60)\n")
    begin = time.monotonic()
    with pytest.raises(LumosError, match="before it had imported torch"):
        records(Launched([sys.executable, str(script)], emulated_device("h100"), 2, 1, 1, tmp_path, 60.0))
    assert time.monotonic() - begin < 30
