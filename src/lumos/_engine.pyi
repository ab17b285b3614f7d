import numpy as np
from numpy.typing import NDArray

from lumos.trace.table import Int8, Int32, Int64

Stuck = tuple[list[int], list[int], list[int]]

class Tables:
    def __init__(
        self,
        *,
        duration: Int64,
        processor: Int32,
        kind: Int8,
        pred_offset: Int64,
        pred: Int32,
        pred_kind: Int8,
        rank_of: Int32,
        is_stream: Int8,
        device_of: Int32,
        devices: int,
        lag: Int64,
        release_task: Int32,
        release_time: Int64,
        rendezvous_offset: Int64,
        rendezvous_task: Int32,
        queue_depth: Int32,
        wait_task: Int32,
        wait_target: Int32,
        occupancy_task: Int32,
        occupancy_share: NDArray[np.float32],
        occupancy_hold: Int64,
        ignored: int,
    ) -> None: ...
    def check(self) -> str: ...

def simulate(tables: Tables, duration: Int64, start: Int64, end: Int64, /) -> Stuck: ...
def freeze(tables: Tables, /) -> tuple[Int32, Int32, Int64, Int32, Int8, Int64, Int32, Int32, Int32, int, Stuck]: ...
def sweep(
    tables: Tables,
    order: Int32,
    rank: Int32,
    pred_offset: Int64,
    pred: Int32,
    pred_kind: Int8,
    special_at: Int64,
    special_size: Int32,
    duration: Int64,
    start: Int64,
    end: Int64,
    /,
) -> None: ...
def sweep_many(
    tables: Tables,
    order: Int32,
    rank: Int32,
    pred_offset: Int64,
    pred: Int32,
    pred_kind: Int8,
    special_at: Int64,
    special_size: Int32,
    slot: Int32,
    pred_slot: Int32,
    slots: int,
    durations: Int64,
    makespan: Int64,
    ends: Int64,
    /,
) -> None: ...
def sweep_scaled(
    tables: Tables,
    order: Int32,
    rank: Int32,
    pred_offset: Int64,
    pred: Int32,
    pred_kind: Int8,
    special_at: Int64,
    special_size: Int32,
    slot: Int32,
    pred_slot: Int32,
    slots: int,
    base: Int64,
    group: NDArray[np.uint16],
    factors: NDArray[np.float64],
    mark: NDArray[np.uint8],
    spans: Int64,
    /,
) -> None: ...
