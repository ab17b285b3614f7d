"""The command that a recording names: shown, and run only where it is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import lumos
from lumos.errors import LumosError, UsageError
from lumos.scripted import facade
from lumos.scripted.command import before_missing, recorded_words


def job(**made):
    return SimpleNamespace(traces=(SimpleNamespace(metadata={"lumos_collect": made} if made else {}),))


MADE = job(command=["python", "train.py", "--name", "a b"], variables={"OMP_NUM_THREADS": "2"})


def test_without_a_command_the_stored_one_is_printed_ready_to_paste():
    message = str(before_missing(MADE))
    assert "--before 'OMP_NUM_THREADS=2 python train.py --name '\"'\"'a b'\"'\"''" in message and "--before recorded" in message
    assert "does not say" in str(before_missing(job()))


def test_the_stored_command_is_run_only_by_its_name_and_only_whole():
    assert recorded_words(MADE) == "OMP_NUM_THREADS=2 python train.py --name 'a b'"
    with pytest.raises(LumosError, match="does not say"):
        recorded_words(job())
    with pytest.raises(LumosError, match="secrets of the command were not stored"):
        recorded_words(job(command=["python", "train.py", "--token", "***"]))


def test_no_process_starts_where_before_is_missing(monkeypatch):
    monkeypatch.setattr(facade, "Base", None)
    with pytest.raises(LumosError, match="--after needs the command"):
        lumos.whatif("examples/gpt-2rank-cpu", after="python3 train.py")
    with pytest.raises(UsageError, match="give the changed one with --after"):
        lumos.whatif("examples/gpt-2rank-cpu", before="python3 train.py")
    with pytest.raises(UsageError, match="--tp: a changed script is the whole change"):
        lumos.whatif("examples/gpt-2rank-cpu", before="python3 train.py", after="python3 train.py", tp=2)
    with pytest.raises(UsageError, match="ranks says how many"):
        lumos.whatif("examples/gpt-2rank-cpu", ranks=2)
