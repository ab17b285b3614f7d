"""What a runtime call does, by its name in the CUDA runtime, the CUDA driver or HIP."""

import re
from enum import IntEnum

import numpy as np

from lumos.trace.once import once_a_trace
from lumos.trace.table import Category, Int8, Trace


class Call(IntEnum):
    """The kinds of calls that the dependency rules and the evidence need. Any other call is CPU work, or a launch where device work
    has its id."""

    OTHER = 0
    DEVICE_SYNC = 1
    STREAM_SYNC = 2
    EVENT_SYNC = 3
    STREAM_WAIT = 4
    EVENT_RECORD = 5
    QUERY = 6
    BLOCKING_COPY = 7  # copies that return only when they have ended, whatever the memory
    LAUNCH = 8  # launches one kernel
    GRAPH_LAUNCH = 9  # launches all kernels of a graph
    MAY_WAIT = 10  # allocates, registers or frees memory, for which drivers may wait for all device work


_PATTERNS = (
    (Call.DEVICE_SYNC, re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize|cuda_?ThreadSynchronize")),
    (Call.STREAM_SYNC, re.compile(r"(cuda|hip|cu)StreamSynchronize(_ptsz)?")),
    (Call.EVENT_SYNC, re.compile(r"(cuda|hip|cu)EventSynchronize")),
    (Call.STREAM_WAIT, re.compile(r"(cuda|hip|cu)StreamWaitEvent(_ptsz)?")),
    (Call.EVENT_RECORD, re.compile(r"(cuda|hip|cu)EventRecord(WithFlags)?(_ptsz)?")),
    (Call.QUERY, re.compile(r"(cuda|hip|cu)(Event|Stream)Query(_ptsz)?")),
    (Call.BLOCKING_COPY, re.compile(r"(cuda|hip)Memcpy(2D|3D)?|hipMemcpy(WithStream|DtoH|HtoD|DtoD)|cuMemcpy(DtoH|HtoD|DtoD)(_v2)?")),
    (Call.LAUNCH, re.compile(r"(cuda|hip|cu)(Ext)?(Module)?Launch(Cooperative)?Kernel(ExC|Ex)?(_ptsz|_spt)?")),
    (Call.GRAPH_LAUNCH, re.compile(r"(cuda|hip|cu)GraphLaunch(_ptsz)?")),
    (Call.MAY_WAIT, re.compile(r"(cuda|hip)(Free|Malloc)(Host|Array|Pitch|Managed)?|(cuda|hip)Host(Alloc|Malloc|Free|(Unr|R)egister)")),
    (Call.MAY_WAIT, re.compile(r"hipExtMallocWithFlags|cuMem(Alloc|Free)(Host)?(_v2)?|cuMemHost(Alloc|(Unr|R)egister(_v2)?)")),
)


@once_a_trace
def classify(trace: Trace) -> Int8:
    """The `Call` of every row; OTHER for rows that are not runtime calls."""
    of_name = np.zeros(max(1, len(trace.strings)), np.uint8)
    runtime = trace.category == Category.RUNTIME
    for name in trace.names_of(runtime):
        text = trace.strings[name]
        of_name[name] = next((call for call, pattern in _PATTERNS if pattern.fullmatch(text)), Call.OTHER)
    return np.where(runtime, of_name[trace.name], 0).astype(np.uint8)
