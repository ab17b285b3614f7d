"""What operators call on the host, in a script that is emulated as on a CPU; the names are those of torch's profiler there."""

from __future__ import annotations

import sys
import textwrap

import pytest

from lumos.emulate.accelerators import emulated_device
from lumos.emulate.process.operators.plain import as_plain
from lumos.emulate.processes import Launched
from lumos.emulate.record import Operator, Tensor
from lumos.emulate.run import records

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

BODY = """
    import torch
    from torch import nn
    from torch.nn import functional
    from transformers.utils import import_utils

    assert not import_utils.is_fake_tensor(torch.zeros(2))
    down, up, mixed = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.Conv2d(8, 4, 1)
    normal, recurrent = nn.GroupNorm(2, 8), nn.LSTM(16, 8, bias=False)
    optimizer = torch.optim.AdamW([*down.parameters(), *up.parameters()], fused=True)
    for _ in range(3):
        image = torch.rand(2, 3, 16, 16, requires_grad=True)
        wide = functional.interpolate(up(normal(down(image))), scale_factor=2)
        loss = mixed(wide).amax((2, 3)).sum() + (image > 0).sum() / 2 + (image > 0).cumsum(-1).sum() + recurrent(image[:, 0])[0].sum()
        loss.backward()
        optimizer.step()
        plane = torch.rand(4, 6)
        chosen = plane[plane > 0]
        plane[plane > 0], plane[plane > 1] = chosen, 1.0
        number, pair, lines = torch.tensor(3.0), torch.tensor([3.0, 4.0]), image.reshape(2, 768)
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    (folder / "transformers" / "utils").mkdir(parents=True)
    for name in ("__init__", "utils/__init__"):
        (folder / "transformers" / f"{name}.py").touch()
    (folder / "transformers" / "utils" / "import_utils.py").write_text(
        "import torch\ndef is_fake_tensor(x): return isinstance(x, torch._subclasses.FakeTensor)\n"
    )
    script = folder / "train.py"
    script.write_text(textwrap.dedent(BODY))
    (found,) = records(Launched([sys.executable, str(script)], emulated_device("cpu"), 1, 1, 1, folder, 120.0))
    return found


def below(process, name, number=0):
    """The names of what the operator called, those that called each other included."""
    outer = [each for each in process.operators if each.name == name][number]
    inside = [each for each in process.operators if each.thread == outer.thread and outer.begin < each.begin < outer.end]
    return [each.name.removeprefix("aten::") for each in sorted(inside, key=lambda each: each.begin)]


COPIED = ["empty", "as_strided_", "contiguous", "clone", "empty_like", "empty", "copy_", "resize_"]


def test_a_transposed_convolution_leaves_onednn_with_its_channels_last_and_is_copied(process):
    transposed = below(process, "aten::_convolution", 1)
    assert transposed[-len(COPIED) :] == COPIED
    # So does the gradient of an image under a stride; the last convolution of the backward pass is the first of the forward.
    backward = below(process, "aten::convolution_backward", 2)
    assert backward[1 : 1 + len(COPIED)] == COPIED and backward.count("contiguous") == 1


def test_a_convolution_of_single_pixels_is_a_product_of_matrices(process):
    assert below(process, "aten::_slow_conv2d_forward") == ["empty", "view", "view", "detach", "resize_", "reshape", "view", "copy_"]
    backward = below(process, "aten::convolution_backward", 0)
    assert backward[:5] == ["_nnpack_available", "_slow_conv2d_backward", "empty", "empty", "empty"]


def test_norms_resizing_and_pooling_take_what_they_need(process):
    assert below(process, "aten::native_group_norm") == ["empty"] * 3
    assert below(process, "aten::native_group_norm_backward") == ["empty"] * 5
    small = below(process, "aten::upsample_nearest2d")
    assert small.count("contiguous") == 2 and small[-1] == "copy_"
    assert below(process, "aten::upsample_nearest2d_backward")[-1] == "zero_"
    assert below(process, "aten::amax") == ["as_strided", "fill_"]


def test_integers_are_added_in_64_bits_and_divided_as_floats(process):
    sums = [below(process, "aten::sum", i) for i, each in enumerate(o for o in process.operators if o.name == "aten::sum")]
    assert ["as_strided", "to", "_to_copy", "empty_strided", "copy_", "fill_"] in sums
    assert below(process, "aten::cumsum") == ["to", "_to_copy", "empty_strided", "copy_"]
    assert below(process, "aten::div").count("to") == 2


def test_a_mask_is_turned_into_positions_unless_one_number_is_filled_in_where_it_holds(process):
    positions = ["nonzero", "select", "as_strided", "select", "as_strided"]
    assert below(process, "aten::index") == positions
    assert below(process, "aten::_index_put_impl_", 0) == positions
    assert below(process, "aten::_index_put_impl_", 1) == []


def test_a_recurrent_layer_without_biases_has_one_of_zeros(process):
    bias = ["zeros", "empty", "zero_"]
    assert below(process, "aten::mkldnn_rnn_layer") == ["empty"] * 3 + bias + ["empty"]
    assert below(process, "aten::mkldnn_rnn_layer_backward")[-12:] == [*bias, *["empty"] * 6, "clone", "empty_strided", "copy_"]
    zeros = [each.inputs[0] for each in process.operators if each.name == "aten::zeros"]
    assert all(size in zeros for size in ([32], [32, 16], [32, 8]))  # 4 gates of 8; torch's own two are as large as the weights


def test_a_fused_optimizer_reads_the_count_of_each_parameter(process):
    assert below(process, "aten::_fused_adamw_") == ["item", "_local_scalar_dense"] * 4


def test_lists_of_numbers_are_kept_also_where_they_are_empty_and_of_operators_that_only_call_others(process):
    def first_lists(name):
        return [next(given for given in each.inputs if isinstance(given, list)) for each in process.operators if each.name == name]

    assert [] in first_lists("aten::empty") and [2] in first_lists("aten::empty")
    assert [2, 768] in first_lists("aten::reshape")


def test_the_engine_adds_in_place_to_a_gradient_that_nothing_else_has():
    def tensor(storage):
        return Tensor((4,), "float32", (1,), storage, "cpu")

    def add(begin, gradient):
        return Operator(name="aten::add", thread=0, begin=begin, end=begin + 1, inputs=[tensor(gradient), tensor(9)], leaf=True)

    node = Operator(name="autograd::engine::evaluate_function: AddBackward0", thread=0, begin=1, end=20)
    operators = [node, add(2, 1), add(6, 2), add(10, 3)]
    # The first gradient is given back before the next operator, the second after it, the third never.
    found = as_plain(operators, {1: 4, 2: 12})
    assert [each.name for each in found[1:]] == ["aten::add_", "aten::add", "aten::add"]
