"""Programs that start the processes of a job, and how many ranks a command of theirs starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Launcher(NamedTuple):
    """How a program that starts the processes of a job is told how many there are. module: its name after `python -m`, "" without.
    factors: options whose numbers are multiplied, each by any of its spellings. default: of each where it is not given."""

    program: str
    module: str
    factors: tuple[tuple[str, ...], ...]
    default: tuple[int, ...]


#: torch: docs.pytorch.org/docs/stable/elastic/run.html. accelerate: huggingface.co/docs/accelerate/package_reference/cli. deepspeed:
#: deepspeed.ai/getting-started. mpirun: docs.open-mpi.org. srun: slurm.schedmd.com/srun.html.
_NODES = ("--nnodes", "--nnode")
_OF_NODE = ("--nproc-per-node", "--nproc_per_node")
LAUNCHERS = (
    Launcher("torchrun", "torch.distributed.run", (_OF_NODE, _NODES), (1, 1)),
    Launcher("", "torch.distributed.launch", (_OF_NODE, _NODES), (1, 1)),
    Launcher("accelerate", "accelerate.commands.launch", (("--num_processes", "--num-processes"),), (0,)),
    Launcher("deepspeed", "deepspeed.launcher.runner", (("--num_gpus",), ("--num_nodes",)), (0, 1)),
    Launcher("mpirun", "", (("-np", "-n", "--np"),), (0,)),
    Launcher("srun", "", (("-n", "--ntasks"),), (0,)),
)


def launched_ranks(program: Sequence[str]) -> int | None:
    """How many ranks the launcher in a command starts; None without one, and where it takes their number from the machine."""
    name = program[0].rpartition("/")[2]
    module = program[2] if len(program) > 2 and program[1] == "-m" else ""
    launcher = next((each for each in LAUNCHERS if each.program == name or (module and each.module == module)), None)
    if launcher is None:
        return None
    found = 1
    for spellings, default in zip(launcher.factors, launcher.default, strict=True):
        value = _value(program, spellings)
        if value is not None and not value.isdigit():
            return None
        found *= default if value is None else int(value)
    return found or None


def _value(words: Sequence[str], spellings: Sequence[str]) -> str | None:
    """The last value of an option, as `--option value` or `--option=value`; None where it is not given."""
    found = None
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name in spellings:
            found = value if equals else following
    return found
