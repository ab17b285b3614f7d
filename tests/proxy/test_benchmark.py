"""The generated benchmark, run as its users run it: in a process of its own."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.conftest import Write, annotation, mm, node, operator, tensor

from lumos.errors import LumosError
from lumos.proxy import benchmark
from lumos.proxy.generation import generate_program
from lumos.proxy.running import run_benchmark

pytest.importorskip("torch", reason="torch is not installed, and a benchmark runs its operators")

PROGRAM = Path(benchmark.__file__).with_name("benchmark.py")
FAST = ("--device", "cpu", "--warmup", "1", "--repeat", "2")


def make(path: Path, **options: Any) -> Path:
    folder = path.parent / "proxy"
    generate_program([str(path)], folder, **options)
    return folder


def outcomes(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {row["name"]: (row["outcome"], row["reason"]) for row in result["not_real"]}


def test_a_step_is_run_for_real_and_compared(kineto: Write) -> None:
    result = run_benchmark(make(kineto(annotation("ProfilerStep#1", 0, 3000), mm(100, 50, 8), mm(2000, 100, 8))), options=FAST)
    assert result["coverage"] == {"real": 1.0, "stand_in": 0.0, "skipped": 0.0}
    assert result["recorded_step_ns"] == 2_000_000
    assert result["replayed_step_ns"] >= 1_850_000  # the time between the operators is spun
    assert result["error"] == (result["replayed_step_ns"] - 2_000_000) / 2_000_000
    assert 0 < result["utilization"] < 0.3  # the share of the step in its two small products
    assert result["by_class"][0]["count"] == len([busy for busy in result["processor_ns"] if busy > 0]) == 2


def test_operators_that_only_call_others_give_way_to_what_they_called(kineto: Write) -> None:
    linear = operator("aten::linear", 0, 100, inputs=[("float", [4, 4], ""), ("float", [4, 4], ""), ("", [], "")])
    result = run_benchmark(make(kineto(linear, mm(10, 50))), options=FAST)
    assert [row["name"] for row in result["by_class"]] == ["aten::mm"]


def test_what_cannot_run_stands_in_for_its_time_and_says_why(kineto: Write) -> None:
    rows = [
        operator("mylib::fused", 0, 2000, inputs=[("float", [4], "")]),
        operator("aten::cudnn_batch_norm", 2000, 1000, inputs=[("float", [2, 2, 4, 4], "")]),
        operator("aten::relu", 3000, 1000),
        operator("aten::from_file", 4000, 5, inputs=[("", [], "/etc/passwd")]),
        operator("aten::_assert_async", 4005, 5, inputs=[("float", [1], "")]),
        operator("aten::mm", 4010, 10, inputs=[("float", [2, 3], ""), ("float", [2, 3], "")]),
        mm(4020, 10),
    ]
    result = run_benchmark(make(kineto(*rows)), options=FAST)
    found = outcomes(result)
    assert {name: outcome for name, (outcome, _) in found.items()} == dict.fromkeys(
        ("mylib::fused", "aten::cudnn_batch_norm", "aten::relu", "aten::from_file", "aten::_assert_async", "aten::mm"), "stand_in"
    )
    assert found["mylib::fused"][1].startswith("refused: its namespace")
    assert found["aten::relu"][1] == "its arguments were not recorded"
    assert found["aten::from_file"][1] == found["aten::_assert_async"][1] == "refused: it names a file, or neither returns nor writes"
    assert "cannot be multiplied" in found["aten::mm"][1]
    assert result["operators"] == {"real": 1, "stand_in": 6, "skipped": 0}
    assert result["replayed_step_ns"] >= 4_000_000


def test_indices_are_in_range(kineto: Write) -> None:
    rows = [
        operator("aten::embedding", 0, 10, inputs=[("float", [50, 4], ""), ("long int", [64], ""), ("Scalar", [], "-1")]),
        operator("aten::index_select", 20, 10, inputs=[("float", [3, 4], ""), ("Scalar", [], "0"), ("long int", [64], "")]),
    ]
    assert run_benchmark(make(kineto(*rows)), options=FAST)["coverage"]["real"] == 1.0


def test_an_execution_trace_alone_runs_with_its_own_data_flow(executed: Write) -> None:
    a, b, c = tensor(10, 20, [4, 8]), tensor(11, 21, [8, 4]), tensor(12, 22, [4, 4])
    turned = tensor(13, 22, [4, 4])
    path = executed(
        node(3, "aten::mm", inputs=(a, b), outputs=(c,), op_schema="aten::mm(Tensor self, Tensor mat2) -> Tensor"),
        node(4, "aten::t", inputs=(c,), outputs=(turned,), op_schema="aten::t(Tensor(a) self) -> Tensor(a)"),
        node(5, "aten::add", inputs=(c, turned, (1, [], "Int")), outputs=(a,), op_schema="aten::add.Tensor(x) -> x"),
        node(6, "triton_poi_0", inputs=(c,), kernel_backend="triton"),
    )
    result = run_benchmark(make(path), options=FAST)
    assert result["operators"] == {"real": 3, "stand_in": 0, "skipped": 1}
    assert (result["recorded_step_ns"], result["error"]) == (None, None)
    assert outcomes(result)["triton_poi_0"] == ("skipped", "a kernel that no operator launched")


def test_hostile_names_stay_data(kineto: Write) -> None:
    path = kineto(mm(0, 10))
    mark = path.parent / "mark"
    names = [
        f'"); import os; os.system("touch {mark}"); ("',
        f"aten::mm\n__import__('os').system('touch {mark}')",
        f"load_library::{mark}",
        "aten::__class__",
        "a\x1b[2Jb::c",
    ]
    rows = [
        row for at, name in enumerate(names) for row in (operator(name, 100 * at, 10, inputs=[("float", [4], "")]), mm(100 * at + 20, 10))
    ]
    folder = make(kineto(*rows, *(annotation(name, 100 * at, 15) for at, name in enumerate(names))))
    assert (folder / "benchmark.py").read_bytes() == PROGRAM.read_bytes()
    assert PROGRAM.read_bytes().count(b"\n") <= 600  # so that a person can read what is run
    assert not any(name in (folder / "README.md").read_text() for name in names)
    done = subprocess.run(
        [sys.executable, str(folder / "benchmark.py"), *FAST], capture_output=True, text=True, check=True, cwd=folder.parent
    )
    assert not mark.exists()
    assert "\x1b" not in done.stdout
    assert Counter(p.name for p in path.parent.iterdir()) == Counter(["rank0.json", "proxy"])


def test_tensors_share_memory_where_they_do_not_fit_and_the_largest_operators_stand_in(kineto: Write) -> None:
    """Six products, of whose matrices more than one stay in memory; 16 MiB each. 1 MiB is not enough for any of them."""
    folder = make(kineto(*(mm(i * 100, 10, 2048) for i in range(0, 90, 15)), mm(9000, 10, 4)))
    free = run_benchmark(folder, options=FAST)
    assert not free["memory"]["shared"]
    assert free["coverage"]["real"] == 1.0
    shared = run_benchmark(folder, options=(*FAST, "--max-memory", str(100 * 2**20)))
    assert shared["coverage"]["real"] == 1.0
    small = run_benchmark(folder, options=(*FAST, "--max-memory", str(2**20)))
    assert small["memory"]["shared"]
    assert outcomes(small)["aten::mm"] == ("stand_in", "its tensors do not fit into memory")


def test_two_processes_transfer_for_real_and_modes_leave_parts_out(kineto: Write) -> None:
    reduce = operator("c10d::allreduce_", 0, 50, inputs=[("TensorList", [[1000]], "")])
    header = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}}
    kineto(reduce, mm(60, 10), name="rank0.json", **header)
    header["distributedInfo"]["rank"] = 1
    folder = kineto(reduce, mm(60, 10), name="rank1.json", **header).parent
    proxy = folder / "proxy"
    generate_program([str(folder)], proxy)
    both = run_benchmark(proxy, options=FAST)
    assert len(both["ranks"]) == 2
    assert both["operators"] == {"real": 2, "stand_in": 0, "skipped": 0}
    talk = run_benchmark(proxy, options=(*FAST, "--mode", "communication"))
    assert (talk["operators"]["real"], talk["error"]) == (1, None)
    compute = run_benchmark(proxy, 1, options=(*FAST, "--mode", "compute"))
    assert outcomes(compute)["c10d::allreduce_"] == ("skipped", "not part of --mode compute")
    alone = run_benchmark(proxy, 1, options=FAST)
    assert outcomes(alone)["c10d::allreduce_"] == ("stand_in", "a transfer between ranks, run in one process")


def test_the_loop_closes_through_replay(kineto: Write) -> None:
    from lumos.analyze.replay import replay
    from lumos.graph.build import build
    from lumos.simulation import simulate
    from lumos.trace import read

    rows = [mm(i * 40, 20, 32) for i in range(60)]
    path = kineto(*rows)
    run_benchmark(make(path), options=(*FAST, "--profile", str(path.parent / "profile")))
    graph = build(read(path.parent / "profile"))
    result = replay(graph, simulate(graph))
    assert len(result.steps) == 3
    assert all(abs(step.error) < 0.01 for step in result.steps)


def test_a_rank_that_is_not_there_and_a_file_of_another_version_are_named(kineto: Write, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make(kineto(mm(0, 10)))
    with pytest.raises(LumosError):
        run_benchmark(folder, options=(*FAST, "--rank", "5"))
    assert "rank 5 is not in trace.json, which has [0]" in capfd.readouterr().err
    trace = json.loads((folder / "trace.json").read_text())
    (folder / "trace.json").write_text(json.dumps({**trace, "version": 99}))
    with pytest.raises(LumosError):
        run_benchmark(folder, options=FAST)
    assert "generate it again" in capfd.readouterr().err


def test_every_kind_of_transfer_runs_between_two_processes(kineto: Write) -> None:
    kinds = ("allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")
    for rank in (0, 1):
        rows = []
        for place, kind in enumerate((*kinds, "send" if rank == 0 else "recv")):
            facts = {"Collective name": kind, "dtype": "Float", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2}
            peer = {"Dst Rank": 1} if kind == "send" else {"Src Rank": 0} if kind == "recv" else {}
            rows.append(operator("record_param_comms", 100 * place, 50, **facts, **peer))
        header = {"backend": "gloo", "rank": rank, "world_size": 2}
        path = kineto(*rows, mm(2000, 10), name=f"rank{rank}.json", distributedInfo=header)
    generate_program([str(path.parent)], path.parent / "proxy")
    result = run_benchmark(path.parent / "proxy", options=FAST)
    assert [(rank["operators"]["real"], outcomes(rank)) for rank in result["ranks"]] == [(9, {}), (9, {})]


@pytest.mark.parametrize("processes", [3, 2, 6])
def test_unequal_parts_run_with_all_ranks_with_fewer_and_with_more(kineto: Write, processes: int) -> None:
    """Rank r of three sends 3, 6 and 9 elements to each; of the parts only the totals are recorded. Rank 1 also sends to rank 2.

    Six processes run every rank twice: the parts go to all six, the message stays within each copy of the job.
    """
    for rank in range(3):
        facts = {"Collective name": "all_to_allv", "dtype": "Float", "In msg nelems": 9 * (rank + 1), "Out msg nelems": 18, "Group size": 3}
        rows = [operator("record_param_comms", 0, 50, **facts)]
        if rank:
            peer = {"Collective name": "send", "Dst Rank": 2} if rank == 1 else {"Collective name": "recv", "Src Rank": 1}
            rows.append(operator("record_param_comms", 100, 50, **{**facts, **peer}))
        header = {"backend": "gloo", "rank": rank, "world_size": 3}
        path = kineto(*rows, mm(2000, 10), name=f"rank{rank}.json", distributedInfo=header)
    _, notes = generate_program([str(path.parent)], path.parent / "proxy")
    assert [note.code for note in notes] == ["splits-filled"]
    result = run_benchmark(path.parent / "proxy", processes, options=FAST)
    assert [rank["operators"]["real"] for rank in result["ranks"]] == ([2, 2] if processes == 2 else [2, 3, 3] * (processes // 3))
    assert [rank["operators"]["stand_in"] for rank in result["ranks"]] == ([0, 1] if processes == 2 else [0] * processes)
    assert (result["error"] is None) == (processes == 6 or result["recorded_step_ns"] is None)


def test_the_groups_of_a_part_of_the_ranks_are_repeated_for_more_processes(kineto: Write) -> None:
    """Ranks 0 and 1 of two, each pair a group of its own by name: with four processes there are two such pairs."""
    groups = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "2", "ranks": [2, 3]}]
    for rank in range(4):
        facts = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2}
        rows = [operator("record_param_comms", 0, 50, **facts, **{"Process Group Name": str(1 + rank // 2)})]
        header = {"backend": "gloo", "rank": rank, "world_size": 4, "pg_config": groups}
        path = kineto(*rows, mm(2000, 10), name=f"rank{rank}.json", distributedInfo=header)
    generate_program([str(path.parent)], path.parent / "proxy")
    result = run_benchmark(path.parent / "proxy", 8, options=FAST)
    assert [rank["operators"] for rank in result["ranks"]] == [{"real": 2, "stand_in": 0, "skipped": 0}] * 8


def test_the_peak_is_what_the_tensors_of_the_step_take_at_once(kineto: Write) -> None:
    """Three matrices of 16 MiB at least, whichever share memory; the process and its libraries do not count."""
    result = run_benchmark(make(kineto(mm(0, 10, 2048))), options=FAST)
    assert 32 * 2**20 <= result["peak_memory_bytes"] < 200 * 2**20


def test_synchronising_the_device_is_no_operator(kineto: Write) -> None:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 7, "tid": 1, "ts": 20, "dur": 5, "args": {}}
    result = run_benchmark(make(kineto(mm(0, 10), call, mm(30, 10))), options=FAST)
    assert result["operators"] == {"real": 2, "stand_in": 0, "skipped": 0}
