"""Batch normalisation over all ranks: what each of them does, sends, keeps and waits for."""

import pytest
from tests.emulation.emulated_scripts import leaves, run

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.kernels import Kernels

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

#: 2 images of 16 channels, 8 x 8, in 16 bits: 4,096 bytes. Two numbers of fp32 for each channel: 128 bytes.
BODY = """
torch.distributed.init_process_group("nccl")
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(16))).cuda()
assert isinstance(model[0], nn.SyncBatchNorm)
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    image = torch.rand(2, 16, 8, 8, device="cuda", dtype=torch.float16, requires_grad=True)
    out = model(image)
    assert out.shape == image.shape and out.dtype == image.dtype
    out.sum().backward()
    assert image.grad.shape == image.shape
    optimizer.step()
"""
PARTS = {
    "aten::batch_norm_stats": ["batch_norm_collect_statistics_kernel"],
    "aten::batch_norm_gather_stats_with_counts": ["batch_norm_reduce_statistics_kernel"],
    "aten::batch_norm_elemt": ["batch_norm_transform_input_kernel"],
    "aten::batch_norm_backward_reduce": ["batch_norm_backward_reduce_kernel"],
    "aten::batch_norm_backward_elemt": ["batch_norm_backward_elemt_kernel"],
}


def test_it_runs_in_parts_on_the_kernels_that_torch_has_for_them(tmp_path):
    process = run(tmp_path, BODY, ranks=4)[0]
    parts = {each.name: each for each in process.operators if each.name in PARTS}
    assert [(each.dtype, each.shape) for each in parts["aten::batch_norm_stats"].outputs] == [("float32", (16,))] * 2
    kernels = Kernels(load_cluster("h100").accelerator)
    assert [name for name in leaves(process) if name in PARTS] == list(PARTS)
    launched = {name: kernels(parts[name]) for name in PARTS}
    assert {name: [each.name.split(" ")[0] for each in found] for name, found in launched.items()} == PARTS
    moved = [found[0].work.bytes for found in launched.values()]
    joined = 4 * 16 * 4 * 2 + 4 * 4  # means and deviations of four ranks, and their counts
    running = 128  # both of fp32, read and written
    assert moved == [
        4096 + 128, joined + running + running + 128, 2 * 4096 + 128 + 128, 2 * 4096 + 128 + 64 + 4 * 64,
        3 * 4096 + 3 * 64 + 128 + 4 * 4,
    ]  # fmt: skip
    assert not kernels.unknown
