"""What is recorded of a script that is emulated as on a CPU; the names are those of torch's profiler there."""

from __future__ import annotations

import pytest
from tests.emulation.emulated_scripts import leaves, run

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

BODY = """
    from transformers.utils import import_utils

    assert not import_utils.is_fake_tensor(torch.zeros(2))
    down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    optimizer = torch.optim.AdamW(down.parameters(), fused=True)
    for _ in range(3):
        image = torch.rand(2, 3, 16, 16, requires_grad=True)
        down(image).reshape(2, 512).relu().sum().backward()
        optimizer.step()
"""


def test_operators_are_nested_down_to_the_kernels_of_the_host_with_their_lists(tmp_path):
    (tmp_path / "transformers" / "utils").mkdir(parents=True)
    (tmp_path / "transformers" / "utils" / "import_utils.py").write_text("import torch\ndef is_fake_tensor(_): return True\n")
    (process,) = run(tmp_path, BODY, cluster="cpu")
    outer = next(each for each in process.operators if each.name == "aten::conv2d")
    inside = [each.name for each in process.operators if each.thread == outer.thread and outer.begin < each.begin < outer.end]
    assert inside == ["aten::convolution", "aten::_convolution", "aten::mkldnn_convolution"]
    assert {f"aten::{name}" for name in ("mkldnn_convolution", "convolution_backward", "relu", "_fused_adamw_")} <= set(leaves(process))
    assert next(each.inputs[1] for each in process.operators if each.name == "aten::reshape") == [2, 512]
    assert not process.allocations
