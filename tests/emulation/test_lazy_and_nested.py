"""What tells its shapes otherwise than by its tensors: lazy modules, nested tensors, pipelines of traced models."""

import pytest
from tests.emulation.emulated_scripts import STEPS, run

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.kernels import Kernels

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

LAZY_AND_NESTED = """
net = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4, device="cuda"))
net[:2](torch.zeros(2, 3, 6, 6))
net = net.cuda()
net(torch.zeros(2, 3, 6, 6, device="cuda"))
assert [tuple(each.shape) for each in net.parameters()] == [(8, 3, 3, 3), (8,), (8,), (8,), (4, 128), (4,)]
assert all(each.is_cuda and isinstance(each, nn.Parameter) for each in net.parameters()) and net[1].running_mean.is_cuda
for _ in range(2):
    for dtype in (torch.bfloat16, torch.float32):
        rows = [torch.ones(length, 192, dtype=dtype, device="cuda", requires_grad=True) for length in (30, 90, 60)]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        parts = (each.unflatten(-1, [2, 32]).transpose(1, 2) for each in nested.chunk(3, -1))
        out = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(-2).unbind()
        torch.cat(out).sum().backward()
        assert [len(each) for each in out] == [30, 90, 60] and rows[1].grad.shape == (90, 192)
    assert len(torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged).cuda().unbind()[1]) == 5
    net(torch.zeros(2, 3, 6, 6, device="cuda")).sum().backward()
    step()
"""
TRACED = """
    from torch.distributed import pipelining
    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    net, split = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), {"1": pipelining.SplitPoint.BEGINNING}
    stage = pipelining.pipeline(net, (torch.zeros(2, 8),), split_spec=split).build_stage(rank, device)
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=lambda out, wanted: (out - wanted).sum())
    optimizer = torch.optim.SGD(stage.submod.parameters(), 0.1)
    while True:
        schedule.step(*([] if rank else [torch.zeros(4, 8, device=device)]), target=torch.zeros(4, 4, device=device) if rank else None)
        optimizer.step()
"""


def test_stages_of_a_traced_model_pass_on_what_it_says(tmp_path):
    sent = [[each.input_elements for each in one.exchanges if each.kind == "send"] for one in run(tmp_path, TRACED, ranks=2)]
    assert sent == [[32, 32], [32, 32]], "activations of two microbatches, and their gradients"


def test_lazy_modules_get_their_shapes_and_nested_tensors_are_rows_one_after_the_other(tmp_path):
    (process,) = run(tmp_path, STEPS + LAZY_AND_NESTED)
    kernels = Kernels(load_cluster("h100").accelerator)
    found = [each for each in process.operators if "attention_" in each.name and each.leaf]
    works = [kernels(each)[0].work for each in found]
    assert [(work.kernel, work.batch, work.queries, work.keys) for work in works] == [(k, 3, 60, 60) for k in ("fa2", "fa2", "fa1", "fa1")]
    assert "equal-lengths" in {note.code for note in process.notes} and not kernels.unknown
