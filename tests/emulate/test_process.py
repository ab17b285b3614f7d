"""What a script does while it is emulated: which operators, streams and exchanges it leaves, and what it is kept from."""

from __future__ import annotations

import sys
import textwrap

import pytest

from lumos.emulate.accelerators import emulated_device
from lumos.emulate.record import CallKind, Tensor
from lumos.emulate.run import Launched, records
from lumos.errors import LumosError
from lumos.vocabulary import CollectiveKind

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

HEAD = """
import os, torch
from torch import nn
"""


def run(folder, body, *, cluster="h100", ranks=1, limit_s=120.0):
    script = folder / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    return records(Launched([sys.executable, str(script)], emulated_device(cluster), ranks, 1, 1, folder, limit_s))


def leaves(process):
    return [each.name for each in sorted(process.operators, key=lambda each: each.begin) if each.leaf]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One script with most of what a process can ask of its device, as its record and the folder it ran in."""
    folder = tmp_path_factory.mktemp("single")
    body = f"""
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.get_device_properties(0).multi_processor_count == 132
        shared = nn.Linear(64, 64)
        model = nn.Sequential(shared, nn.ReLU(), nn.RMSNorm(64), shared).to("cuda")
        assert len(list(model.parameters())) == 3  # the layer is still one after it has moved
        optimizer = torch.optim.AdamW(model.parameters())
        side = torch.cuda.Stream()
        for _ in range(3):
            x = torch.rand(8, 64).to("cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            torch.cuda.current_stream().wait_stream(side)
            q = model(y).to(torch.bfloat16).reshape(1, 4, 8, 16)
            loss = torch.nn.functional.scaled_dot_product_attention(q, q, q).sum()
            if torch.isnan(loss):
                raise SystemExit("not a number")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.save(model.state_dict(), "{folder}/../saved.pt")
            torch.cuda.synchronize()
    """
    (process,) = run(folder, body)
    return process, folder


def test_operators_are_those_of_the_device_in_the_order_of_their_threads(single):
    process, _ = single
    found = leaves(process)
    order = ["aten::mul", "aten::addmm", "aten::clamp_min", "aten::_fused_rms_norm", "aten::_scaled_dot_product_flash_attention"]
    assert [name for name in found if name in order] == [order[0], order[1], order[2], order[3], order[1], order[4]]
    assert "aten::_foreach_mul_" in found
    backward = {each.thread for each in process.operators if each.name == "MmBackward0" or each.name == "AddmmBackward0"}
    assert backward and 0 not in backward
    assert all(each.forward_thread == 0 for each in process.operators if each.name == "AddmmBackward0")


def test_tensors_have_the_shapes_types_and_device_that_the_script_gave_them(single):
    process, _ = single
    (first, *_) = [each for each in process.operators if each.name == "aten::addmm"]
    bias, given, weight = (each for each in first.inputs if isinstance(each, Tensor))
    assert (bias.shape, given.shape, weight.shape, weight.stride) == ((64,), (8, 64), (64, 64), (1, 64))
    assert {each.device for each in (bias, given, weight)} == {"cuda"}
    (flash,) = [each for each in process.operators if each.name == "aten::_scaled_dot_product_flash_attention"]
    assert flash.inputs[0].dtype == "bfloat16"


def test_streams_events_and_waits_are_noted_in_order(single):
    process, _ = single
    assert [(each.kind, each.stream) for each in process.calls if each.kind is not CallKind.READ_VALUE] == [
        (CallKind.SYNCHRONIZE_DEVICE, 0),
        (CallKind.RECORD_EVENT, 0), (CallKind.STREAM_WAITS_EVENT, 1), (CallKind.RECORD_EVENT, 1), (CallKind.STREAM_WAITS_EVENT, 0),
    ]  # fmt: skip
    (doubled,) = [each for each in process.operators if each.name == "aten::mul" and each.leaf]
    assert doubled.stream == 1
    assert [each.kind for each in process.calls].count(CallKind.READ_VALUE) == 1  # `if torch.isnan(loss)`


def test_memory_is_what_lives_at_once(single):
    process, _ = single
    before = sum(each.bytes for each in process.allocations if each.position == 0)
    parameters = (64 * 64 + 64 + 64) * 4
    batch = 8 * 64 * 4
    # As the first step ends: parameters, their gradients and the two moments of AdamW, and some tensors of a batch's size.
    assert 4 * parameters <= before < 4 * parameters + 8 * batch
    freed = [each for each in process.allocations if each.bytes < 0]
    taken = {(each.storage, each.bytes) for each in process.allocations if each.bytes > 0}
    assert freed and all((each.storage, -each.bytes) in taken for each in freed)


def test_nothing_is_saved_and_every_assumption_names_its_line(single):
    process, folder = single
    assert not (folder.parent / "saved.pt").exists()
    notes = {each.code: each.where for each in process.notes}
    assert notes["not-saved"].endswith("train.py:25")
    assert notes["stand-in-value"].endswith("train.py:20")


def test_ranks_that_do_the_same_are_copies_and_exchanges_name_their_group(tmp_path):
    body = """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (int(os.environ["RANK"]), 4, "nccl")
        model = DistributedDataParallel(nn.Linear(512, 1024).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.rand(4, 512, device="cuda")).sum().backward()
            optimizer.step()
        """
    (process,) = run(tmp_path, body, ranks=4)
    assert (process.rank, process.copies) == (0, [1, 2, 3])
    (exchange,) = process.exchanges
    assert (exchange.kind, exchange.dtype) == (CollectiveKind.ALL_REDUCE, "float32")
    assert exchange.input_elements == 512 * 1024 + 1024
    assert [group.ranks for group in process.groups if group.name == exchange.group] == [[0, 1, 2, 3]]
    assert [each.exchange for each in process.calls if each.kind is CallKind.STREAM_WAITS_EXCHANGE] == [0]


def test_what_cannot_be_emulated_is_named_by_its_line_and_nothing_is_left(tmp_path):
    body = """
        model = nn.Linear(4, 4).cuda()
        x = torch.empty(3, 4, device="cuda")
        torch.linalg.lstsq(x, model(x))
        """
    with pytest.raises(LumosError, match=r"train\.py:7: .*aten\.linalg_lstsq.*: its shape depends on values") as raised:
        run(tmp_path, body)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


def test_a_script_that_never_ends_is_stopped_at_the_limit(tmp_path):
    with pytest.raises(LumosError, match=r"not done after 8 s, as rank 0: raise --limit"):
        run(tmp_path, "while True: pass", limit_s=8.0)


def test_a_script_without_enough_steps_says_how_many_it_needs(tmp_path):
    body = """
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.rand(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        """
    with pytest.raises(LumosError, match="ended after 1 steps of its optimizer, 2 are needed"):
        run(tmp_path, body)
