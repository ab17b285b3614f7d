from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lumos.trace.table import Int64

ENUMS: Mapping[str, str]
#: The first column of each part of a plan's row in `Passes.time`, and how many there are.
COLUMNS: Mapping[str, int]
WIDTH: int

def actions(schedule: int, stage: int, stages: int, microbatches: int, chunks: int) -> list[tuple[int, int, int]]:
    """What a stage runs, in order: the fields of `plan.schedules.Action`."""

def worst(schedule: int, stages: int, chunks: int, microbatches: int, dense: Int64, mixture: Int64) -> dict[int, list[list[int]]]:
    """By stage, in ascending order, what it holds at its worst moments, for the stages that no other one covers. dense, mixture:
    int64[stages, chunks held], layers. A moment is four numbers of layers: dense ones of microbatches that wait for their backward
    pass, those of which the weight gradients are left, then mixture layers likewise."""

class Passes:
    """The passes of all stages of a structure, and the transfers between them, each after what it waits for. holds: a stage waits
    for its sends to be taken. beside: transfers run beside compute."""

    def __init__(self, schedule: int, stages: int, chunks: int, microbatches: int, holds: bool, beside: bool) -> None: ...
    def __len__(self) -> int: ...
    def time(self, table: NDArray[np.float64], rows: Int64, dense: Int64, mixture: Int64, out: NDArray[np.float64]) -> None:
        """Fill out[rows], ns, with the steps of the plans in these rows of table, float64[plans, WIDTH]. ValueError where the columns or
        layers (as in `worst`) do not fit."""
