from lumos.trace.table import Int8, Int32, Int64

def causes(
    order: Int32,
    rank: Int32,
    pred_offset: Int64,
    pred: Int32,
    pred_kind: Int8,
    lag: Int64,
    end: Int64,
    cause: Int32,
    kind: Int8,
    ready: Int64,
    /,
) -> None: ...
def latest_ends(
    sequence: Int32,
    order: Int32,
    rank: Int32,
    pred_offset: Int64,
    pred: Int32,
    pred_kind: Int8,
    lag: Int64,
    set: Int32,
    holder: Int32,
    early: Int64,
    start: Int64,
    began: Int64,
    end: Int64,
    late: Int64,
    /,
) -> None: ...
