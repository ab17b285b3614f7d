"""What a script does while it is emulated: which operators, streams and exchanges it leaves, and what it is kept from."""


import pytest
from tests.emulation.emulated_scripts import leaves, run

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.peak import peak
from lumos.emulation.record import CallKind, MemoryKind, Tensor
from lumos.vocabulary import CollectiveKind

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One script with most of what a process can ask of its device, as its record and the folder it ran in."""
    folder = tmp_path_factory.mktemp("single")
    body = f"""
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.get_device_properties(0).multi_processor_count == 132
        for few, many in ((10, 1 << 21), (11, 1 << 22), (10, 1 << 21)):  # what is small on the host has data, also where it is made again
            assert type(torch.arange(few)) is torch.Tensor and type(torch.arange(many)) is not torch.Tensor
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
    order = ["aten::mul", "aten::addmm", "aten::clamp_min", "aten::_fused_rms_norm", "aten::_flash_attention_forward"]
    assert [name for name in found if name in order] == [order[0], order[1], order[2], order[3], order[1], order[4]]
    assert "aten::_foreach_mul_" in found
    backward = {each.thread for each in process.operators if each.name == "MmBackward0" or each.name == "AddmmBackward0"}
    assert backward and 0 not in backward
    assert all(each.forward_thread == 0 for each in process.operators if each.name == "AddmmBackward0")


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
    library = {each.storage for each in process.owners if each.module == "workspace of cuBLAS"}
    before = sum(each.bytes for each in process.allocations if each.position == 0 and each.storage not in library)
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
    assert notes["not-saved"].endswith("train.py:27")
    assert notes["stand-in-value"].endswith("train.py:22")


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


def test_a_script_that_only_calls_its_model_for_ever_is_recorded_by_its_calls(tmp_path):
    body = """
        model = nn.Linear(8, 4).cuda()
        with torch.inference_mode():
            while True:
                mask = torch.randint(0, 2, (2, 3), device="cuda")
                if torch.all(mask == 1):  # what is asked of all elements holds
                    nn.functional.dropout(nn.ReLU()(model(torch.rand(2, 8, device="cuda"))), training=False)  # ReLU is no model
        """
    (process,) = run(tmp_path, body)
    assert "aten::addmm" in leaves(process)
    assert "aten::clone" not in {each.name for each in process.operators}  # dropout gives back what it got
    assert {"stand-in-all"} <= {each.code for each in process.notes}


def test_what_an_operator_calls_to_clear_its_result_is_below_it_and_gives_the_memory(tmp_path):
    body = """
        table, net = nn.Embedding(1000, 16).cuda(), nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)).cuda()
        optimizer = torch.optim.SGD([*table.parameters(), *net.parameters()], 0.1)
        for _ in range(2):
            found = table(torch.zeros(4, 8, dtype=torch.long, device="cuda")).sum() + net(torch.rand(4, 3, 16, 16, device="cuda")).sum()
            optimizer.zero_grad()
            found.backward()
            assert table.weight.grad.sum().item() == 4 * 8 * 16, "known as before"
            optimizer.step()
        """
    (process,) = run(tmp_path, body)
    for name, called in (("embedding_dense", "zeros"), ("max_pool2d_with_indices", "zero_"), ("_adaptive_avg_pool2d", "zeros_like")):
        outer = next(each for each in process.operators if each.name == f"aten::{name}_backward")
        inside = [each for each in process.operators if outer.begin < each.begin and each.end < outer.end]
        assert outer.leaf and inside[0].name == f"aten::{called}" and inside[-1].name == "aten::fill_"
        assert {each.outputs[0].storage for each in inside} == {outer.outputs[0].storage}
        assert len([each for each in process.allocations if each.storage == outer.outputs[0].storage and each.bytes > 0]) == 1


TENSOR_PARALLEL = """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Linear(32, 128, bias=False), nn.SiLU(), nn.Linear(128, 32, bias=False)).cuda()
    parallelize_module(model, init_device_mesh("cuda", (2,)), {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.rand(64, 32, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """


def test_a_rank_works_on_its_part_of_distributed_tensors_alone(tmp_path):
    process, *_ = run(tmp_path, TENSOR_PARALLEL, ranks=2)
    shapes = {
        each.name: [tensor.shape for tensor in (*each.inputs, *each.outputs) if isinstance(tensor, Tensor)]
        for each in process.operators
        if each.leaf and each.name in ("aten::silu", "aten::silu_backward")
    }
    assert shapes == {"aten::silu": [(64, 64)] * 2, "aten::silu_backward": [(64, 64)] * 3}
    # Forward two, backward one for each weight and one for what lies between the layers: the input needs no gradient.
    assert [leaves(process).count(name) for name in ("aten::mm", "aten::_fused_adamw_")] == [5, 1]


def test_switches_of_tf32_and_pinned_memory_are_those_of_the_moment(tmp_path):
    body = """
        model, image = nn.Linear(64, 64).cuda(), nn.Conv2d(4, 4, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            for precision in ("highest", "high"):
                torch.set_float32_matmul_precision(precision)
                torch.backends.cudnn.allow_tf32 = precision == "highest"
                model(torch.ones(8, 64, device="cuda")), image(torch.ones(2, 4, 8, 8, device="cuda"))
            kept = torch.ones(1000)
            kept.cuda(), kept.pin_memory()[:999].cuda(non_blocking=True), image.weight[:, [0, 2]]
            assert next(iter(torch.utils.data.DataLoader(kept, 8, pin_memory=True))).is_pinned() and not kept.is_pinned()
            optimizer.step()
        """
    (process,) = run(tmp_path, body)
    found = [launch for each in process.operators for launch in Kernels(load_cluster("h100").accelerator)(each)]
    assert [each.name[-4:] for each in found if "gemm" in each.name] == ["fp32", "tf32", "tf32", "fp32"]
    pinned, pageable = (next(each.work.ns for each in found if f"({kind} -> Device" in each.name) for kind in ("Pinned", "Pageable"))
    assert pageable > pinned


ON_HOST = """
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
    (process,) = run(tmp_path, ON_HOST, cluster="cpu")
    outer = next(each for each in process.operators if each.name == "aten::conv2d")
    inside = [each.name for each in process.operators if each.thread == outer.thread and outer.begin < each.begin < outer.end]
    assert inside == ["aten::convolution", "aten::_convolution", "aten::mkldnn_convolution"]
    assert {f"aten::{name}" for name in ("mkldnn_convolution", "convolution_backward", "relu", "_fused_adamw_")} <= set(leaves(process))
    assert next(each.inputs[1] for each in process.operators if each.name == "aten::reshape") == [2, 512]
    assert peak(process).by_kind()[MemoryKind.PARAMETER] == 1024 + 512
