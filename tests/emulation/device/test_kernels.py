"""Which kernels an operator launches, and how much each moves or multiplies, worked out by hand."""

import msgspec
import pytest

from lumos.blocks.price import Pricer, kernel_by_kernel
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


def test_products_are_multiplications_of_their_factors():
    a, b = tensor(64, 256), tensor(256, 128)
    assert works("aten::mm", a, b) == [Gemm(64, 128, 256, DType.BF16, cast=False)]
    assert works("aten::addmm", tensor(128), a, b, 1, 1) == [Gemm(64, 128, 256, DType.BF16, cast=False)]
    assert works("aten::bmm", tensor(8, 64, 256), tensor(8, 256, 128)) == [Gemm(64, 128, 256, DType.BF16, 8, cast=False)]
    assert works("aten::linear", tensor(2, 32, 256), tensor(128, 256)) == [Gemm(64, 128, 256, DType.BF16, cast=False)]


def test_an_inner_product_reads_both_vectors():
    assert works("aten::vdot", tensor(256), tensor(256)) == works("aten::dot", tensor(256), tensor(256)) != []


@pytest.mark.parametrize(
    ("a", "b", "narrower"),
    [
        (tensor(64, 256), tensor(256, 128), 1),
        (tensor(64, 256), tensor(256, 100), 2),  # rows of 200 bytes: of the second factor, and of the result
        (tensor(64, 256), tensor(256, 102), 4),  # rows of 204 bytes
        (tensor(64, 256), tensor(256, 101), 8),  # rows of 202 bytes
        (tensor(64, 256), tensor(256, 100, stride=(1, 256)), 2),  # of the result alone
        (tensor(64, 100), tensor(100, 128), 2),  # of the first factor
        (tensor(64, 100, stride=(1, 64)), tensor(100, 128), 1),  # k is odd, but no row begins at it
        (tensor(64, 256, stride=(260, 1)), tensor(256, 128), 2),  # rows of a wider matrix
        (tensor(1, 255), tensor(255, 128), 1),  # one row is no multiplication of matrices
        (tensor(64, 100, dtype="float32"), tensor(100, 101, dtype="float32"), 1),  # not on matrix units
        (Tensor((64, 100), "float16", (), -1, "cuda"), tensor(100, 128, dtype="float16"), 2),  # a recording without strides
    ],
)
def test_matrices_whose_rows_begin_anywhere_are_multiplied_by_older_kernels_with_narrower_loads(a, b, narrower):
    (work,) = works("aten::mm", a, b)
    assert (work.older, work.narrower) == (narrower > 1, narrower)


def test_narrower_loads_take_no_less_time_and_at_most_as_much_more_as_they_are_narrower():
    aligned = Gemm(8192, 50256, 768, DType.BF16, cast=False, older=True)
    first, second = (price.times for price in Pricer(load_cluster("h100"), kernel_by_kernel())([aligned, aligned._replace(narrower=4)]))
    assert (second.best / first.best, second.low, second.high / first.high) == (pytest.approx(2), first.low, pytest.approx(4))


def test_products_of_fp32_complex_numbers_and_types_without_a_rate_are_in_fp32_and_an_empty_one_launches_nothing():
    assert works("aten::mm", tensor(4, 4, dtype="float32"), tensor(4, 4, dtype="float32"))[0].dtype is DType.FP32
    assert works("aten::mm", tensor(0, 4), tensor(4, 4)) == []
    left, right = tensor(8, 64, 256, dtype="complex64"), tensor(8, 256, 128, dtype="complex64")
    assert works("aten::bmm", left, right) == [Gemm(64, 256, 512, DType.FP32, 8, 4, cast=False)], "both parts of each element"
    v100 = Kernels(load_cluster("v100").accelerator)
    assert works("aten::mm", tensor(4, 4), tensor(4, 4), kernels=v100)[0].dtype is DType.FP32


def test_a_convolution_multiplies_its_taps_and_permutes_channels_first():
    # 2 images of 32 channels, 10 x 10, with 64 filters of 3 x 3 and no padding: 2 * 8 * 8 positions, 32 * 9 products each.
    image, weight, out = tensor(2, 32, 10, 10), tensor(64, 32, 3, 3), tensor(2, 64, 8, 8)
    found = works("aten::cudnn_convolution", image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, True, outputs=[out])
    gemm = Gemm(128, 64, 288, DType.BF16, 1, 2, cast=False, taps=9)
    assert found == [Traffic(2 * 12_800), Traffic(2 * 36_864), gemm, Traffic(2 * 16_384)]
    # A recording has no results: their size follows from the padding, stride and dilation.
    assert found == works("aten::cudnn_convolution", image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, True)


def test_few_channels_take_the_steps_and_tiles_of_many():
    # 3 channels: a step of k takes 64 bytes of one tap, so 32 channels in 16 bits, and a tile of what permutes has 32 channels.
    image, weight, out = tensor(2, 3, 10, 10), tensor(64, 3, 3, 3), tensor(2, 64, 8, 8)
    lists = ([0, 0], [1, 1], [1, 1], 1, False, False, True)
    # Zeros fill 3 channels up to 8, in memory that is cleared first, and a kernel of Ampere multiplies them without splitting k.
    gemm = Gemm(128, 64, 9 * 32, DType.BF16, 1, 2, cast=False, taps=9, split=False, older=True)
    inputs = [Traffic(2 * 2 * 8 * 100), Traffic(2 * 2 * 2 * 32 * 100), Traffic(2 * 64 * 8 * 9), Traffic(2 * 2 * 64 * 32 * 9)]
    found = launched("aten::cudnn_convolution", image, weight, *lists, outputs=[out])
    assert [launch.work for launch in found] == [*inputs, gemm, Traffic(2 * 16_384)]
    fill, kernel = DeviceEngine.FILL, DeviceEngine.KERNEL
    assert [launch.engine for launch in found] == [fill, kernel, fill, kernel, kernel, kernel]
    # Backward, the image and the weight are filled up in the same way, and the gradient of the weight may be split.
    after = ([64], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    backward = launched("aten::convolution_backward", out, image, weight, *after)
    products = [launch.work for launch in backward if isinstance(launch.work, Gemm)]
    assert [(work.older, work.split) for work in products] == [(True, False), (True, True)]
    assert [launch.engine for launch in backward].count(fill) == 2
    # In TF32 a step has 16 channels. Each of two groups walks through its own channels.
    single = [tensor(2, 20, 10, 10, dtype="float32"), tensor(64, 20, 3, 3, dtype="float32")]
    assert works("aten::cudnn_convolution", *single, *lists)[2].k == 9 * 32
    grouped = works("aten::cudnn_convolution", tensor(2, 8, 10, 10), tensor(64, 4, 3, 3), *lists)[2]
    assert (grouped.k, grouped.batch) == (9 * 4, 2)


def test_fp32_convolutions_of_odd_channels_stay_fp32_and_permute_nothing():
    # 3 channels of 4 bytes are no multiple of 16 bytes, which matrix units ask for; 4 are.
    image, weight, gradient = (tensor(*shape, dtype="float32") for shape in ((2, 3, 10, 10), (64, 3, 3, 3), (2, 64, 8, 8)))
    forward = works("aten::cudnn_convolution", image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, True, outputs=[gradient])
    assert forward == [Gemm(128, 64, 27, DType.FP32, 1, 4, cast=False, taps=9)]
    backward = works("aten::convolution_backward", gradient, image, weight, [64], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)
    data = Gemm(200, 3, round(64 * 9 * 128 / 200), DType.FP32, 1, 4, cast=False, taps=9)
    of_each_image = Gemm(27, 64, 64, DType.FP32, 2, 4, cast=False, taps=9)
    assert backward == [data, of_each_image], "that of the bias is a sum by another operator"
    image, weight = tensor(2, 4, 10, 10, dtype="float32"), tensor(64, 4, 3, 3, dtype="float32")
    assert works("aten::cudnn_convolution", image, weight, [0, 0], [1, 1], [1, 1], 1, False, False, True)[2].dtype is DType.TF32


@pytest.mark.parametrize(
    ("channels", "filters", "of_a_position"),
    [
        (64, 64, 4 * (3 * 128 + 128)),
        (64, 128, 4 * (3 * 192 + 192)),
        (128, 128, 4 * (3 * 256 + 2 * 192)),
        (256, 128, 2 * 4 * (3 * 256 + 2 * 192)),
    ],
)
def test_weight_gradients_in_tf32_are_turned_around_in_hoppers_shared_memory(channels, filters, of_a_position):
    # 128 positions and 9 taps. A tile takes 64 or 128 elements of both factors in three times, then 64 rows read all columns of the tile.
    shapes = ((2, filters, 8, 8), (2, channels, 10, 10), (filters, channels, 3, 3))
    lists = ([filters], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])

    def gradient(dtype, kernels=None):
        found = works("aten::convolution_backward", *(tensor(*shape, dtype=dtype) for shape in shapes), *lists, kernels=kernels)
        return next(work for work in found if isinstance(work, Gemm)).shared_bytes

    assert gradient("float32") == 9 * 128 * of_a_position
    assert gradient("bfloat16") == gradient("float32", Kernels(load_cluster("a100-80gb").accelerator)) == 0


def test_batch_normalisation_of_all_ranks_has_kernels_of_its_own_for_channels_last():
    found = [tensor(16, dtype="float32") for _ in range(2)]
    for strides, kernel in ((None, "statistics_kernel"), ((1600, 1, 160, 16), "statistics_channels_last_kernel")):
        (launch,) = launched("aten::batch_norm_stats", tensor(2, 16, 10, 10, stride=strides), 1e-5, outputs=found)
        assert launch.name == f"batch_norm_collect_{kernel} [batch_norm_stats]"
        assert launch.work == Traffic(6400 + 128, 1, REDUCTION)


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


def test_layer_normalisation_of_rows_that_are_no_multiple_of_four_reads_them_twice():
    whole, odd = tensor(8, 768), tensor(8, 765)
    assert len(works("aten::native_layer_norm", whole, [768], None, None, 1e-5)) == 1
    size = 8 * 765 * 2
    expected = [Traffic(size, 1, REDUCTION), Traffic(2 * size, 1, POINTWISE)]
    assert works("aten::native_layer_norm", odd, [765], None, None, 1e-5) == expected


def test_miopens_convolutions_in_16_bits_share_k_and_add_in_fp32():
    image, weight, result = (tensor(2, 64, 8, 8), tensor(32, 64, 3, 3), tensor(2, 32, 8, 8))
    names = [launch.name for launch in launched("aten::cudnn_convolution", image, weight, outputs=[result], kernels=Kernels(MI300X))]
    assert [name for name in names if "SubTensor" in name] == ["SubTensorOpWithScalar1d", "SubTensorOpWithCastTensor1d"]
    place = names.index("convolution_implicit_gemm_bf16")
    found = works("aten::cudnn_convolution", image, weight, outputs=[result], kernels=Kernels(MI300X))
    elements = 2 * 32 * 8 * 8
    assert (found[place - 1], found[place + 1]) == (Traffic(4 * elements), Traffic(6 * elements))
    assert not any("SubTensor" in launch.name for launch in launched("aten::cudnn_convolution", image, weight, outputs=[result]))
    point = launched("aten::cudnn_convolution", image, tensor(32, 64, 1, 1), outputs=[result], kernels=Kernels(MI300X))
    assert not any("SubTensor" in launch.name for launch in point), "one tap is a multiplication"


def test_a_convolution_with_channels_last_permutes_nothing():
    image = tensor(2, 8, 10, 10, stride=(800, 1, 80, 8))
    found = works(
        "aten::convolution", image, tensor(16, 8, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, outputs=[tensor(2, 16, 8, 8)]
    )
    assert [type(work) for work in found] == [Gemm]


def test_the_backward_pass_of_a_convolution_makes_the_gradients_that_are_asked_for():
    gradient, image, weight = tensor(2, 16, 8, 8), tensor(2, 8, 10, 10, stride=(800, 1, 80, 8)), tensor(16, 8, 3, 3)
    lists = ([16], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    both = works("aten::convolution_backward", gradient, image, weight, *lists, [True, True, False])
    assert both[1] == Gemm(72, 16, 128, DType.BF16, 1, 2, cast=False, taps=9)
    assert (both[0].m, both[0].n) == (200, 8) and len(both) == 2
    assert works("aten::convolution_backward", gradient, image, weight, *lists, [False, True, False]) == [both[1]]


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


def test_heads_wider_than_any_flash_kernel_take_two_multiplications():
    q = tensor(1, 2, 64, 512)
    assert [type(work) for work in works("aten::_scaled_dot_product_efficient_attention", q, q, q, None, False, 0.0, False)] == [Gemm, Gemm]


def test_element_wise_kernels_read_their_inputs_and_write_their_result():
    a, b = tensor(4, 100), tensor(4, 100)
    assert works("aten::add", a, b, 1, outputs=[tensor(4, 100)]) == [Traffic(2400, 1, POINTWISE)]
    assert works("aten::add_", a, b, 1, outputs=[a]) == [Traffic(2400, 1, POINTWISE)]
    # Three operands in two dimensions: 10 + 3 * 5 instructions, 2 * (8 + 3 * 2) for the dimensions, 4 for the product.
    (broadcast,) = works("aten::mul", a, tensor(1, 100), outputs=[tensor(4, 100)])
    assert broadcast == Traffic(800 + 200 + 800, 1, POINTWISE, 400 * 57, 400)
    assert works("aten::mul", a, tensor(4, 100, stride=(0, 1)), outputs=[tensor(4, 100)]) == [broadcast]
    # What does not lie beside each other costs more memory, too.
    permuted = tensor(4, 100, stride=(1, 4))
    assert works("aten::mul", a, permuted, outputs=[tensor(4, 100)]) == [broadcast._replace(bytes=2400, kernel_class=STRIDED)]
    assert works("aten::fill_", a, 0.0, outputs=[a]) == [Traffic(800, 1, POINTWISE)]


def test_dimensions_that_all_operands_walk_through_alike_are_one():
    """The rows of a column-major tensor are its own order, and heads of 64 that were cut out of rows of 192 are two dimensions."""
    column_major = tensor(4, 100, stride=(1, 4))
    assert works("aten::neg", column_major, outputs=[tensor(4, 100, stride=(1, 4))]) == [Traffic(1600)]
    heads, whole = tensor(2, 8, 3, 64, stride=(8 * 576, 576, 192, 1)), tensor(2, 8, 3, 64)
    (cut,) = works("aten::neg", heads, outputs=[whole])
    assert cut == Traffic(2 * 2 * 3072, 1, POINTWISE, 3072 * (10 + 2 * 5 + 2 * (8 + 2 * 2) + 4), 3072)
    # A recording does not have the result, which follows the layout of what is given.
    assert works("aten::neg", heads) == [cut]


def test_functions_and_types_that_are_looked_up_cost_instructions():
    a = tensor(1000)
    assert works("aten::gelu", a, "none", outputs=[a]) == [Traffic(4000, 1, POINTWISE, 1000 * (4 + 32))]
    wide = tensor(1000, dtype="float32")
    assert works("aten::copy_", wide, a) == [Traffic(6000, 1, POINTWISE, 1000 * 44, 1000)]
    assert works("aten::add", a, wide, 1, outputs=[wide]) == [Traffic(10_000, 1, POINTWISE, 1000 * (3 * 22 + 4), 1000)]
    half, halved = tensor(4, 8), tensor(4, 4)
    assert works("aten::glu", half, -1, outputs=[halved]) == [Traffic(64 + 32, 1, STRIDED)]


def test_reductions_normalisations_and_lookups_have_classes_and_bytes_of_their_own():
    x, row = tensor(16, 64), tensor(16, dtype="float32")
    assert works("aten::sum", x, [1], False, outputs=[row]) == [Traffic(2048 + 64, 1, REDUCTION)]
    assert works("aten::_softmax", x, -1, False, outputs=[tensor(16, 64)]) == [Traffic(4096, 1, NORMALISATION)]
    table, indices = tensor(50_000, 64), tensor(16, dtype="int64")
    assert works("aten::embedding", table, indices, outputs=[tensor(16, 64)]) == [Traffic(2048 + 128 + 2048, 1, STRIDED)]
    for name in ("aten::embedding_dense_backward", "aten::_embedding_bag_backward"):
        by_place, added = works(name, x, indices, 50_000, -1, False, outputs=[table])
        assert (by_place.bytes, added) == (4 * 128 + 4 * 128, Traffic(2 * 2048 + 128 + 2048, 1, STRIDED)), "what it calls has cleared it"
    weight = tensor(64)
    grads = [tensor(16, 64), tensor(64), tensor(64)]
    both = works("aten::native_layer_norm_backward", x, x, [64], row, row, weight, weight, [True] * 3, outputs=grads)
    assert both == [Traffic(2 * 2048 + 2 * 64 + 2 * 128 + 2048, 1, NORMALISATION), Traffic(2 * 2048 + 2 * 128, 1, NORMALISATION)]


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


def test_joining_computes_where_each_element_goes_and_moves_a_sector_for_each_small_piece():
    def join(*inputs, dim, outputs=()):
        return works("aten::cat", list(inputs), dim, outputs=list(outputs))

    # Without gaps, and pieces of 16 elements of 2 bytes: copied several elements at once, as the table has it.
    assert join(tensor(4, 16), tensor(4, 16), dim=1, outputs=[tensor(4, 32)]) == [Traffic(2 * 256, 1, POINTWISE)]
    # One of them with gaps between its rows: 128 elements in two dimensions, 23.5 instructions each, 13.5 for where half of them are read.
    gaps = tensor(4, 16, stride=(64, 1))
    assert join(tensor(4, 16), gaps, dim=-1) == [Traffic(2 * 256, 1, POINTWISE, 128 * 23.5 + 64 * 13.5, 128)]
    # Pieces of two elements, 4 bytes of the 32 of a sector, are written each as a sector: 16 elements as 8 sectors.
    assert join(tensor(4, 2), tensor(4, 2), dim=1) == [Traffic(32 + 8 * 32, 1, POINTWISE, 16 * 23.5, 16)]
    # Where neighbours lie apart, each element is a sector that is read: 64 of the second tensor, in one piece of 128 bytes.
    apart = tensor(1, 4, 16, stride=(64, 1, 4))
    assert join(tensor(1, 1, 16), apart, dim=1) == [Traffic(32 + 64 * 32 + 32 + 128, 1, POINTWISE, 80 * 37 + 64 * 27, 80)]
    # Nothing of an empty tensor is joined; other types and more dimensions are not joined by this kernel.
    assert join(tensor(0), gaps, dim=0)[0].bytes == 256
    wide = tensor(1, 1, 1, 4, 16, stride=(0, 0, 0, 64, 1))
    assert join(wide, wide, dim=3, outputs=[tensor(1, 1, 1, 8, 16)])[0].instructions == 0
    assert join(gaps, tensor(4, 16, dtype="float32"), dim=0, outputs=[tensor(8, 16, dtype="float32")])[0].instructions == 0


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


def test_fsdp_joins_gradients_into_memory_that_it_is_given():
    gradients, joined = [tensor(4, 8), tensor(8)], tensor(40, dtype="float32")
    kernels = Kernels(H100)
    assert works("fsdp::chunk_cat", gradients, 0, 8, joined, outputs=[None], kernels=kernels) == [Traffic(2 * 40 + 4 * 40, 1, POINTWISE)]
    assert not kernels.unknown


def test_a_copy_runs_as_element_wise_work_does_where_rows_of_a_cache_line_stay_rows():
    whole, rows, columns = tensor(8, 128), tensor(8, 64, stride=(128, 1)), tensor(8, 64, stride=(1, 8))
    for part, kind in ((rows, POINTWISE), (columns, STRIDED), (tensor(8, 32, stride=(64, 1)), STRIDED)):
        size = 2 * (whole.shape[0] * whole.shape[1] + 2 * part.shape[0] * part.shape[1])
        assert works("aten::_chunk_cat", [part, part], 1, 2, outputs=[whole]) == [Traffic(size, 1, kind)]


@pytest.mark.parametrize(("tensors", "sizes", "expected"), [(100, 65_536, 2), (1, 65_536 * 320 * 3, 3), (0, 0, 0)])
def test_lists_of_tensors_are_split_into_launches(tensors, sizes, expected):
    """64 tensors fit into a launch of two lists, and 320 chunks of 65,536 elements."""
    values, gradients = ([tensor(sizes, dtype="float32") for _ in range(tensors)] for _ in range(2))
    found = works("aten::_foreach_add_", values, gradients, 1.0)
    assert len(found) == expected
    assert sum(work.bytes for work in found) == 12 * tensors * sizes


def test_a_fused_optimizer_reads_gradients_and_reads_and_writes_the_rest():
    lists = [[tensor(1000, dtype="float32")] for _ in range(4)]
    steps = [tensor(dtype="float32")]
    found = works("aten::_fused_adamw_", *lists, [], steps)
    assert found == [Traffic(4 * 1000 * 4 + 3 * 1000 * 4, 1, POINTWISE)]


def test_lists_of_several_types_take_a_launch_for_each_tensor():
    values = [tensor(10, dtype="float32"), tensor(10)]
    assert len(works("aten::_foreach_mul_", values, 0.9)) == 2
    assert works("aten::_foreach_norm", [tensor(10, dtype="float32")] * 2, 2) == [Traffic(80, 1, REDUCTION)]
