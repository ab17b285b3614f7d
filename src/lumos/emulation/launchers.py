"""Programs that start the processes of a job, and how many ranks a command of theirs starts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Launcher(NamedTuple):
    """How a program that starts the processes of a job is told how many there are. names: of the program, and after `python -m`.
    factors: options whose numbers are multiplied, by their spellings, and what each is where it is not given. by_torch: it lets
    `torch.distributed.launcher` start them."""

    names: tuple[str, ...]
    factors: dict[tuple[str, ...], int]
    by_torch: bool = False


#: torch: docs.pytorch.org/docs/stable/elastic/run.html. accelerate: huggingface.co/docs/accelerate/package_reference/cli. deepspeed:
#: deepspeed.ai/getting-started. mpirun: docs.open-mpi.org. srun: slurm.schedmd.com/srun.html.
_LAUNCHERS = (
    Launcher(
        ("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        {("--nproc-per-node", "--nproc_per_node"): 1, ("--nnodes", "--nnode"): 1}, by_torch=True,
    ),
    Launcher(("accelerate", "accelerate.commands.launch"), {("--num_processes", "--num-processes"): 0}, by_torch=True),
    Launcher(("deepspeed", "deepspeed.launcher.runner"), {("--num_gpus",): 0, ("--num_nodes",): 1}),
    Launcher(("mpirun",), {("-np", "-n", "--np"): 0}), Launcher(("srun",), {("-n", "--ntasks"): 0}),
)  # fmt: skip


def launcher_in(command: Sequence[str]) -> tuple[Launcher | None, Sequence[str]]:
    """The launcher of a command and the words after it. It may stand behind what starts it (`env X=1 torchrun`, `python -u -m
    torch.distributed.run`), but not behind a script or another module; None without one."""
    for position, (before, word) in enumerate(pairwise(("", *command)), 1):
        launcher = next((candidate for candidate in _LAUNCHERS if word.rpartition("/")[2] in candidate.names), None)
        if launcher is not None:
            return launcher, command[position:]
        if before == "-m" or word.endswith(".py"):
            break
    return None, ()


def launched_ranks(command: Sequence[str]) -> int | None:
    """How many ranks the launcher in a command starts; None without one, and where it takes their number from the machine."""
    launcher, told = launcher_in(command)
    if launcher is None:
        return None
    ranks = 1
    for spellings, default in launcher.factors.items():
        value = _value(told, spellings)
        if value is not None and not value.isdigit():
            return None
        ranks *= default if value is None else int(value)
    return ranks or None


def _value(words: Sequence[str], spellings: Sequence[str]) -> str | None:
    """The last value of an option, as `--option value` or `--option=value`; None where it is not given."""
    pairs = ((word.partition("="), following) for word, following in pairwise((*words, "")))
    values = [value if equals else following for (name, equals, value), following in pairs if name in spellings]
    return values[-1] if values else None
