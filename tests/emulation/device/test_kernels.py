"""Which kernels an operator launches, and how much each moves or multiplies, worked out by hand."""

import msgspec
import pytest

from lumos.blocks.work import Attention, Gemm, Traffic
from lumos.cost.cluster import load_cluster
from lumos.cost.memory_bound_model import NORMALISATION, POINTWISE, REDUCTION, STRIDED
from lumos.emulation.device.kernels import HOST_BYTES_PER_S, Kernels, host_copy_ns
from lumos.emulation.device.launch import DeviceEngine
from lumos.emulation.record import Operator, Tensor
from lumos.vocabulary import AttentionKernel, Direction, DType

H100, MI300X = (load_cluster(name).accelerator for name in ("h100", "mi300x"))
_storage = iter(range(1, 10**6))


def tensor(*shape, dtype="bfloat16", stride=None, storage=None, device="cuda"):
    """A tensor, contiguous unless its strides are given, in memory of its own unless that is given."""
    if stride is None:
        stride, step = [], 1
        for size in reversed(shape):
            stride.insert(0, step)
            step *= size
    return Tensor(tuple(shape), dtype, tuple(stride), next(_storage) if storage is None else storage, device)


def launched(name, *inputs, outputs=(), kernels=None):
    operator = Operator(name=name, thread=0, begin=0, end=1, inputs=list(inputs), outputs=list(outputs), leaf=True)
    return (kernels or Kernels(H100))(operator)


def works(*arguments, **more):
    return [launch.work for launch in launched(*arguments, **more)]


def single(*shape):
    return tensor(*shape, dtype="float32")


A, X, WIDE = tensor(4, 100), tensor(16, 64), single(1000)
HEADS = tensor(2, 8, 3, 64, stride=(8 * 576, 576, 192, 1))
WINDOWS = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
IMAGE, FILTERS, GRADIENT = tensor(2, 8, 10, 10, stride=(800, 1, 80, 8)), tensor(16, 8, 3, 3), tensor(2, 16, 8, 8)
#: Operators with what they are given and give, and their work.
WORKED_OUT = {
    "a product": ("mm", [tensor(64, 256), tensor(256, 128)], [], [Gemm(64, 128, 256, DType.BF16, cast=False)]),
    "a batch": ("bmm", [tensor(8, 64, 256), tensor(8, 256, 128)], [], [Gemm(64, 128, 256, DType.BF16, 8, cast=False)]),
    "a layer": ("linear", [tensor(2, 32, 256), tensor(128, 256)], [], [Gemm(64, 128, 256, DType.BF16, cast=False)]),
    "nothing": ("mm", [tensor(0, 4), tensor(4, 4)], [], []),
    "both parts of complex numbers": (
        "bmm", [tensor(8, 64, 256, dtype="complex64"), tensor(8, 256, 128, dtype="complex64")], [],
        [Gemm(64, 256, 512, DType.FP32, 8, 4, cast=False)],
    ),
    "both gradients": (
        "convolution_backward", [GRADIENT, IMAGE, FILTERS, [16], *WINDOWS, [True, True, False]], [],
        [Gemm(200, 8, round(16 * 9 * 128 / 200), DType.BF16, 1, 2, cast=False, taps=9),
         Gemm(72, 16, 128, DType.BF16, 1, 2, cast=False, taps=9)],
    ),
    # 3 channels of 4 bytes are no multiple of 16 bytes, which matrix units ask for: they stay fp32, and nothing is permuted.
    "three channels": (
        "convolution", [single(2, 3, 10, 10), single(64, 3, 3, 3), None, *WINDOWS], [single(2, 64, 8, 8)],
        [Gemm(128, 64, 27, DType.FP32, 1, 4, cast=False, taps=9)],
    ),
    "rows of four": ("native_layer_norm", [tensor(8, 768), [768], None, None, 1e-5], [], [Traffic(8 * 768 * 4, 1, NORMALISATION)]),
    "rows of no multiple of four": (
        "native_layer_norm", [tensor(8, 765), [765], None, None, 1e-5], [],
        [Traffic(8 * 765 * 2, 1, REDUCTION), Traffic(8 * 765 * 4, 1, POINTWISE)],
    ),
    "alike": ("add", [A, A, 1], [tensor(4, 100)], [Traffic(1600 + 800, 1, POINTWISE)]),
    "in place": ("add_", [A, tensor(4, 100), 1], [A], [Traffic(2400, 1, POINTWISE)]),
    # Three operands in two dimensions: 10 + 3 * 5 instructions, 2 * (8 + 3 * 2) for the dimensions, 4 for the product.
    "broadcast": ("mul", [A, tensor(1, 100)], [tensor(4, 100)], [Traffic(1800, 1, POINTWISE, 400 * 57, 400)]),
    # What does not lie beside each other costs more memory, too.
    "permuted": ("mul", [A, tensor(4, 100, stride=(1, 4))], [tensor(4, 100)], [Traffic(2400, 1, STRIDED, 400 * 57, 400)]),
    "columns all the same": ("neg", [tensor(4, 100, stride=(1, 4))], [tensor(4, 100, stride=(1, 4))], [Traffic(1600)]),
    # Heads of 64 that were cut out of rows of 192 are two dimensions, also where a recording does not have the result.
    "cut out": ("neg", [HEADS], [], [Traffic(4 * 3072, 1, POINTWISE, 3072 * (10 + 2 * 5 + 2 * (8 + 2 * 2) + 4), 3072)]),
    "a function": ("gelu", [tensor(1000), "none"], [tensor(1000)], [Traffic(4000, 1, POINTWISE, 1000 * (4 + 32))]),
    "another type": ("copy_", [WIDE, tensor(1000)], [], [Traffic(6000, 1, POINTWISE, 1000 * 44, 1000)]),
    "two types": ("add", [tensor(1000), WIDE, 1], [WIDE], [Traffic(10_000, 1, POINTWISE, 1000 * (3 * 22 + 4), 1000)]),
    "sums": ("sum", [X, [1], False], [single(16)], [Traffic(2048 + 64, 1, REDUCTION)]),
    "softmax": ("_softmax", [X, -1, False], [tensor(16, 64)], [Traffic(4096, 1, NORMALISATION)]),
    "rows of a table": (
        "embedding", [tensor(50_000, 64), tensor(16, dtype="int64")], [tensor(16, 64)], [Traffic(2048 + 128 + 2048, 1, STRIDED)]
    ),
    "joined into what is given": (
        "chunk_cat", [[tensor(4, 8), tensor(8)], 0, 8, single(40)], [None], [Traffic(2 * 40 + 4 * 40, 1, POINTWISE)]
    ),
    # Gradients are read, the rest is read and written.
    "a fused optimizer": (
        "_fused_adamw_", [*([single(1000)] for _ in range(4)), [], [single()]], [], [Traffic(4 * 4000 + 3 * 4000, 1, POINTWISE)]
    ),
    "lists of two types": ("_foreach_mul_", [[single(10), tensor(10)], 0.9], [], [Traffic(80), Traffic(40)]),
}  # fmt: skip


@pytest.mark.parametrize("case", WORKED_OUT)
def test_operators_work_as_much_as_was_worked_out(case):
    name, inputs, outputs, work = WORKED_OUT[case]
    assert works(f"{'fsdp' if name == 'chunk_cat' else 'aten'}::{name}", *inputs, outputs=outputs) == work


@pytest.mark.parametrize(
    ("a", "b", "narrower"),
    [
        (tensor(64, 256), tensor(256, 128), 1),
        (tensor(64, 256), tensor(256, 100), 2),  # rows of 200 bytes: of the second factor, and of the result
        (tensor(64, 256), tensor(256, 101), 8),  # rows of 202 bytes
        (tensor(64, 100, stride=(1, 64)), tensor(100, 128), 1),  # k is odd, but no row begins at it
        (tensor(1, 255), tensor(255, 128), 1),  # one row is no multiplication of matrices
        (Tensor((64, 100), "float16", (), -1, "cuda"), tensor(100, 128, dtype="float16"), 2),  # a recording without strides
    ],
)
def test_matrices_whose_rows_begin_anywhere_are_multiplied_by_older_kernels_with_narrower_loads(a, b, narrower):
    (work,) = works("aten::mm", a, b)
    assert (work.older, work.narrower) == (narrower > 1, narrower)


def test_a_convolution_multiplies_its_taps_and_permutes_channels_first():
    # 2 images of 32 channels, 10 x 10, with 64 filters of 3 x 3 and no padding: 2 * 8 * 8 positions, 32 * 9 products each.
    image, weight, out = tensor(2, 32, 10, 10), tensor(64, 32, 3, 3), tensor(2, 64, 8, 8)
    found = works("aten::cudnn_convolution", image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, True, outputs=[out])
    gemm = Gemm(128, 64, 288, DType.BF16, 1, 2, cast=False, taps=9)
    assert found == [Traffic(2 * 12_800), Traffic(2 * 36_864), gemm, Traffic(2 * 16_384)]
    # A recording has no results: their size follows from the padding, stride and dilation.
    assert found == works("aten::cudnn_convolution", image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, True)


@pytest.mark.parametrize(("device", "in_turn"), [(H100, 62 * 132), (MI300X, 123 * 304)])
def test_batch_normalisation_with_channels_first_waits_for_the_elements_of_each_channel(device, in_turn):
    """10 x 56 x 56 elements of each channel by one block of 512 threads, of 256 on AMD's accelerators, which hold 2,048 for each core."""
    image, weight = tensor(10, 64, 56, 56), tensor(64)
    size, kernels = 10 * 64 * 56 * 56 * 2, Kernels(device)
    rest = (weight, weight, weight, weight)
    forward = works("aten::native_batch_norm", image, *rest, True, 0.1, 1e-5, kernels=kernels)
    assert forward == [Traffic(size, 1, REDUCTION, 0, in_turn * 2048), Traffic(2 * size, 1, POINTWISE)]
    assert works("aten::native_batch_norm", image, *rest, False, 0.1, 1e-5, kernels=kernels) == forward[1:]
    (backward,) = works("aten::native_batch_norm_backward", image, image, weight, *rest, True, 1e-5, kernels=kernels)
    assert backward == Traffic(5 * size, 1, NORMALISATION, 0, 2 * in_turn * 2048)
    last = tensor(10, 64, 56, 56, stride=(64 * 56 * 56, 1, 56 * 64, 64))
    assert [work.in_turn for work in works("aten::native_batch_norm", last, *rest, True, 0.1, 1e-5, kernels=kernels)] == [0]
    is_by_channel = works("aten::cudnn_batch_norm", image, *rest, True, 0.1, 1e-5, kernels=kernels) == forward
    assert is_by_channel is (device is MI300X)


def test_a_transposed_convolution_is_the_data_gradient_of_the_one_from_its_result():
    # 2 images of 6 channels, 5 x 5, to 8 channels, 10 x 10, by 4 x 4 taps in two groups and every second place. A tap falls on an image's
    # place at every fourth place of the result: 2 * 100 places of 3 * 16 / 4 products each for 4 channels of a group.
    image, weight, out = tensor(2, 6, 5, 5, stride=(150, 1, 30, 6)), tensor(6, 4, 4, 4), tensor(2, 8, 10, 10, stride=(800, 1, 80, 8))
    forward = works(
        "aten::cudnn_convolution_transpose", image, weight, [1, 1], [0, 0], [2, 2], [1, 1], 2, False, False, True, outputs=[out]
    )
    assert forward == [Gemm(200, 4, 12, DType.BF16, 2, 2, cast=False, taps=16)]
    plain = works("aten::convolution", image, weight, None, [2, 2], [1, 1], [1, 1], True, [0, 0], 2, outputs=[out])
    assert plain == forward
    lists = ([8], [2, 2], [1, 1], [1, 1], True, [0, 0], 2)
    backward = works("aten::convolution_backward", out, image, weight, *lists, [True, True, False])
    # The gradient of the image: 50 places, 4 channels of 16 taps each, for 3 channels of a group; of the weight: all of those at 50 places.
    assert backward == [
        Gemm(50, 3, 64, DType.BF16, 2, 2, cast=False, taps=16),
        Gemm(64, 3, 50, DType.BF16, 2, 2, cast=False, taps=16),
    ]


def test_a_recurrent_network_goes_from_moment_to_moment():
    # An LSTM of 8 inputs and a state of 4, whose gates are 4 x 4 wide, on sequences of 3 and of 2 moments.
    packed, state = tensor(5, 8), tensor(1, 2, 4)
    settings = (2, 4, 0, 1, False, 0.0, True, False, [2, 2, 1], None)
    found = works("aten::_cudnn_rnn", packed, [tensor(16, 8), tensor(16, 4)], 4, tensor(0), state, state, *settings, outputs=[tensor(5, 4)])
    inputs, *moments = found
    assert inputs == Gemm(5, 16, 8, DType.BF16, cast=False)
    # Of an element, four gates in both products and as they are kept, and the state and the cell before and after, of 2 bytes each.
    assert moments[:2] == [Gemm(2, 16, 4, DType.BF16, cast=False), Traffic(2 * 4 * 16 * 2)]
    assert [each.m for each in moments[::2]] == [2, 2, 1] and len(moments) == 6
    # Without packing, two layers, both directions: the second layer reads the states of both.
    even = (2, 4, 0, 2, True, 0.0, True, True, [], None)
    deeper = works("aten::_cudnn_rnn", tensor(2, 3, 8), [tensor(16, 8)], 4, tensor(0), state, state, *even, outputs=[tensor(2, 3, 8)])
    assert deeper[0] == deeper[14] == Gemm(6, 16, 8, DType.BF16, cast=False) and len(deeper) == 4 * 7
    gradients = (state, None, None, *settings)
    backward = works("aten::_cudnn_rnn_backward", packed, [tensor(16, 8)], 4, tensor(0), state, state, packed, *gradients, outputs=[packed])
    assert backward[:2] == [Traffic(1 * 4 * 16 * 2), Gemm(1, 4, 16, DType.BF16, cast=False)], "the last moment comes first"
    assert backward[-3:] == [
        Gemm(5, 8, 16, DType.BF16, cast=False),
        Gemm(16, 8, 5, DType.BF16, cast=False),
        Gemm(16, 4, 5, DType.BF16, cast=False),
    ]


def test_attention_is_the_kernel_that_the_operator_names():
    q, k = tensor(2, 32, 1024, 128), tensor(2, 8, 1024, 128)
    (flash,) = works("aten::_scaled_dot_product_flash_attention", q, k, k, 0.0, True, False)
    assert flash == Attention(2, 1024, 1024, 32, 8, 128, 128, True, Direction.FORWARD, AttentionKernel.FA2, DType.BF16)
    (cudnn,) = works("aten::_scaled_dot_product_cudnn_attention", q, k, k, None, True, 0.0, False, False)
    assert (cudnn.kernel, cudnn.causal) == (AttentionKernel.CUDNN, False)
    lengths_first = tensor(2, 1024, 32, 128)
    (inner,) = works(
        "aten::_flash_attention_forward", lengths_first, tensor(2, 1024, 8, 128), tensor(2, 1024, 8, 128), None, None, 1024, 1024, 0.0,
        True, False,
    )  # fmt: skip
    assert inner == flash
    back = works(
        "aten::_scaled_dot_product_flash_attention_backward", q, q, k, k, q, tensor(2, 32, 1024), None, None, 1024, 1024, 0.0, True
    )
    assert back == [flash._replace(direction=Direction.BACKWARD)]
    masked = works(
        "aten::_efficient_attention_forward", lengths_first, lengths_first, lengths_first, None, None, None, 1024, 1024, 0.1, 1, True
    )
    assert (masked[0].causal, masked[0].kernel) == (True, AttentionKernel.FA1)


def test_copies_between_host_and_device_take_the_hosts_bus_and_others_a_kernel():
    a, host = tensor(1000), tensor(1000, device="cpu")
    (down,) = launched("aten::copy_", host, a, outputs=[host])
    assert (down.engine, down.name) == (DeviceEngine.COPY, "Memcpy DtoH (Device -> Pageable)")
    (up,) = launched("aten::copy_", a, msgspec.structs.replace(host, pinned=True), outputs=[a])
    assert up.work.ns == host_copy_ns(2000) == 1500 + round(2000 / HOST_BYTES_PER_S * 1e9)
    (block,) = launched("aten::copy_", a, tensor(1000), outputs=[a])
    assert (block.engine, block.work) == (DeviceEngine.COPY, Traffic(4000, 1, POINTWISE))
    # Two operands in two dimensions: 10 + 2 * 5 + 2 * (8 + 2 * 2) instructions.
    assert works("aten::copy_", tensor(4, 8), tensor(4, 8, stride=(1, 4))) == [Traffic(128, 1, STRIDED, 32 * 44, 32)]
    assert works("aten::copy_", a, tensor(1000, dtype="float32")) == [Traffic(6000, 1, POINTWISE)]
    assert works("aten::_to_copy", a, outputs=[a]) == []


def test_views_host_tensors_and_operators_that_only_call_others_launch_nothing():
    kernels = Kernels(H100)
    a = tensor(4, 8)
    view = tensor(8, 4, storage=a.storage)
    assert launched("aten::view", a, [8, 4], outputs=[view], kernels=kernels) == []
    assert launched("mine::window", a, outputs=[view], kernels=kernels) == []
    host = tensor(4, device="cpu")
    assert launched("aten::add", host, host, outputs=[host], kernels=kernels) == []
    outer = Operator(name="aten::matmul", thread=0, begin=0, end=1, inputs=[a, view], leaf=False)
    assert kernels(outer) == [] and not kernels.unknown
    assert launched("c10d::allreduce_", a, outputs=[tensor(4, 8)], kernels=kernels) == []


def test_an_unknown_operator_passes_over_what_it_touches_and_is_named():
    kernels = Kernels(H100)
    a = tensor(4, 8)
    assert works("mine::rotate", a, outputs=[tensor(4, 8)], kernels=kernels) == [Traffic(128, 1, STRIDED)]
    assert kernels.unknown == {"mine::rotate": 1}
    # One that returns nothing writes into what it is given.
    assert works("mine::rotate_into", a, tensor(4, 8), outputs=[None], kernels=kernels) == [Traffic(128, 1, STRIDED)]


@pytest.mark.parametrize(("tensors", "sizes", "expected"), [(100, 65_536, 2), (1, 65_536 * 320 * 3, 3), (0, 0, 0)])
def test_lists_of_tensors_are_split_into_launches(tensors, sizes, expected):
    """64 tensors fit into a launch of two lists, and 320 chunks of 65,536 elements."""
    values, gradients = ([tensor(sizes, dtype="float32") for _ in range(tensors)] for _ in range(2))
    found = works("aten::_foreach_add_", values, gradients, 1.0)
    assert len(found) == expected
    assert sum(work.bytes for work in found) == 12 * tensors * sizes
