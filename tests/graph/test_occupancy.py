"""Which kernels hold back those of other streams, and until when."""

import numpy as np

from lumos.graph.one_rank import rank_graph
from lumos.simulation import simulate

#: 108 SMs; of blocks of 256 threads with 32 registers, an SM holds 8: 864 blocks are one wave.
SHAPE = {"block": [256, 1, 1], "registers per thread": 32}
WAVES_10 = {"grid": [8640, 1, 1], **SHAPE}
DEVICE = [
    {"id": 0, "numSms": 108, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936}
]


def held(graph):
    """The names of the kernels in the table that hold others back."""
    return [] if graph.occupancy is None else [graph.names[i] for i in graph.name[graph.occupancy.task[graph.occupancy.hold > 0]]]


def test_the_share_of_a_devices_processors(draw, trace):
    # 108 SMs; 256 threads of 32 registers: 8 blocks an SM by threads. 432 blocks fill half; 8,640 make 10 waves.
    properties = [
        {"id": 0, "numSms": 108, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936}
    ]
    shape = {"block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
    drawing = draw().launch((0, 5), (6, 100), 7, "half", grid=[432, 1, 1], **shape)
    drawing.launch((10, 5), (16, 100), 8, "waves", grid=[8640, 1, 1], **shape)
    drawing.header["deviceProperties"] = properties
    graph = rank_graph(trace(drawing))
    assert graph.occupancy is not None
    assert np.allclose(graph.occupancy.share, [0.5, 1.0])
    assert graph.occupancy.hold.tolist() == [100_000, 90_000]  # ten waves less the last


def test_a_hold_scales_with_the_kernel(draw, trace):
    """ "other" is launched at 10 and waits for the last wave of ten: at 6 + 90, and with the kernel half as long at 6 + 45."""
    drawing = draw().launch((0, 5), (6, 100), 7, "waves", **WAVES_10).launch((8, 2), (96, 10), 8, "other", grid=[432, 1, 1], **SHAPE)
    drawing.header["deviceProperties"] = DEVICE
    graph = rank_graph(trace(drawing))
    half = graph.duration.copy()
    half[graph.occupancy.task[0]] //= 2
    other = graph.occupancy.task[1]
    starts = [simulate(graph, d).start[other] for d in (None, half)]
    assert starts[0] - starts[1] == 45_000


def twice(draw, other):
    """A kernel of ten waves of 10 us, twice, and one on another stream that starts so many us after the second."""
    drawing = draw().launch((0, 5), (6, 100), 7, "uneven", **WAVES_10).launch((110, 5), (206, 100), 7, "uneven", **WAVES_10)
    drawing.launch((112, 5), (206 + other, 10), 8, "other", grid=[432, 1, 1], **SHAPE)
    drawing.header["deviceProperties"] = DEVICE
    return drawing


def test_a_kernel_that_let_another_begin_beside_it_holds_nothing_back_anywhere(draw, trace):
    # the last wave begins at 90; up to 60 a start refutes, and so it does for the first of the two kernels
    assert held(rank_graph(trace(twice(draw, other=40)))) == ["other"]
    assert held(rank_graph(trace(twice(draw, other=65)))) == ["uneven", "uneven", "other"]


def test_communication_kernels_neither_hold_back_nor_are_held(draw, trace):
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    drawing = draw().launch((0, 5), (6, 100), 7, "waves", **WAVES_10).launch((8, 2), (46, 10), 8, nccl, grid=[24, 1, 1], **SHAPE)
    drawing.header["deviceProperties"] = DEVICE
    assert held(rank_graph(trace(drawing))) == ["waves"]
