"""Another number format on drawn steps of one operator after the other, whose kernels take 100 us each."""

import pytest
from tests.changes.layout.test_accumulate import layout_of_events

from lumos.changes.layout.precision import in_precision
from lumos.changes.layout.reprice import reprice
from lumos.changes.layout.rescale import Devices
from lumos.cost.cluster import load_cluster
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import moved
from lumos.errors import LumosError

A100 = load_cluster("a100-40gb").accelerator
X, W, OUT = (2048, 1024), (4096, 1024), (2048, 4096)
SINGLE, HALF = "float", "c10::BFloat16"
NODE = "autograd::engine::evaluate_function: "


def layout_of(tmp_path, *rows, device=True):
    """rows: name, shapes, type, further arguments as the profiler writes them, autograd's number (-1 none), the kernel's name, or those of
    the kernels that share its 100 us, and how many of the next rows lie inside (0 where it is left out)."""
    events, backward = [], 0
    for i, (name, shapes, dtype, concrete, number, kernel, *inside) in enumerate(rows, 1):
        held = inside[0] if inside else 0
        backward = i + held if name.startswith(NODE) else backward
        thread = 2 if i <= backward else 1
        args = {"External id": i, "Input Dims": [list(s) for s in shapes], "Input type": [dtype] * len(shapes), "Concrete Inputs": concrete}
        args |= {"Sequence number": number} if number >= 0 else {}
        events.append(("cpu_op", name, thread, 150 * i, 20 + 150 * held, args))
        kernels = (kernel,) if isinstance(kernel, str) else kernel
        for j, each in enumerate(kernels if device else ()):
            ids, us = {"External id": i, "correlation": 10 * i + j}, 100 // len(kernels)
            events.append(("cuda_runtime", "cudaLaunchKernel", thread, 150 * i + 5 * (j + 1), 5, ids))
            events.append(("kernel", each, 7, 150 * i + 12 + us * j, us, {**ids, "device": 0, "stream": 7}))
    return layout_of_events(tmp_path, "NVIDIA A100-SXM4-40GB", events)


def in_format(layout, job, wanted, devices=Devices(A100, A100)):
    """The layout in another format, priced."""
    return reprice(in_precision(layout, job, devices, wanted), job, devices)


def factors(layout):
    """Of each kernel, in order, by what its time is multiplied."""
    graph = layout.segmentation.graph
    return [float(layout.prices.best[t]) for t in range(len(graph)) if graph.on_device[t]]


def ratio(old, new):
    before, after = (int(gemm(2048, 4096, 1024, A100, dtype, cast=False).time) for dtype in (old, new))
    return after / before


def moved_ratio(shape, old, new):
    """Of a pass over a tensor whose elements take other bytes, read once and written once."""
    before, after = (int(moved(2 * shape[0] * shape[1] * width, A100, "pointwise").time) for width in (old, new))
    return after / before


FORWARD = ("aten::linear", (X, W), SINGLE, [], 1, "ampere_sgemm_128x64_tn")


def test_only_multiplications_change_between_fp32_and_tf32(tmp_path):
    layout, job = layout_of(tmp_path, FORWARD, ("aten::gelu", (OUT,), SINGLE, [], 2, "gelu"))
    assert factors(in_format(layout, job, "tf32")) == [pytest.approx(ratio("fp32", "tf32")), 1.0]
    assert in_format(layout, job, "fp32").changes == ("precision = fp32 (as measured)",)


def test_kernels_that_say_so_multiply_in_tf32(tmp_path):
    layout, job = layout_of(tmp_path, (*FORWARD[:-1], "cutlass_80_tensorop_s1688gemm_128x128_tn"))
    assert factors(in_format(layout, job, "fp32")) == [pytest.approx(ratio("tf32", "fp32"))]


#: A convolution of 1.95 GFLOP in half of 100 us: 12.5 us at an A100's 156 TFLOP/s in tf32. The other half brings its input into order.
CONVOLUTION = (
    "aten::cudnn_convolution",
    ((4, 256, 61, 61), (256, 256, 1, 1)),
    SINGLE,
    ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"],
    1,
    ("void cudnn::ops::nchwToNhwcKernel<float, float>", "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc"),
)


def test_a_convolution_keeps_a_part_of_what_it_took_beyond_its_arithmetic(tmp_path):
    """It took 4 times its arithmetic. At an eighth of the rate it takes 4 ** (log 4 / log 8) = 2.52 times that, 8 · 2.52 / 4 = 5.04 times
    as long; the interval reaches from 4 ** 0.33 = 1.59 times to all 4, and 30 % beyond. Its other kernel multiplies nothing."""
    layout, job = layout_of(tmp_path, CONVOLUTION)
    found = in_format(layout, job, "fp32")
    assert factors(found) == [1.0, pytest.approx(5.04, rel=1e-3)]
    kernel = layout.segmentation.graph.on_device.nonzero()[0][1]
    assert [float(found.prices.low[kernel]), float(found.prices.high[kernel])] == pytest.approx([8 * 1.59 / 4 / 1.3, 8 * 1.3], rel=2e-3)


def test_a_kernel_that_computes_in_the_wanted_type_stays(tmp_path):
    fp32 = (*CONVOLUTION[:-1], ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw",))
    layout, job = layout_of(tmp_path, (*FORWARD[:-1], "cutlass_80_tensorop_s1688gemm_128x128_tn"), (*FORWARD[:-1], "s1688gemm"), fp32)
    assert factors(in_format(layout, job, "fp32"))[2] == 1.0


def test_a_convolution_that_took_its_arithmetic_follows_the_rate(tmp_path):
    """Of 16 times the multiplications, more than the peak rate allows in 50 us."""
    (n, c, h, w), filters = CONVOLUTION[1]
    layout, job = layout_of(tmp_path, (CONVOLUTION[0], ((16 * n, c, h, w), filters), *CONVOLUTION[2:]))
    assert factors(in_format(layout, job, "fp32")) == [1.0, pytest.approx(8.0)]


def test_under_autocast_inputs_are_cast_and_activations_shrink(tmp_path):
    """The multiplication reads an activation and a weight in fp32, so it casts both; what it makes has 16 bits, so GELU moves half the
    bytes, and the norm, which stays in fp32, casts what it reads."""
    layout, job = layout_of(
        tmp_path,
        FORWARD,
        ("aten::gelu", (OUT,), SINGLE, [], 2, "gelu"),
        ("aten::native_layer_norm", (OUT,), SINGLE, [], 3, "layer_norm"),
        (NODE + "AddmmBackward0", (), SINGLE, [], 1, "ampere_sgemm_128x64_nn"),
    )
    changed = in_format(layout, job, "bf16")
    assert factors(changed) == [pytest.approx(ratio("fp32", "bf16")), pytest.approx(moved_ratio(OUT, 4, 2)), 1.0, 1.0]
    casts = sum(int(moved(6 * n, A100, "pointwise").time) for n in (2048 * 1024, 4096 * 1024, 2048 * 4096))
    assert sum(i.extra.device for items in changed.ranks for i in items) == casts
    assert changed.changes == ("precision = bf16 (measured: fp32, under autocast)",)


def test_a_forward_pass_reads_nothing_of_the_pass_before(tmp_path):
    """The convolution makes eight channels of four, which no operator's shapes say. The norm over them reads 16 bits in both microbatches,
    although the first one left as many numbers in fp32, those of its softmax. A mean works in the type that it is given."""
    image, filters, made = (16, 4, 32, 32), (8, 4, 3, 3), (16, 8, 32, 32)

    def microbatch(number):
        return (
            ("aten::cudnn_convolution", (image, filters), SINGLE, [], number, "implicit_gemm"),
            ("aten::native_batch_norm", (made,), SINGLE, [], number + 1, "batch_norm"),
            ("aten::mean", (made,), SINGLE, [], number + 2, "reduce"),
            ("aten::_softmax", (made,), SINGLE, [], number + 3, "softmax"),
            (NODE + "ConvolutionBackward0", (), SINGLE, [], number, "wgrad"),
        )

    layout, job = layout_of(tmp_path, *microbatch(1), *microbatch(6))
    found = factors(in_format(layout, job, "bf16"))
    assert found[1:4] == found[6:9] and max(found[1:3]) < found[3] == 1.0


def test_a_trained_weight_is_cast_once_in_a_forward_pass_and_an_activation_each_time(tmp_path):
    """As in a loop over time, which multiplies by the same weight in every step."""
    gathers = "torch::autograd::AccumulateGrad"
    steps = [(("aten::t", (W,), SINGLE, [], i, ()), ("aten::mm", (X, W[::-1]), SINGLE, [], i + 1, "ampere_sgemm")) for i in (1, 3)]
    nodes = [(f"{NODE}{name}Backward0", (), SINGLE, [], i, ()) for name, i in (("Mm", 4), ("T", 3), ("Mm", 2), ("T", 1))]
    gathered = ((NODE + gathers, (), SINGLE, [], -1, (), 1), (gathers, (W,), SINGLE, [], -1, ()))
    layout, job = layout_of(tmp_path, *steps[0], *steps[1], *nodes, *gathered)
    changed = in_format(layout, job, "bf16")
    casts = sum(int(moved(6 * rows * columns, A100, "pointwise").time) for rows, columns in (X, X, W))
    assert sum(i.extra.device for items in changed.ranks for i in items) == casts


def test_an_operator_of_several_kernels_casts_its_inputs_once(tmp_path):
    layout, job = layout_of(tmp_path, (*FORWARD[:-1], ("ampere_sgemm_128x64_tn", "splitKreduce_kernel")))
    changed = in_format(layout, job, "bf16")
    casts = sum(int(moved(6 * rows * columns, A100, "pointwise").time) for rows, columns in (X, W))
    assert sum(i.extra.device for items in changed.ranks for i in items) == casts
    assert factors(changed) == [pytest.approx(ratio("fp32", "bf16"))] * 2


def test_the_gradient_of_what_was_cast_to_fp32_is_cast_to_16_bits(tmp_path):
    """The softmax reads the multiplication's result in fp32; the gradient of that result comes out of its backward pass in fp32, too."""
    layout, job = layout_of(
        tmp_path,
        FORWARD,
        ("aten::_log_softmax", (OUT,), SINGLE, [], 2, "softmax"),
        (NODE + "LogSoftmaxBackward0", (), SINGLE, [], 2, (), 1),
        ("aten::_log_softmax_backward_data", (OUT, OUT), SINGLE, [], -1, "softmax_backward"),
    )
    changed = in_format(layout, job, "bf16")
    assert factors(changed) == [pytest.approx(ratio("fp32", "bf16")), 1.0, 1.0]
    casts = sum(int(moved(6 * n, A100, "pointwise").time) for n in (2048 * 1024, 4096 * 1024, *[2048 * 4096] * 2))
    assert sum(i.extra.device for items in changed.ranks for i in items) == casts


def test_attention_computed_operator_by_operator_stays_in_fp32_under_autocast(tmp_path):
    """Its queries, keys and values, as many elements as the multiplication before it makes, are cast back to fp32, its result to 16 bits;
    what follows reads those, so GELU moves half the bytes. The gradients of all four are cast as well. What 16 bits would save of its
    multiplications is in the interval."""
    heads, scores = (1, 4, 2048, 1024), (4, 2048, 2048)
    forward, backward = ((4, 2048, 1024), (4, 1024, 2048)), ((4, 1024, 2048), scores)
    layout, job = layout_of(
        tmp_path,
        FORWARD,
        ("aten::_scaled_dot_product_attention_math", (heads, heads, heads), SINGLE, [], 2, (), 2),
        ("aten::bmm", forward, SINGLE, [], 2, "ampere_sgemm_128x64_nn"),
        ("aten::_softmax", (scores,), SINGLE, [], 3, "softmax"),
        ("aten::gelu", (OUT,), SINGLE, [], 4, "gelu"),
        (NODE + "BmmBackward0", (), SINGLE, [], 2, (), 1),
        ("aten::bmm", backward, SINGLE, [], -1, "ampere_sgemm_128x64_nt"),
    )
    changed = in_format(layout, job, "bf16")
    assert factors(changed) == [pytest.approx(ratio("fp32", "bf16")), 1.0, 1.0, pytest.approx(moved_ratio(OUT, 4, 2)), 1.0]
    casts = sum(int(moved(6 * n, A100, "pointwise").time) for n in (2048 * 1024, 4096 * 1024, *[2048 * 4096] * 8))
    assert sum(i.extra.device for items in changed.ranks for i in items) == casts
    bmm = [t for t in range(len(layout.prices.best)) if layout.segmentation.graph.on_device[t]][1]
    assert changed.prices.low[bmm] < 0.5
    assert changed.prices.high[bmm] == 1.0


@pytest.mark.parametrize(("was", "old"), [(SINGLE, "tf32"), (HALF, "bf16")])
def test_a_device_that_lacks_the_recorded_type(tmp_path, was, old):
    """A V100 has neither: the product is in fp16 there, whatever it was."""
    layout, job = layout_of(tmp_path, (*FORWARD[:2], was, *FORWARD[3:-1], "cutlass_80_tensorop_s1688gemm_f32f32_tf32f32"))
    v100 = load_cluster("v100").accelerator
    found = factors(in_format(layout, job, "fp16", Devices(A100, v100)))
    before, after = (int(gemm(2048, 4096, 1024, device, dtype, cast=False).time) for device, dtype in ((A100, old), (v100, "fp16")))
    assert found == [pytest.approx(after / before)]


def test_without_16_bits_casts_fall_away_and_tensors_take_twice_the_bytes(tmp_path):
    layout, job = layout_of(
        tmp_path,
        ("aten::_to_copy", (X,), SINGLE, ["", "15"], -1, "copy"),
        ("aten::linear", (X, W), HALF, [], 1, "ampere_bf16_s16816gemm_bf16"),
        ("aten::gelu", (OUT,), HALF, [], 2, "gelu"),
        ("aten::_to_copy", (OUT,), HALF, ["", "6"], -1, "copy"),
        ("aten::exp", (OUT,), SINGLE, [], 3, "exp"),
    )
    changed = in_format(layout, job, "tf32")
    assert factors(changed) == [0.0, pytest.approx(ratio("bf16", "tf32")), pytest.approx(moved_ratio(OUT, 2, 4)), 0.0, 1.0]
    graph = layout.segmentation.graph
    gone = {graph.names[graph.name[t]] for t in range(len(graph)) if changed.prices.best[t] == 0}
    assert gone == {"aten::_to_copy", "cudaLaunchKernel", "copy"}


@pytest.mark.parametrize(("wanted", "accelerator", "text"), [("bf16", None, "job on CPUs"), ("fp8", A100, "fp8")])
def test_what_the_trace_does_not_show_is_refused(tmp_path, wanted, accelerator, text):
    layout, job = layout_of(tmp_path, FORWARD)
    with pytest.raises(LumosError, match=text):
        in_precision(layout, job, Devices(accelerator, accelerator), wanted)


def test_without_shapes_the_type_is_not_known(tmp_path):
    layout, job = layout_of(tmp_path, ("aten::linear", (), SINGLE, [], 1, "ampere_sgemm"))
    with pytest.raises(LumosError, match="no multiplications with shapes"):
        in_format(layout, job, "bf16")
