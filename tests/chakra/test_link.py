"""Linking uses ids where they are right and the order of calls elsewhere, and reports where it fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lumos
from lumos.chakra.linked import link_traces
from lumos.errors import LumosError, TraceError
from lumos.simulation import simulate
from lumos.trace.chakra.et import stream
from lumos.trace.execution_trace import ExecutionTrace, read
from lumos.trace.table import Category, Trace

NAMES = ("aten::mm", "aten::add", "aten::relu")


def files(folder: Path, steps: int, observed: range, *, ids: str = "", extra: str = "", shape: int = 4) -> tuple[ExecutionTrace, Trace]:
    """A profiler file of some steps of three operators, each with a child that launches a kernel, and the observer's file of
    a range of these steps. ids: "" leaves out the record function's ids, "lie" shifts them to the next operator."""
    rows: list[dict[str, Any]] = []
    nodes: list[dict[str, Any]] = [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "parent": 1, "tid": 0}]
    number = 1
    for step in range(steps):
        for k, name in enumerate(NAMES):
            at, number = 100 * step + 30 * k, number + 2
            dims = {"Input Dims": [[4, 4]]}
            for offset, (label, begin, dur) in enumerate(((name, at, 20), (f"{name}_kernel", at + 2, 10))):
                tag = {"Record function id": number + offset + (2 if ids == "lie" else 0)} if ids else {}
                rows.append(
                    {"ph": "X", "cat": "cpu_op", "name": label, "pid": 1, "tid": 1, "ts": begin, "dur": dur, "args": {**dims, **tag}}
                )
            launch = {"correlation": number}
            rows.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 4, "dur": 2, "args": launch}
            )
            where = {**launch, "device": 0, "stream": 7}
            rows.append({"ph": "X", "cat": "kernel", "name": f"k{k}", "pid": 0, "tid": 7, "ts": at + 8, "dur": 5, "args": where})
            if step in observed:
                io = {"inputs": [[1, 2, 0, 16, 4, "cuda:0"]], "input_shapes": [[shape, 4]], "input_types": ["Tensor(float)"]}
                nodes.append({"id": number, "rf_id": number, "name": name, "parent": 1, "tid": 1, **io})
                if extra:
                    nodes.append({"id": number + 900, "name": extra, "parent": number, "tid": 1})
                nodes.append({"id": number + 1, "rf_id": number + 1, "name": f"{name}_kernel", "parent": number, "tid": 1, **io})
    (folder / "et.json").write_text(json.dumps({"schema": "1.0.1", "nodes": nodes}))
    (folder / "kineto.json").write_text(json.dumps({"traceEvents": rows}))
    return read(folder / "et.json"), lumos.read(folder / "kineto.json").traces[0]


def names_agree(observed: ExecutionTrace, trace: Trace, node: Any) -> bool:
    rows = np.flatnonzero(node >= 0)
    return all(trace.strings[trace.name[r]] == observed.strings[observed.name[node[r]]] for r in rows)


def test_ids_link_where_names_agree(tmp_path: Path) -> None:
    observed, trace = files(tmp_path, 5, range(5), ids="true")
    found = link_traces(observed, trace)
    assert (found.kernels, found.shared, found.linked, found.link_rate) == (15, 15, 15, 1.0)
    assert found.by_method == {"id": 15, "alignment": 0, "enclosing": 0, "none": 0}
    assert found.diagnostics == ()
    assert found.confidence == pytest.approx(1 / 3)  # of shapes alone


def test_ids_that_lie_are_not_believed(tmp_path: Path) -> None:
    observed, trace = files(tmp_path, 5, range(5), ids="lie")
    found = link_traces(observed, trace)
    assert found.by_method["alignment"] == 15
    assert names_agree(observed, trace, found.node)


def test_alignment_finds_what_ids_say(tmp_path: Path) -> None:
    """Without ids the same pair links to the same nodes."""
    observed, trace = files(tmp_path, 5, range(5), ids="true")
    stripped, bare = files(tmp_path, 5, range(5))
    assert link_traces(stripped, bare).node.tolist() == link_traces(observed, trace).node.tolist()


def test_a_window_of_the_steps_links_in_one_stretch(tmp_path: Path) -> None:
    observed, trace = files(tmp_path, 20, range(4, 8), extra="label")
    found = link_traces(observed, trace)
    assert (found.kernels, found.shared, found.linked) == (60, 12, 12)
    rows = np.flatnonzero((found.node >= 0) & (trace.category == Category.OPERATOR))
    assert len(rows) == 24 and trace.start[rows].max() - trace.start[rows].min() < 400_000
    assert [d.code for d in found.diagnostics] == ["operators-differ"]


def test_a_kernel_has_the_operator_around_it_where_its_own_is_absent(tmp_path: Path) -> None:
    _, trace = files(tmp_path, 3, range(3))
    data = json.loads((tmp_path / "et.json").read_text())
    data["nodes"] = [n for n in data["nodes"] if n["name"] != "aten::mm_kernel"]
    (tmp_path / "et.json").write_text(json.dumps(data))
    found = link_traces(read(tmp_path / "et.json"), trace)
    assert found.by_method == {"id": 0, "alignment": 6, "enclosing": 3, "none": 0}
    assert (found.shared, found.linked) == (6, 6)


def test_files_of_different_runs_are_detected(tmp_path: Path) -> None:
    observed, trace = files(tmp_path, 10, range(10), shape=8)
    found = link_traces(observed, trace)
    assert [d.code for d in found.diagnostics] == ["shapes-differ"]
    assert (found.confidence, found.linked, found.link_rate) == (0.0, 0, 0.0)
    with pytest.raises(LumosError, match="60 of 60 operators have other tensor shapes"):
        lumos.chakra.link(tmp_path / "et.json", tmp_path / "kineto.json")


def test_a_small_pair_has_nothing_that_confirms_it(tmp_path: Path) -> None:
    found = link_traces(*files(tmp_path, 2, range(2)))
    assert (found.confidence, found.link_rate) == (None, 1.0)
    assert [d.code for d in found.diagnostics] == ["pair-unconfirmed"]


def with_facts(folder: Path, pid: int, offsets: tuple[int, ...]) -> ExecutionTrace:
    """The pair of ten steps whose observer ran in process `pid` and whose autograd numbers are offset by these, in turn."""
    files(folder, 10, range(10))
    observed, profiled = (json.loads((folder / f"{name}.json").read_text()) for name in ("et", "kineto"))
    observed["pid"] = pid
    operators = [row for row in profiled["traceEvents"] if row["cat"] == "cpu_op"]
    for i, (node, row) in enumerate(zip(observed["nodes"][1:], operators, strict=True)):
        node["seq_id"], row["args"]["Sequence number"] = i, i + offsets[i % len(offsets)]
    for name, data in (("et", observed), ("kineto", profiled)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    return read(folder / "et.json")


def test_the_step_is_the_one_whose_sequence_numbers_agree(tmp_path: Path) -> None:
    """Ten steps that are alike; the observer's file is of the eighth, from 700 us on, by its numbers alone."""
    with_facts(tmp_path, 1, (0,))
    observed = json.loads((tmp_path / "et.json").read_text())
    observed["nodes"] = [observed["nodes"][0], *observed["nodes"][1 + 6 * 7 : 1 + 6 * 8]]
    (tmp_path / "et.json").write_text(json.dumps(observed))
    trace = lumos.read(tmp_path / "kineto.json").traces[0]
    found = link_traces(read(tmp_path / "et.json"), trace)
    assert (found.linked, set((trace.start[found.node >= 0] // 100_000).tolist())) == (3, {7})


@pytest.mark.parametrize(
    ("pid", "offsets", "code"),
    [(2, (0,), "process-differ"), (1, (40, 41), "sequence-numbers-differ"), (1, (40,), "sequence-numbers-differ")],
)
def test_one_fact_that_refutes_is_enough(tmp_path: Path, pid: int, offsets: tuple[int, ...], code: str) -> None:
    observed = with_facts(tmp_path, pid, offsets)
    found = link_traces(observed, lumos.read(tmp_path / "kineto.json").traces[0])
    assert (found.confidence, found.link_rate) == (0.0, 0.0)
    assert [d.code for d in found.diagnostics] == [code]


def test_all_threads_are_linked_within_one_step(tmp_path: Path) -> None:
    """The main thread tells step 2 from the others; the other thread does the same in every step, and is linked in step 2."""
    rows, nodes = [], [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "parent": 1, "tid": 0}]
    for step in range(4):
        main = [f"aten::of_step_{step}", "aten::mm", f"aten::end_of_step_{step}"]
        for thread, names in ((1, main), (2, ["aten::mul", "aten::sum"])):
            for k, name in enumerate(names):
                at = 1000 * step + 500 * (thread - 1) + 10 * k
                rows.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": at, "dur": 5})
                if step == 2:
                    nodes.append({"id": len(nodes) + 1, "name": name, "parent": 1, "tid": thread})
    (tmp_path / "et.json").write_text(json.dumps({"schema": "1.0.1", "nodes": nodes}))
    (tmp_path / "kineto.json").write_text(json.dumps({"traceEvents": rows}))
    trace = lumos.read(tmp_path / "kineto.json").traces[0]
    found = link_traces(read(tmp_path / "et.json"), trace)
    linked = trace.start[found.node >= 0] - trace.start.min()
    assert (linked // 1_000_000).tolist() == [2] * 5


def test_files_that_share_nothing_are_never_a_success(tmp_path: Path) -> None:
    observed, _ = files(tmp_path, 3, range(3))
    (tmp_path / "kineto.json").write_text((tmp_path / "kineto.json").read_text().replace("aten::", "other::"))
    found = link_traces(observed, lumos.read(tmp_path / "kineto.json").traces[0])
    assert (found.linked, found.link_rate) == (0, None)
    assert "nothing-to-link" in [d.code for d in found.diagnostics]


def test_the_linked_set_has_tensors_and_times(tmp_path: Path) -> None:
    files(tmp_path, 2, range(2))
    lumos.chakra.link(tmp_path / "et.json", tmp_path / "kineto.json", output=tmp_path / "linked")
    nodes = {node.name: node for node in stream(tmp_path / "linked" / "job.0.et")[1]}
    kernel = nodes["COMP_NODE_k0"]
    assert kernel.inputs is not None and kernel.inputs.values == '[[1, 2, 0, 16, 4, "cuda:0"]]'
    assert kernel.value("rf_id") is not None
    assert kernel.duration_micros > 0


def test_linked_ranks_make_a_job_whose_collectives_meet(traces: Path, tmp_path: Path) -> None:
    folder = traces / "dlrm-8xv100"
    with pytest.raises(LumosError, match="differ by 40: another window of the process, or another run; --other-window links"):
        lumos.chakra.link(folder, folder)
    found = lumos.chakra.link(folder, folder, output=tmp_path / "set", other_window=True)
    assert [r.observed.path.endswith(f"et-rank{r.trace.rank}.json.gz") for r in found.ranks] == [True] * 8
    assert found.to_dict()["link_rate"] == 1.0 and len(found.to_dict()["ranks"]) == 8
    assert lumos.chakra.check(tmp_path / "set").ok
    job = lumos.build(lumos.read(tmp_path / "set"))
    assert job.collectives is not None and (len(job.collectives.task), job.rendezvous_offset[-1]) == (64, 64)
    assert job.collectives.groups == ("[0, 1, 2, 3, 4, 5, 6, 7]",)
    linked, recorded = (simulate(one) for one in (job, lumos.build(lumos.read(folder))))
    assert linked.end.max() - linked.start.min() == pytest.approx(recorded.end.max() - recorded.start.min(), rel=0.001)
    tensors = [n for n in stream(tmp_path / "set" / "job.0.et")[1] if n.value("et_id") is not None]
    assert len(tensors) > 261 and any(n.value("num_ops") for n in tensors)


def test_a_rank_without_its_execution_trace_is_named(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "observed").mkdir()
    source = traces / "dlrm-8xv100" / "et-rank1.json.gz"
    (tmp_path / "observed" / "rank1.json.gz").write_bytes(source.read_bytes())
    with pytest.raises(LumosError, match=r"kineto-rank0.*no execution trace is of this rank and run"):
        lumos.chakra.link(tmp_path / "observed", traces / "dlrm-8xv100")
    with pytest.raises(LumosError, match="holds no execution trace"):
        lumos.chakra.link(tmp_path, traces / "dlrm-8xv100")


def test_the_profilers_file_in_place_of_the_execution_trace_is_said_to_be_one(tmp_path: Path) -> None:
    profiled = tmp_path / "rank0.json"
    profiled.write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(TraceError, match=r"rank0\.json: a profiler's file, no execution trace; give the one that torch's observer wrote"):
        lumos.chakra.link(profiled, profiled)
