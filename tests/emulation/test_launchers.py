"""The ways in which people start scripts of several processes, and what such scripts agree on between them."""

import textwrap

import pytest
from tests.emulation.emulated_scripts import run

from lumos.emulation.record import CallKind

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")

LAUNCHER = ["-m", "torch.distributed.run", "--nproc-per-node"]
TRAINING = """
    model = DistributedDataParallel(nn.Linear(64, 64).cuda(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.rand(4, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
"""


def test_torchs_launcher_starts_one_process_and_ranks_agree_on_known_values(tmp_path):
    body = f"""
        import importlib.util, os
        assert importlib.util.find_spec("torch") is not None  # as transformers asks, before it imports torch
        import torch
        from torch import nn
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("nccl")
        assert dist.get_world_size() == 4 and torch.cuda.device_count() == 4

        def agreed(decision):
            votes = torch.tensor(int(decision), device="cuda")
            dist.all_reduce(votes)
            return bool(votes == dist.get_world_size())

        assert agreed(True) and not agreed(False)
        state = torch.Generator().get_state().to("cuda")
        dist.broadcast(state, src=0)
        torch.Generator().set_state(state.cpu())
        pinned = torch.zeros(8, pin_memory=True)
        assert pinned.is_pinned() and not torch.zeros(8).is_pinned()
        moved = nn.Parameter(torch.zeros(8))
        moved.data = moved.to("cuda")
        assert moved.device.type == "cuda"
        moved.record_stream(torch.cuda.current_stream())
        {textwrap.indent(textwrap.dedent(TRAINING), " " * 8).strip()}
        """
    (process,) = run(tmp_path, body, [*LAUNCHER, "4"], ranks=4, head="")
    assert (process.rank, process.copies) == (0, [1, 2, 3])
    assert "stand-in-value" not in {each.code for each in process.notes}


def test_a_script_that_starts_its_own_processes_goes_on_as_one_and_rank_0_may_log(tmp_path):
    body = f"""
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        def work(rank, world):
            dist.init_process_group("nccl", rank=rank, world_size=world)
            assert (rank, world) == (dist.get_rank(), dist.get_world_size())
            {textwrap.indent(textwrap.dedent(TRAINING), " " * 12).strip()}
                if rank == 0:
                    print(loss.item())

        if __name__ == "__main__":
            torch.multiprocessing.spawn(work, args=(4,), nprocs=4)
        """
    first, other = run(tmp_path, body, ranks=4)
    assert (first.rank, first.copies, other.rank, other.copies) == (0, [], 1, [2, 3])
    reads = [sum(each.kind is CallKind.READ_VALUE for each in process.calls) for process in (first, other)]
    assert reads == [1, 0]


BUCKETS = """
    torch.distributed.init_process_group("nccl")
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(20)]).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model{})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(4, 1024, device="cuda")).sum().backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        # Of 4.2 MB each: a bucket is full once it has reached 1 MiB, the first, or 25 MiB. As real runs on two CPUs have them.
        ("", [1, 7, 7, 5]),
        (", bucket_cap_mb=10", [3, 3, 3, 3, 3, 3, 2]),
        (", static_graph=True, bucket_cap_mb=50", [13, 7]),
    ],
)
def test_gradients_are_added_up_in_buckets_of_the_size_that_the_script_asks_for(tmp_path, options, layers):
    process = run(tmp_path, BUCKETS.format(options), ranks=2)[0]
    assert [each.input_elements for each in process.exchanges] == [1024 * 1025 * each for each in layers]
