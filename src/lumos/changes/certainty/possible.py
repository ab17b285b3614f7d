"""Answers that cannot be: work that takes longer and a step that takes less, or k times the microbatches and more than k times the step.

In a fixed order of the work, no step becomes shorter when work takes longer. Where the order follows from the times (several threads
launch to one stream, kernels share a device), it can: another piece of work then comes first. Such an answer names the order that
changed. Everything else that cannot be is an error of the simulation or of the way in which the job was changed, and no answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lumos.errors import GraphError, LumosError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


#: The most tasks of a changed job: 25 million take some 8 GB and one to two minutes.
MOST_CHANGED = 25_000_000
#: Memory for each task of a changed job, bytes, with the loop in which it is simulated (measured on jobs of 6 and 24 million tasks).
BYTES_A_TASK = 340


@contextmanager
def schedulable(changes: str) -> Iterator[None]:
    """Raise LumosError where a job that was put together anew has no schedule. changes: what was changed.

    The ranks of such a recording were cut in different ways, so that each repeats, leaves out or moves other collectives than its peers.
    """
    try:
        yield
    except GraphError as error:
        lines = str(error).splitlines()
        why = "; ".join(line.strip() for line in (lines[0], *(line for line in lines[1:] if "different orders" in line)))
        raise LumosError(
            f"{changes}: the changed job could not run ({why}): the blocks of this recording, cut on each rank, do not fit together in"
            " another order; lumos inspect --blocks shows them"
        ) from error


def check_size(tasks: int, wanted: Mapping[str, int], measured: Mapping[str, int]) -> None:
    """Raise LumosError where the changed job would have more than MOST_CHANGED tasks, with what it would take.

    tasks: of the measured job. wanted: the settings that are whole numbers. measured: the counts of the measured job that multiply its
    tasks, by key.
    """
    changed = tasks
    for key, count in measured.items():
        changed = -(-changed * wanted.get(key, count) // count) if count else changed
    if changed <= MOST_CHANGED:
        return
    words = ", ".join(f"{key}={wanted[key]}" for key in measured if key in wanted)
    raise LumosError(
        f"--set {words}: the changed job would have about {changed:,} tasks instead of {tasks:,}, and take some"
        f" {changed * BYTES_A_TASK / 1e9:,.0f} GB of memory; at most {MOST_CHANGED:,} tasks are computed. Ask for two smaller values: the"
        " step grows in proportion to what is repeated"
    )
