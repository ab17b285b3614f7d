"""Commands as users type them, and the one that a recording names: shown, and run only where it is asked for."""

import sys
from types import SimpleNamespace

import pytest

from lumos.errors import LumosError, UsageError
from lumos.scripted.command import before_missing, parse, recorded_words

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("train.py --tp 2", None),
        ("-u -m torch.distributed.run --nproc_per_node=4 --nnodes=2 train.py", 8),
        ("-W ignore /usr/bin/torchrun --nproc-per-node=4 train.py", 4),
        ("-m torch.distributed.run --nproc-per-node gpu train.py", None),
        ("-m accelerate.commands.launch --num_processes 16 train.py", 16),
        ("train.py torchrun --nproc-per-node 8", None),
    ],
)
def test_a_launcher_says_how_many_ranks_it_starts(text, ranks):
    assert parse(f"{PYTHON} {text}", "--before").ranks == ranks


def test_variables_before_the_program_are_set_for_it():
    found = parse(f"OMP_NUM_THREADS=1 NAME='a b' {PYTHON} train.py", "--after")
    assert found.words == ("env", "OMP_NUM_THREADS=1", "NAME=a b", PYTHON, "train.py")
    assert parse([PYTHON, "train.py", "X=1"], "--after").words == (PYTHON, "train.py", "X=1")


@pytest.mark.parametrize(("text", "why"), [("", "no program"), ("A=1", "no program"), ("'", "quotation"), ("no-such-program x", "no such")])
def test_what_is_no_command_is_refused_with_its_option(text, why):
    with pytest.raises(UsageError, match=f"--after.*{why}"):
        parse(text, "--after")


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
