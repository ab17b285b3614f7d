"""The world outside stays as it was, also by what a script does before it imports torch."""

from __future__ import annotations

import sqlite3
import sys

import pytest
from tests.emulation.emulated_scripts import HEAD, STEPS

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.run import Launched, records

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

BEFORE = """
import os, pathlib, platform, shutil, sqlite3, subprocess, sys
os.remove("kept.txt")
shutil.rmtree("folder")
pathlib.Path("made").mkdir()
pathlib.Path("made.txt").write_text("new")
with sqlite3.connect("kept.db") as base:
    base.execute("insert into rows values (2)")
    assert base.execute("select count(*) from rows").fetchone() == (2,)
for command, more in ((["touch", "made.txt"], {}), ("touch made.txt", {"shell": True})):
    try:
        subprocess.run(command, **more)
        sys.exit(1)
    except FileNotFoundError as error:
        assert "starts no program but Python" in str(error)
assert os.system("touch made.txt") != 0
subprocess.run([sys.executable, "-c", "open('made.txt', 'w')"], check=True)
platform.processor()
"""


def test_files_databases_and_programs_are_cut_before_torch_is_imported(tmp_path, monkeypatch):
    for name in ("work", "temporary", "work/folder"):
        (tmp_path / name).mkdir()
    work = tmp_path / "work"
    (work / "kept.txt").touch()
    with sqlite3.connect(work / "kept.db") as base:
        base.execute("create table rows (number)")
        base.execute("insert into rows values (1)")
    (work / "train.py").write_text(BEFORE + HEAD + STEPS + "for _ in range(2): step()\n")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.chdir(work)
    (process,) = records(Launched([sys.executable, "train.py"], emulated_device("h100"), 1, 1, 1, tmp_path, 120.0))
    assert {each.name for each in work.iterdir()} == {"kept.txt", "kept.db", "folder", "train.py"}
    assert sqlite3.connect(work / "kept.db").execute("select count(*) from rows").fetchone() == (1,)
    notes = {each.message: each.where for each in process.notes}
    assert notes["programs that the script starts are not started (touch)"].endswith("train.py:12")
