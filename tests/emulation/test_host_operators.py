"""What is recorded of a script that is emulated as on a CPU; the names are those of torch's profiler there."""

from __future__ import annotations

import pytest
from tests.emulation.emulated_scripts import run

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

BODY = """
    from transformers.utils import import_utils

    assert not import_utils.is_fake_tensor(torch.zeros(2))
    down, normal = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8)
    optimizer = torch.optim.AdamW(down.parameters(), fused=True)
    for _ in range(3):
        image = torch.rand(2, 3, 16, 16, requires_grad=True)
        normal(down(image)).relu().sum().backward()
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
    (found,) = run(folder, BODY, cluster="cpu")
    return found


def below(process, name, number=0):
    """The names of what the operator called, those that called each other included."""
    outer = [each for each in process.operators if each.name == name][number]
    inside = [each for each in process.operators if each.thread == outer.thread and outer.begin < each.begin < outer.end]
    return [each.name.removeprefix("aten::") for each in sorted(inside, key=lambda each: each.begin)]


def test_operators_are_nested_down_to_the_kernels_of_the_host_which_stand_alone(process):
    assert below(process, "aten::conv2d") == ["convolution", "_convolution", "mkldnn_convolution"]
    assert below(process, "aten::group_norm") == ["native_group_norm"]
    assert below(process, "ConvolutionBackward0") == ["convolution_backward"]
    kernels = {each.name for each in process.operators if each.leaf}
    assert {f"aten::{name}" for name in ("mkldnn_convolution", "convolution_backward", "relu", "sum", "_fused_adamw_")} <= kernels


def test_a_mask_is_turned_into_positions_unless_one_number_is_filled_in_where_it_holds(process):
    positions = ["nonzero", "select", "as_strided", "select", "as_strided"]
    assert below(process, "aten::index") == positions
    assert below(process, "aten::_index_put_impl_", 0) == positions
    assert below(process, "aten::_index_put_impl_", 1) == []
    assert "stand-in-selection" in {note.code for note in process.notes}


def test_lists_of_numbers_are_kept_also_where_they_are_empty_and_of_operators_that_only_call_others(process):
    def first_lists(name):
        return [next(given for given in each.inputs if isinstance(given, list)) for each in process.operators if each.name == name]

    assert [] in first_lists("aten::empty") and [2] in first_lists("aten::empty")
    assert [2, 768] in first_lists("aten::reshape")
