"""Traces of emulated jobs: their copies, what waits for what, and that every verb reads them as they were made."""

import contextlib
import gzip
import json

import pytest
from msgspec import structs

import lumos
from lumos.cost.cluster import load_cluster
from lumos.cost.gemm_model import gemm
from lumos.emulation.device import files
from lumos.emulation.device.files import write_traces
from lumos.emulation.record import CallKind, Group, Tensor
from lumos.errors import LumosError, UsageError
from lumos.vocabulary import CollectiveKind, Grade

H100 = load_cluster("h100")


def step(record, number, *work):
    """A marked step of products, so that the device is what is waited for, and of `work`."""
    a = Tensor((4096, 4096), "bfloat16", (4096, 1), 1, "cuda")

    def product():
        record.operator("aten::mm", inputs=[a, a], outputs=[a], sequence=number)

    record.mark(f"ProfilerStep#{number}", *([product] * 30), *work, lambda: record.call(CallKind.SYNCHRONIZE_DEVICE))


def of_two(drawn, rank=0, copies=(1,), steps=3):
    """A process of two ranks, each of which reduces once a step."""
    record = drawn(rank, 2, groups=[Group("world", "default", [0, 1], 0)], copies=list(copies))
    for number in range(steps):
        step(record, number, lambda: record.exchange(asynchronous=True))
    return record


def rows(path):
    with gzip.open(path) as file:
        return json.load(file)


def test_a_replay_of_an_emulated_job_is_the_job(drawn, tmp_path):
    written = write_traces(tmp_path / "out", [of_two(drawn).process()], H100)
    assert [path.rpartition("/")[2] for path in written.files] == ["rank0.json.gz", "rank1.json.gz"]
    replayed = lumos.replay(lumos.build(lumos.read(tmp_path / "out")))
    assert replayed.mean_abs_error < 1e-4
    job = lumos.read(tmp_path / "out")
    assert [trace.world_size for trace in job.traces] == [2, 2]
    graph = lumos.build(job)
    assert len(graph.rendezvous_offset) - 1 == 3
    assert not len(graph.waiting_unknown)
    assert {evidence.code: evidence.grade for evidence in graph.evidence} == {"durations-modelled": Grade.LIMITED}


def test_a_kernel_takes_what_its_model_says_without_the_factors_of_a_predicted_step(drawn, tmp_path):
    record = drawn()
    step(record, 0)
    write_traces(tmp_path / "out", [record.process()], H100)
    kernels = [row for row in rows(tmp_path / "out" / "rank0.json.gz")["traceEvents"] if row.get("cat") == "kernel"]
    alone = int(gemm(4096, 4096, 4096, H100.accelerator, "bf16", in_step=True).time)
    assert len(kernels) == 30 and {round(row["dur"] * 1e3) for row in kernels} == {alone}


def test_a_copy_is_a_member_of_its_own_groups_and_meets_its_own_peers(drawn, tmp_path):
    """Four ranks: pairs (0, 1) and (2, 3) reduce, and each sends to the rank two further on; ranks 1 and 3 copy 0 and 2."""
    pairs = [Group("0", "tensor", [0, 1], 5), Group("1", "tensor", [2, 3], 5)]
    chains = [Group("2", "pipeline", [0, 2], 6), Group("3", "pipeline", [1, 3], 6)]
    first, last = (drawn(rank, 4, groups=[*pairs, *chains], copies=[rank + 1]) for rank in (0, 2))
    first.exchange(group="0")
    first.exchange(CollectiveKind.SEND, "2", peer=2, asynchronous=True)
    last.exchange(CollectiveKind.RECEIVE, "2", peer=0, asynchronous=True)
    last.exchange(group="1")
    write_traces(tmp_path, [first.process(), last.process()], H100)
    seen = {}
    for rank in range(4):
        for row in rows(tmp_path / f"rank{rank}.json.gz")["traceEvents"]:
            if "nccl" in row["name"]:
                seen[rank, row["args"]["Collective name"]] = row["args"]
    assert seen[1, "allreduce"]["Process Group Name"] == "0" and seen[3, "allreduce"]["Process Group Ranks"] == "[2, 3]"
    assert (seen[0, "send"]["Dst Rank"], seen[1, "send"]["Dst Rank"], seen[3, "recv"]["Src Rank"]) == (2, 3, 1)
    graph = lumos.build(lumos.read(tmp_path))
    assert len(graph.rendezvous_offset) - 1 == 4 and not len(graph.waiting_unknown)


def test_rows_say_what_a_profiler_would(drawn, tmp_path):
    record = of_two(drawn, steps=1)
    record.operator("aten::exp", inside=[lambda: record.allocate(1024, 4)])
    record.allocate(-1024, 4)
    node = "autograd::engine::evaluate_function: MmBackward0"
    record.operator(node, thread=1, leaf=False, sequence=0, forward_thread=0)
    write_traces(tmp_path, [record.process()], H100)
    document = rows(tmp_path / "rank0.json.gz")
    assert document["lumos"] == {"origin": "emulated", "grade": "limited"}
    assert document["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1]
    events = document["traceEvents"]
    (product, *_) = [row for row in events if row["name"] == "aten::mm"]
    assert product["args"]["Input Dims"] == [[4096, 4096]] * 2
    assert product["args"]["Input type"] == ["c10::BFloat16"] * 2
    assert product["args"]["Input Strides"] == [[4096, 1]] * 2
    (undone,) = [row["args"] for row in events if row["name"] == node]  # the profiler counts threads from one; 0 says that it is no node
    assert (product["args"].get("Fwd thread id", 0), undone["Fwd thread id"]) == (0, 1)
    taken, given = [row for row in events if row["name"] == "[memory]"]
    assert [(row["args"]["Bytes"], row["args"]["Total Allocated"]) for row in (taken, given)] == [(1024, 1024), (-1024, 0)]
    (around,) = [row for row in events if row["name"] == "aten::exp"]
    assert around["ts"] <= taken["ts"] < around["ts"] + around["dur"] <= given["ts"]
    arrows = [row for row in events if row.get("cat") == "fwdbwd"]
    assert [row["ph"] for row in arrows] == ["s", "f"] and arrows[0]["tid"] != arrows[1]["tid"]
    (stated, *_) = [row["args"] for row in events if row["name"] == "record_param_comms"]
    assert (stated["In msg nelems"], stated["dtype"], stated["Seq"]) == (1_000_000, "BFloat16", 0)
    waits = [row["args"] for row in events if row.get("name") == "Stream Wait Event"]
    recorded = [row["args"]["correlation"] for row in events if row["name"] == "cudaEventRecord"]
    assert waits and all(wait["wait_on_cuda_event_record_corr_id"] in recorded for wait in waits)


@pytest.mark.parametrize(("limit", "most"), [("_MOST_ROWS", 10), ("_MOST_RANKS", 1)])
def test_of_a_job_with_too_many_rows_or_ranks_each_kind_of_rank_is_written(drawn, tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(files, limit, most)
    written = write_traces(tmp_path, [of_two(drawn).process()], H100)
    assert [path.rpartition("/")[2] for path in written.files] == ["rank0.json.gz"]
    assert written.ranks == 2 and "ranks-left-out" in {found.code for found in written.diagnostics}


@pytest.mark.parametrize(
    ("mine", "others", "said"),
    [
        ([{}], [{"elements": 5}], r"rank 0 makes allreduce of 2,000,000 bytes at train\.py:7 but rank 1 makes allreduce of 10 bytes:"),
        ([{}], [{"kind": CollectiveKind.BROADCAST, "name": "broadcast"}], "rank 1 makes broadcast of 2,000,000 bytes: let all"),
        (["recv", "send"], ["recv", "send"], r"wait for each other for ever: rank 0 makes recv of 2,000,000 bytes at train\.py:7 and rank"),
        *(([way], [way | {"elements": 5}], "") for way in [{"name": "alltoall_base_", "kind": CollectiveKind.ALL_TO_ALL}]),
        (["send", "recv"], ["recv", "send"], ""),
    ],
)
def test_ranks_that_do_not_meet_are_told_with_their_lines(drawn, tmp_path, mine, others, said):
    records = [drawn(rank, 2, groups=[Group("world", "", [0, 1], 0)]) for rank in range(2)]
    for rank, exchanges in enumerate((mine, others)):
        for given in exchanges:
            way = {"kind": CollectiveKind.SEND if given == "send" else CollectiveKind.RECEIVE, "name": given, "peer": 1 - rank}
            records[rank].exchange(line=-rank, **(given if isinstance(given, dict) else way))
            records[rank].call(CallKind.SYNCHRONIZE_DEVICE)
    processes = [structs.replace(record.process(), lines=["train.py:7"]) for record in records]
    with pytest.raises(LumosError, match=said) if said else contextlib.nullcontext():
        write_traces(tmp_path / "out", processes, H100)
    assert (tmp_path / "out").exists() != bool(said)


def test_a_folder_with_other_traces_is_refused(drawn, tmp_path):
    (tmp_path / "rank7.json.gz").write_bytes(b"")
    with pytest.raises(UsageError, match="rank7"):
        write_traces(tmp_path, [of_two(drawn).process()], H100)
