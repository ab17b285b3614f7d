"""CUDA graphs of emulated scripts: noted when they are captured, launched by one call when they are replayed."""

import gzip
import json

import pytest
from tests.emulation.emulated_scripts import leaves, run

from lumos.cost.cluster import load_cluster
from lumos.emulation.device.files import write_traces
from lumos.emulation.record import CallKind

pytest.importorskip("torch", reason="torch is not installed, and scripts are emulated with it")


def test_a_captured_step_is_launched_whole_by_each_replay_and_its_warming_up_is_no_step(tmp_path):
    body = """
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
        rows = torch.rand(2, 8, device="cuda")
        def step():
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
        for _ in range(3): step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            step()
        while True:
            rows.copy_(torch.rand(2, 8, device="cuda"))
            graph.replay()
        """
    (process,) = run(tmp_path, body)
    assert leaves(process) == ["aten::empty", "aten::uniform_", "aten::copy_"]
    (captured,) = process.graphs
    assert {"aten::addmm", "aten::mm", "aten::sum", "aten::_foreach_add_"} <= {each.name for each in captured}
    assert [each.graph for each in process.calls if each.kind is CallKind.LAUNCH_GRAPH] == [0]
    write_traces(tmp_path / "out", [process], load_cluster("h100"))
    names = [row["name"] for row in json.loads(gzip.decompress((tmp_path / "out/rank0.json.gz").read_bytes()))["traceEvents"]]
    assert names.count("cudaGraphLaunch") == 1 and any("_foreach_add" in name for name in names)


def test_exchanges_of_a_captured_step_are_made_again_by_each_replay_between_parts_of_it(tmp_path):
    body = """
        torch.distributed.init_process_group("nccl")
        model = nn.Linear(8, 4).cuda()
        rows = torch.rand(2, 8, device="cuda")
        sums = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work = torch.distributed.all_reduce(sums, async_op=True)
            out = model(rows)
            work.wait()
            out = out + sums
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            graph.replay()
            model(rows).sum().backward()
            optimizer.step()
        """
    (process,) = run(tmp_path, body, ranks=2)
    assert [each.sequence for each in process.exchanges] == [1], "the first replay was not recorded"
    calls = [(each.kind, each.graph, each.exchange) for each in process.calls]
    assert calls == [(CallKind.LAUNCH_GRAPH, 0, -1), (CallKind.STREAM_WAITS_EXCHANGE, -1, 0), (CallKind.LAUNCH_GRAPH, 1, -1)]
    assert [[each.name for each in part][-1] for part in process.graphs] == ["aten::addmm", "aten::add"]
