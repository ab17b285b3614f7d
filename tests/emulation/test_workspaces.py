"""What recurrent layers on the host take for themselves, measured while a script is emulated."""

from __future__ import annotations

import sys
import textwrap

import pytest

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.peak import peak
from lumos.emulation.processes import Launched
from lumos.emulation.run import records

torch = pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

FORWARD, BACKWARD = "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"


def emulated(folder, width, tokens):
    script = folder / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import torch
        network = torch.nn.LSTM({width}, {width})
        optimizer = torch.optim.SGD(network.parameters())
        for _ in range(2):
            network(torch.rand({tokens}, 2, {width}))[0].sum().backward()
            optimizer.step()
    """)
    )
    (found,) = records(Launched([sys.executable, str(script)], emulated_device("cpu"), 1, 1, 1, folder, 120.0))
    return found


def test_a_layer_keeps_its_workspace_until_its_backward_pass_and_takes_scratch_for_a_moment(tmp_path):
    """The workspace is that of the same layer run for real, which torch gives as the last result."""
    found = emulated(tmp_path, 32, 8)
    (layer,) = (each for each in found.operators if each.name == FORWARD)
    (backward,) = (each for each in found.operators if each.name == BACKWARD)
    ones = [torch.zeros(shape) for shape in ((8, 2, 32), (128, 32), (128, 32), (128,), (128,), (1, 2, 32), (1, 2, 32))]
    workspace = torch.ops.aten.mkldnn_rnn_layer(*ones, False, [], 2, 32, 1, True, False, False, True)[-1]
    assert workspace.numel() > 0 and layer.outputs[-1].shape == tuple(workspace.shape)
    (taken, freed) = (each for each in found.allocations if each.storage == layer.outputs[-1].storage)
    assert layer.begin < taken.position < layer.end and freed.position > backward.begin
    assert taken.bytes == -freed.bytes == workspace.nbytes
    for call in (layer, backward):
        lent = [each.bytes for each in found.allocations if not each.storage and call.begin < each.position < call.end]
        assert len(lent) == 2 and lent[0] == -lent[1] > 0
    assert peak(found).unknown == () and peak(found).bytes == peak(found).high_bytes


def test_a_layer_too_large_to_be_run_is_named(tmp_path):
    found = emulated(tmp_path, 4096, 8)  # two matrices of 16384 x 4096: 512 MiB, twice what is allowed
    assert peak(found).unknown == (FORWARD, BACKWARD) and peak(found).high_bytes > peak(found).bytes
