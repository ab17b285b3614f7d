"""Commands as users type them."""

import sys

import pytest

from lumos.errors import UsageError
from lumos.scripted.command import parse

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("train.py --tp 2", None),
        ("-m torch.distributed.run --nproc-per-node 8 train.py", 8),
        ("-m torch.distributed.run --nproc_per_node=4 --nnodes=2 train.py", 8),
        ("-m torch.distributed.run --nproc-per-node gpu train.py", None),
        ("-m accelerate.commands.launch train.py", None),
        ("-m accelerate.commands.launch --num_processes 16 train.py", 16),
        ("train.py --nproc-per-node 8", None),
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
